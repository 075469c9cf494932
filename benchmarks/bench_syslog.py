"""The cost of following the kernel log by syslog(2), as in a pod: CPU of polls of a ring of 2 MiB, and their interval.

The size of this machine's ring was set at boot. The kernel's part of a poll is measured on it, filled with lines of the usual length:
walking over all records, which grows with the ring and is scaled to 2 MiB, and copying the end of it, which does not grow. Python's
part is measured over 2 MiB of such lines in memory. Both are compared with dmesg(1) on this machine's ring, run in turn with them. It
writes to the kernel log: run it on a disposable host (GPUWARDEN_TEST_HOST=disposable).
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from common import spread, table
from gpuwarden_collectors.kernel_log.syslog import LONGEST_POLL, POLL, SHARE, WINDOW, SyslogRing, read_all, ring_size
from support.disposable import kernel_log_writer, require_disposable_host

RING = 2 << 20  # bytes
ROUNDS = 40
NEW = 40  # lines between two polls in a storm of 20 a second
LIMIT = 1.0  # per cent of a core
TEXT = "pcieport 0000:00:1c.0: AER: Corrected error message received from 0000:01:00.0 "


def cpu_ms(work: Callable[[], object]) -> float:
    before = time.process_time_ns()
    work()
    return (time.process_time_ns() - before) / 1e6


def dmesg_ms() -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(("dmesg",), stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


class Memory:
    """A ring of `RING` bytes; `new` lines come before each read."""

    def __init__(self, new: int) -> None:
        self._new = new
        self._count = RING // len(TEXT)
        self._lines = [self._line(n) for n in range(self._count)]

    def _line(self, number: int) -> bytes:
        return f"<4>[{number * 0.05:12.6f}] {TEXT}\n".encode()

    def grow(self) -> None:
        self._lines += [self._line(self._count + n) for n in range(self._new)]
        self._count += self._new
        del self._lines[: self._new]

    def __call__(self, size: int) -> bytes:
        """Made before it is measured (`prepare`)."""
        return self._prepared[size]

    def prepare(self, *sizes: int) -> None:
        text = b"".join(self._lines)
        self._prepared = {size: text[text.find(b"\n", max(0, len(text) - size) - 1) + 1 :] for size in sizes}


def python_ms(new: int) -> list[float]:
    ring = Memory(new)
    ring.prepare(2 * RING, WINDOW)
    source = SyslogRing(ring, 2 * RING)
    while not source.read(100).drained:
        pass
    taken = []
    for _ in range(ROUNDS):
        ring.grow()
        ring.prepare(2 * RING, WINDOW)
        taken.append(cpu_ms(lambda: source.read(1000)))
    return taken


def main() -> None:
    require_disposable_host()
    size = ring_size()
    with kernel_log_writer() as write:
        for _ in range(size // len(TEXT)):
            write(f"<15>{TEXT}")
    walk, window, dmesg = [], [], []
    for _ in range(ROUNDS):
        walk.append(cpu_ms(lambda: read_all(1)))
        window.append(cpu_ms(lambda: read_all(WINDOW)))
        dmesg.append(dmesg_ms())
    written = [max(0.0, whole - alone) for whole, alone in zip(window, walk, strict=True)]
    kernel = [RING / size * alone + rest for alone, rest in zip(walk, written, strict=True)]
    rows = []
    for new in (0, NEW):
        python = python_ms(new)
        polls = [a + b for a, b in zip(kernel, python, strict=True)]
        each = [max(POLL, min(poll / 1e3 / SHARE, LONGEST_POLL)) for poll in polls]
        shares = [poll / seconds / 10 for poll, seconds in zip(polls, each, strict=True)]
        against = [poll / statistics.median(dmesg) for poll in polls]
        rows.append(
            [
                str(new),
                spread(kernel),
                spread(python),
                spread(each),
                spread(shares, 3),
                f"<= {LIMIT:g}",
                f"{spread(against)}x",
            ]
        )
    head = ("new lines", "kernel, ms", "Python, ms", "each, s", "% of a core", "wanted", "dmesg(1) here")
    table(f"A poll of a ring of {RING >> 20} MiB (this machine's has {size >> 10} KiB)", head, rows)


if __name__ == "__main__":
    main()
