"""Slurm's scripts as root runs them, while the daemon's user swaps what lies in its folders. What came of it is counted."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.commands import COMMAND, environment
from support.slurm_hooks import NOBODY, SCRIPTS, HookHost

PRECIOUS = "of root's, and to stay as it is\n"
JOB = {"SLURM_JOB_UID": "1001", "SLURM_JOB_USER": "somebody", "SLURM_JOB_GPUS": "0"}
REAL_EVERY = 250
"""In so many rounds the command that the scripts start is the real one, which then asks at the attacker's socket."""


@dataclass(slots=True)
class Races:
    """`ran`: the attacker's program as root; `written`: files of root's changed or made; `followed`: connections to another socket of
    root's; `hung`: scripts that did not end; `refused`: jobs. `swaps`: how often the attacker swapped something.
    """

    rounds: int = 0
    swaps: int = 0
    ran: int = 0
    written: list[str] = field(default_factory=list)
    followed: int = 0
    hung: int = 0
    refused: int = 0


class RaceHost(HookHost):
    """A host whose run and state directory are nobody's. `root` holds what the attacker would like to have written or asked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.chmod(0o755)
        self.root = folder / "root"
        self.own = folder / "attacker"
        for path in (self.root, self.own, self.own / "folder"):
            path.mkdir()
        (self.root / "precious").write_text(PRECIOUS)
        (self.root / "precious").chmod(0o600)
        (self.root / "settings").write_text("mode=observe\n")
        program = self.own / "program"
        program.write_text(f"#!/bin/sh\necho $(id -u) >>{self.own}/ran\n")
        program.chmod(0o755)
        os.mkfifo(self.own / "pipe")
        for path in (self.own, *self.own.iterdir()):
            os.chown(path, NOBODY, NOBODY)
        self.give_away()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.root / "sock"))
        self.listener.listen(1024)
        self.listener.setblocking(False)
        self.before = self._of_root()

    @contextmanager
    def attacked(self) -> Iterator[None]:
        with subprocess.Popen(
            [sys.executable, "-m", "support.hook_attacker", str(self.folder)], env=environment(self.folder)
        ) as attacker:
            try:
                yield
            finally:
                attacker.send_signal(signal.SIGKILL)
                attacker.wait()

    @property
    def swaps(self) -> int:
        swaps = self.own / "swaps"
        return int(swaps.read_text() or 0) if swaps.exists() else 0

    def changed(self) -> list[str]:
        """The names of root's files that are others than before, or are new."""
        now = self._of_root()
        return sorted({name for name, _ in self.before.items() ^ now.items()})

    def connected(self) -> int:
        """Return how many clients connected to the socket of root's that the attacker linked to."""
        count = 0
        with suppress(BlockingIOError):
            while True:
                self.listener.accept()[0].close()
                count += 1
        return count

    def ran_as_root(self) -> int:
        ran = self.own / "ran"
        return ran.read_text().split().count("0") if ran.exists() else 0

    def _of_root(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() if path.is_file() else b"" for path in self.root.iterdir()}


def race(
    host: RaceHost, rounds: int, *, scripts: Path = SCRIPTS, patience: float = 60.0, shell: Sequence[str] = ("/bin/sh",)
) -> Races:
    """`scripts`: the folder of those that are attacked; `patience`: seconds after which a script hangs."""
    races = Races()
    copies = host.folder / "scripts"
    shutil.copytree(scripts, copies)  # a checkout may change under a long run
    quick = shutil.which("true") or "true"
    real = host.folder / "real"
    real.write_text(f'#!/bin/sh\nexport PYTHONPATH={os.pathsep.join(sys.path)}\nexec {" ".join(COMMAND)} "$@"\n')
    real.chmod(0o755)
    with host.attacked():
        while races.rounds < rounds or not host.swaps:
            command = str(real) if races.rounds % REAL_EVERY == 0 else quick
            job = {**JOB, "SLURM_JOB_ID": str(races.rounds % 10), "GPUWARDEN_COMMAND": command}
            for name in ("prolog", "epilog", "healthcheck"):
                _run([*shell, str(copies / f"gpuwarden-slurm-{name}")], host.environment(**job), races, patience)
            if command == str(real):
                host.wait_for_sessions()
            races.rounds += 1
        host.wait_for_sessions()
        races.swaps = host.swaps
    with host.listener:
        races.ran, races.written, races.followed = host.ran_as_root(), host.changed(), host.connected()
    return races


def _run(words: Sequence[str], variables: dict[str, str], races: Races, patience: float) -> None:
    with subprocess.Popen(
        words, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as script:  # fmt: skip
        try:
            races.refused += script.wait(patience) != 0
        except subprocess.TimeoutExpired:
            races.hung += 1
            os.killpg(script.pid, signal.SIGKILL)
