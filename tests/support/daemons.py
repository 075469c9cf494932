"""The real daemon as a process of its own, on a host of the test: the fake NVML library, a PCI tree, a kernel log in a file."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from gpuwarden_collectors.registry import HOST_COLLECTORS
from gpuwarden_collectors.simulated_pci import h100, write_tree
from support.commands import COMMAND, answered, environment, gpuwarden
from support.fake_nvml_library import FakeNvml
from support.whole_lines import whole_lines

PATIENCE = 150.0
"""Seconds after which a test gives up waiting, longer than the longest pause before a worker is started again (60 s).
Nothing is asserted about how much of it is used.
"""

POLL = 0.05
"""Seconds between two questions: each is a request that the daemon answers, and at 20 ms the answers cost more than all else it does."""

Json = dict[str, Any]


def slots(gpus: int) -> list[str]:
    """Return the PCI addresses of the fake library's GPUs (text pci_bus_id of readings.def)."""
    return [f"0000:{0x1B + 13 * n:02x}:00.0" for n in range(gpus)]


OTHERS = ("dcgm", *(spec.name for spec in HOST_COLLECTORS))
QUIET = "".join(f"[collectors.{name}]\nenabled = false\n" for name in OTHERS)


class Host(Protocol):
    """What a daemon is started on; `environment` is added to its own."""

    folder: Path
    config: Path
    run_dir: Path

    @property
    def environment(self) -> Mapping[str, str]: ...


