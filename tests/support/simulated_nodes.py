"""Daemons on eight simulated GPUs each, as nodes of a site that Prometheus scrapes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.health.model import Event
from gpuwarden.ledger.store import Entry, Store
from gpuwarden_collectors.base import host_clock
from support.commands import COMMAND, answered, environment
from support.daemons import QUIET, alive, children, listening_port
from support.prometheus import wait


@dataclass(slots=True)
class SimulatedNode:
    """A daemon on eight simulated GPUs."""

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    port: int = 0

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def listens(self) -> bool:
        """Read once and kept: for a moment in which it closes a file, its ports cannot be read."""
        self.port = self.port or listening_port(self.process.pid)
        return self.port != 0

    def order(self, verb: str, *words: str) -> None:
        """`gpuwarden VERB` on this node, which must do it."""
        done = answered(verb, "--run-dir", self.run_dir, *words, temporary=self.folder)
        assert done.returncode == 0, done.stderr

    def kill(self) -> None:
        """Kill the daemon with SIGKILL, and wait for its workers, which end by themselves."""
        workers = children(self.process.pid)
        self.process.kill()
        self.process.wait()
        wait(lambda: not any(alive(pid) for pid in workers), "the worker to end")


@contextmanager
def simulated_node(
    name: str, folder: Path, *, past: Sequence[Event] = (), publish: str = ""
) -> Iterator[SimulatedNode]:
    """Start one. `past`: events that its ledger holds; `publish`: more keys of that table."""
    folder.mkdir()
    if past:
        (folder / "state").mkdir()
        with Store.open(folder / "state" / "ledger.db", now=host_clock().wall) as store:
            store.append([Entry(events=tuple(past))])
    config = folder / "gpuwarden.toml"
    config.write_text(
        f'node = "{name}"\n[collectors.nvml]\ninterval = "500ms"\n[publish]\nlisten = "127.0.0.1:0"\n{publish}'
        f'[run]\ndir = "{folder / "run"}"\n[state]\ndir = "{folder / "state"}"\n{QUIET}'
    )
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*COMMAND, "run", "--simulate", "8", "--config", str(config)],
            env=environment(folder), stderr=file, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    node = SimulatedNode(name, folder, process)
    try:
        wait(lambda: process.poll() is not None or node.listens(), f"{name} to listen", log)
        assert process.poll() is None, log.read_text()[-3000:]
        yield node
    finally:
        node.kill()
