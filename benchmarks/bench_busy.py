"""Jobs that starve the daemon of CPU time: two busy loops per core at nice -20, the daemon at the nice 5 of its unit.

Printed: the longest time between two watchdog notifications (systemd waits 90 s for one; here they are requested every 2 s, so that
there is something to measure), the highest age of the verdict, and the number of missed kernel log lines. The kernel log is that of
this machine if it may be written (root, GPUWARDEN_TEST_HOST=disposable), else a file.

Without the right to a negative nice value the loops run at 0, as the table shows. `--core N` keeps loops and daemon on one
core if the others are needed: the number of loops per core of the daemon counts.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from common import KERNEL_LOG, fake_host, scrape, table, wait_for_all
from support.daemons import RunningDaemon, children, slots
from support.disposable import kernel_log_writer

GPUS = 8
SECONDS, RUNS = 30.0, 3
EVERY = 2.0
"""Seconds between two watchdog notifications: a quarter of WATCHDOG_USEC."""
LINES_A_SECOND = 20.0
LOOPS, NICE, DAEMON_NICE = 2, -20, 5
WATCHDOG = 90.0
_BUSY = "import os, sys\ntry: os.nice({nice})\nexcept PermissionError: pass\nprint(flush=True)\nwhile True: pass\n"
_LINES = re.compile(
    rb'^gpuwarden_(?:xid_total\{.*xid="31".*|kernel_log_disbelieved_total\{reason="facility")\} (\d+)', re.MULTILINE
)
"""Lines in a file count as the kernel's; those in the real log are ours, and counted as that."""


class Signs:
    """The daemon's notifications to its service manager, with their times of arrival."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self.alive: list[float] = []
        self.ready = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        while True:
            lines = self._socket.recv(4096).decode().splitlines()
            if "WATCHDOG=1" in lines:
                self.alive.append(time.monotonic())
            if "READY=1" in lines:
                self.ready.set()

    def longest_gap(self, begun: float, ended: float) -> float:
        """Return the longest gap. One that has not ended counts up to now."""
        inside = [begun, *(at for at in self.alive if begun < at < ended), ended]
        return max(after - before for before, after in pairwise(inside))


@contextmanager
def busy(cores: Iterable[int]) -> Iterator[int]:
    """Run busy loops on these cores, and yield their niceness."""
    loops: list[subprocess.Popen[bytes]] = []
    try:
        for core in cores:
            for _ in range(LOOPS):
                command = ("taskset", "--cpu-list", str(core), sys.executable, "-c", _BUSY.format(nice=NICE))
                loop = subprocess.Popen(command, stdout=subprocess.PIPE)
                loops.append(loop)
        for loop in loops:
            assert loop.stdout is not None
            loop.stdout.readline()
        yield max(os.getpriority(os.PRIO_PROCESS, loop.pid) for loop in loops)
    finally:
        for loop in loops:
            loop.kill()
            loop.communicate()


def confined(daemon: RunningDaemon, cores: set[int]) -> None:
    """Confine the daemon and its worker, with all their threads; processes that they start inherit it."""
    for pid in (daemon.process.pid, *children(daemon.process.pid)):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores)
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), DAEMON_NICE)


class Caller:
    """Requests the heartbeat repeatedly; `longest`: the longest time to an answer, or without one, in seconds."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self.longest = 0.0
        self._daemon, self._done = daemon, threading.Event()
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def _call(self) -> None:
        while not self._done.wait(0.5):
            begun = time.monotonic()
            with suppress(OSError):
                self._daemon.get("/heartbeat", timeout=2 * SECONDS)
            self.longest = max(self.longest, time.monotonic() - begun)

    def end(self) -> None:
        self._done.set()
        self._thread.join(3 * SECONDS)


def run(daemon: RunningDaemon, signs: Signs, cores: set[int], write: Callable[[str], None]) -> list[str]:
    bus = slots(1)[0].removesuffix(".0")
    before, written, caller = counted(daemon), 0, Caller(daemon)
    with busy(cores) as nice:
        begun = time.monotonic()
        while (passed := time.monotonic() - begun) < SECONDS:
            if written < passed * LINES_A_SECOND:
                write(f"NVRM: Xid (PCI:{bus}): 31, pid=1, name=python, line {written}")
                written += 1
            time.sleep(0.2 / LINES_A_SECOND)
        ended = time.monotonic()
    caller.end()
    with suppress(AssertionError):
        daemon.wait(lambda: counted(daemon) - before >= written, "every line to be counted")
    gap, missing = signs.longest_gap(begun, ended), written - (counted(daemon) - before)
    return [str(nice), f"{gap:.1f}", f"< {WATCHDOG:g}", f"{caller.longest:.1f}", str(written), str(missing), "0"]


def counted(daemon: RunningDaemon) -> int:
    return sum(map(int, _LINES.findall(scrape(daemon.port, {"Accept-Encoding": "identity"}))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, help="keep loops and daemon on this one (default: all)")
    chosen = parser.parse_args().core
    cores = os.sched_getaffinity(0) if chosen is None else {chosen}
    real = os.environ.get("GPUWARDEN_TEST_HOST") == "disposable" and os.access(KERNEL_LOG, os.W_OK)
    with ExitStack() as stack:
        host = stack.enter_context(fake_host(gpus=GPUS, device=real))
        signs = Signs(host.folder)
        more = {"NOTIFY_SOCKET": str(signs.path), "WATCHDOG_USEC": str(int(4 * EVERY * 1e6))}
        daemon = stack.enter_context(host.daemon(more=more))
        wait_for_all(daemon, GPUS)
        if not signs.ready.wait(60.0):
            raise TimeoutError("the daemon has not reported that it is ready")
        confined(daemon, cores)
        write = stack.enter_context(kernel_log_writer()) if real else host.kernel_line
        rows = [run(daemon, signs, cores, write) for _ in range(RUNS)]
    table(
        f"{LOOPS} busy loops on each of {len(cores)} cores for {SECONDS:g} s, the daemon at nice {DAEMON_NICE}, kernel log {host.kmsg}; "
        f"watchdog notifications every {EVERY:g} s",
        ("loops' nice", "longest gap s", "required", "longest answer s", "kernel lines", "missed", "required"), rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