class FakeHost:
    """A machine of `gpus` H100. Its parts may be changed while a daemon watches. Its page has all series, unless `series` is changed."""

    series = "full"

    def __init__(self, folder: Path, gpus: int = 8) -> None:
        self.folder = folder
        self.fake = FakeNvml.build(folder).write(gpus=gpus)
        self.sysfs = folder / "sys"
        self.kmsg = folder / "kmsg"
        self.run_dir = folder / "run"
        self.state_dir = folder / "state"
        self.config = folder / "gpuwarden.toml"
        self.proc = Path("/proc")
        self.kmsg.touch()
        self.plug(gpus)
        self.configure()
        self._sequence = 0

    @property
    def environment(self) -> Mapping[str, str]:
        return {**self.fake.environment, "GPUWARDEN_PUBLISH__SERIES": self.series}

    def plug(self, gpus: int, missing: frozenset[int] = frozenset()) -> None:
        write_tree(self.sysfs, [h100(slot) for n, slot in enumerate(slots(gpus)) if n not in missing])

    def configure(
        self, more: str = "", *, interval: str = "200ms", deadline: str = "10s", init: str = "60s", beside: str = QUIET
    ) -> None:
        """`beside`: what is read besides GPUs, bus and kernel log; by default nothing, since it would be this machine's."""
        self.config.write_text(
            f'node = "node7"\n[paths]\nsysfs = "{self.sysfs}"\nkmsg = "{self.kmsg}"\n{self._own_proc()}'
            f'[collectors.nvml]\nlibrary = "{self.fake.library}"\n'
            f'interval = "{interval}"\ndeadline = "{deadline}"\ninit_deadline = "{init}"\n'
            f'[collectors.pci]\ninterval = "500ms"\n[publish]\nlisten = "127.0.0.1:0"\n'
            f'[run]\ndir = "{self.run_dir}"\n[state]\ndir = "{self.state_dir}"\n{beside}{more}'
        )

    def _own_proc(self) -> str:
        return "" if self.proc == Path("/proc") else f'proc = "{self.proc}"\n'

    def seclude(self) -> None:
        """Hide all processes of this machine from the daemon except those that `admit` names: in mode enforce it
        signals all that it sees.
        """
        self.proc = self.folder / "proc"
        self.proc.mkdir()
        (self.proc / "sys").symlink_to("/proc/sys")
        self.configure()

    def boots(self, boot_id: str) -> Path:
        """Replace the boot id of a secluded host, and return the file that holds it."""
        (self.proc / "sys").unlink()
        file = self.proc / "sys/kernel/random/boot_id"
        file.parent.mkdir(parents=True)
        file.write_text(f"{boot_id}\n")
        return file

    def admit(self, pid: int) -> None:
        (self.proc / str(pid)).symlink_to(f"/proc/{pid}")

    def kernel_line(self, text: str, *, age: float = 0.0) -> None:
        self._sequence += 1
        microseconds = int((time.clock_gettime(time.CLOCK_BOOTTIME) - age) * 1e6)
        with self.kmsg.open("a") as file:
            file.write(f"4,{self._sequence},{microseconds},-;{text}\n")

    def xid(self, gpu: int, number: int, *, age: float = 0.0) -> None:
        bus = slots(gpu + 1)[gpu].removesuffix(".0")
        self.kernel_line(f"NVRM: Xid (PCI:{bus}): {number}, pid=1234, name=python, something broke", age=age)

    def command(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return gpuwarden(*words, temporary=self.folder, more=self.fake.environment)

    def order(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Give an order to the daemon, or ask it, as `answered` does."""
        return answered(*words, "--run-dir", self.run_dir, temporary=self.folder, more=self.fake.environment)

    @contextmanager
    def daemon(self, **streams: Any) -> Iterator[RunningDaemon]:
        """Started, serving, and gone at the end whatever state it is in."""
        daemon = RunningDaemon(self, **streams)
        try:
            daemon.find_port()
            yield daemon
        finally:
            self.fake.clear()
            daemon.kill()


class RunningDaemon:
    def __init__(
        self,
        host: Host,
        stderr: int | None = None,
        more: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix`: a program that becomes the daemon."""
        self.host: Any = host
        self.log = host.folder / f"log-{time.monotonic_ns()}"
        log = self.log.open("w") if stderr is None else None
        variables = environment(host.folder, {**host.environment, **(more or {})})
        self.process = subprocess.Popen(
            [*prefix, *COMMAND, "run", "--config", str(host.config)],
            env=variables,
            stderr=log or stderr,
            stdin=subprocess.DEVNULL,
        )
        if log is not None:
            log.close()
        self.port = 0

    def find_port(self) -> None:
        """The port it listens on, which the kernel knows (its log may be what the test is blocking)."""

        def is_ready() -> bool:
            # The socket comes last, and to look for it costs nothing; sockets of a machine that runs many tests are a long table.
            if (self.host.run_dir / "control.sock").exists() or not os.access(self.host.run_dir.parent, os.W_OK):
                self.port = listening_port(self.process.pid)
            return self.port != 0

        self.wait(is_ready, "to listen")

    def wait(
        self, condition: Callable[[], object], awaited: str, *, every: float = POLL, patience: float = PATIENCE
    ) -> None:
        end = time.monotonic() + patience
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the daemon exited with {self.process.returncode} while waited for {awaited}:\n{self.lines()}"
                )
            if time.monotonic() > end:
                raise AssertionError(
                    f"waited {patience:g} s in vain for {awaited}:\n{self.lines()[-3000:]}\n{self._shown()}"
                )
            time.sleep(every)

    def _shown(self) -> str:
        """Its status, of which a log that says nothing lacks what it waits for."""
        try:
            return self.get("/v1/status", timeout=5.0)[1].decode()[-6000:]
        except (OSError, http.client.HTTPException) as error:
            return f"no status: {error}"

    def lines(self) -> str:
        return whole_lines(self.log)

    def get(self, path: str, timeout: float = PATIENCE) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def heartbeat(self) -> Json:
        document: Json = json.loads(self.get("/heartbeat")[1])
        return document

    def status(self) -> Json:
        document: Json = json.loads(self.get("/v1/status")[1])
        return document

    def wait_status(self, status: str, *reasons: str) -> Json:
        self.wait(lambda: self.is_now(status, *reasons), f"{status} {reasons}; last: {self.heartbeat()}")
        return self.heartbeat()

    def is_now(self, status: str, *reasons: str) -> bool:
        now = self.heartbeat()
        return now["status"] == status and set(reasons) <= set(now["reasons"])

    def wait_passes(self, number: int) -> None:
        begun = self.heartbeat()["sequence"]
        self.wait(lambda: self.heartbeat()["sequence"] >= begun + number, f"{number} more passes")

    def worker(self) -> int:
        """Process id of the NVML worker; 0 if there is none."""
        return next(iter(children(self.process.pid)), 0)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        """Kill the daemon with SIGKILL, and wait for its workers, which end by themselves."""
        workers = children(self.process.pid)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        end = time.monotonic() + PATIENCE
        while any(alive(pid) for pid in workers) and time.monotonic() < end:
            time.sleep(0.01)


def children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listening_port(pid: int) -> int:
    """The first TCP port that a process listens on; 0 if none."""
    try:
        inodes = {str(fd.readlink()).removeprefix("socket:[").rstrip("]") for fd in Path(f"/proc/{pid}/fd").iterdir()}
        table = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    except OSError:
        return 0
    for row in (line.split() for line in table):
        if row[3] == "0A" and row[9] in inodes:
            return int(row[1].rpartition(":")[2], 16)
    return 0
