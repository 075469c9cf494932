"""The worker process of `gpuwarden test`, which tests one GPU. A hang or crash of libcuda does not affect the parent.

Run as `python -m gpuwarden_collectors.active_test.process REQUEST`, a JSON object (`request.Request`). It writes JSON
lines:

    {"asks": "start"}                       then waits for any line before it touches the driver, so that its Xids can
                                            be attributed to the test
    {"phase": "int8", "at": 3, "of": 6}     a phase begins
    {"asks": "compute"}                     only with peers; then waits for any line
    {"asks": "memory"}                      then waits for a line `all`, `part` or `none`
    {"measured": {…}}                       the last line, a `facts.GpuMeasured`

Exit status 0, or 64 if it refuses the request; any other status is a crash.

SIGTERM keeps its default action, which frees the GPU within 0.2 s even in the middle of a kernel (measured). The
process also exits at the end of stdin and with its parent. The parent clears its environment and sets CUDA_CACHE_PATH
to a folder of the user.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from gpuwarden_collectors.active_test.memory import Allowance
from gpuwarden_collectors.active_test.request import PLANS, Request, parsed
from gpuwarden_collectors.active_test.run import run
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.facts import slot_of
from gpuwarden_collectors.host_facts import TESTER
from gpuwarden_collectors.host_files import text_or_empty
from gpuwarden_collectors.worker.separation import end_with, own_streams

REFUSED = 64
"""Exit status, EX_USAGE."""
_PR_SET_NAME = 15  # linux/prctl.h
_CPUS_MOST = 4096  # most CPUs of a host
_LONGEST_ANSWER = 4096


class _Parent:
    """The streams between this worker and its parent."""

    def __init__(self, request: Request, answers: int, lines: int) -> None:
        self._lines = lines
        self._phases = _phases(request)
        self._answers: SimpleQueue[str] = SimpleQueue()
        Thread(target=self._read, args=(answers,), daemon=True).start()

    def _read(self, descriptor: int) -> None:
        """Queues the parent's lines. Exits the process at the end of the stream, whatever the main thread does."""
        held = b""
        while (data := os.read(descriptor, _LONGEST_ANSWER)) and len(held) < _LONGEST_ANSWER:
            *whole, held = (held + data).split(b"\n")
            for line in whole:
                self._answers.put(line.decode("ascii", "replace").strip())
        os._exit(0)

    def write(self, value: dict[str, Any]) -> None:
        """Writes one line of JSON to the parent."""
        line = memoryview(json.dumps(value, separators=(",", ":")).encode() + b"\n")
        while line:
            line = line[os.write(self._lines, line) :]

    def progress(self, phase: str) -> None:
        """Reports to the parent that a phase begins."""
        self.write({"phase": phase, "at": self._phases.index(phase) + 1, "of": len(self._phases)})

    def ask_start(self) -> None:
        """Waits for the answer, whatever it is."""
        self._asked("start")

    def ask_compute(self) -> None:
        """Waits for the answer, whatever it is."""
        self._asked("compute")

    def ask_memory(self) -> Allowance:
        """Waits for the parent's answer; an answer that is not a value of Allowance counts as NONE."""
        answer = self._asked("memory")
        return next((allowance for allowance in Allowance if allowance == answer), Allowance.NONE)

    def _asked(self, question: str) -> str:
        self.write({"asks": question})
        return self._answers.get()


def _phases(request: Request) -> list[str]:
    plan = PLANS[request.level]
    return [
        "start",
        *(["pcie"] if plan.pcie else []),
        *(["peers"] if plan.peers and request.peers else []),
        *plan.kernels,
        "memory",
    ]


def main() -> None:
    """Runs the test. Raises SystemExit if the request is invalid."""
    try:
        (text,) = sys.argv[1:]
        request = parsed(text)
    except ValueError as error:
        sys.stderr.write(f"{Path(sys.argv[0]).name}: the request cannot be read: {error}\n")
        sys.exit(REFUSED)
    answers, lines = own_streams()
    end_with(request.parent)
    ctypes.CDLL(None).prctl(_PR_SET_NAME, TESTER.encode(), 0, 0, 0)
    stay_near(request.slot)
    parent = _Parent(request, answers, lines)
    parent.ask_start()
    measured = run(request, parent.progress, parent.ask_compute, parent.ask_memory)
    parent.write({"measured": to_wire(measured)})
    os._exit(0)  # a normal exit would call the driver again; the kernel frees the GPU, too, and does not hang


def local_cpus(slot: str, sys: str = "/sys") -> set[int]:
    """Returns the CPUs that the kernel lists as local to this PCI address; empty if it lists none."""
    cpus: set[int] = set()
    for part in text_or_empty(f"{sys}/bus/pci/devices/{slot_of(slot)}/local_cpulist").split(","):
        first, _, last = part.partition("-")
        with suppress(ValueError):
            cpus.update(range(int(first), min(int(last or first), _CPUS_MOST) + 1))
    return cpus


def stay_near(slot: str) -> None:
    """Restricts this process to CPUs local to the GPU, so that copy speeds of different tests are comparable.

    Pinned memory comes from the NUMA node of the CPU that allocates it.
    """
    if near := local_cpus(slot) & os.sched_getaffinity(0):
        os.sched_setaffinity(0, near)


if __name__ == "__main__":
    main()
