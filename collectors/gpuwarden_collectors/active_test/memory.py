"""The memory test: writes, inverts and verifies nearly all memory of a GPU in marches. Each takes 0.2 s at most.

While 99 % is allocated no other process can create a context (measured: error 2). Therefore a march is short, all
memory is freed between marches, and another process that appears between the steps of a march ends the test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import field
from enum import StrEnum
from math import ceil
from statistics import median
from typing import NamedTuple

from gpuwarden_collectors.active_test.cuda.device import Device
from gpuwarden_collectors.active_test.cuda.errors import OutOfMemoryError
from gpuwarden_collectors.active_test.facts import MISMATCHES_KEPT, MemoryMeasured, Mismatch, Obstacle
from gpuwarden_collectors.active_test.memory_kernels import MemoryKernels, Pattern, Run, pattern
from gpuwarden_collectors.active_test.obstructed import Obstructed
from gpuwarden_collectors.dataclass import dataclass

MARCH_MOST = 0.2
"""Most seconds that the kernels of a march may take, estimated from the speeds measured so far."""
PARTS_MOST = 64
"""Most parts of a march on a slow GPU."""
KEPT_BACK = 2 << 30
"""Bytes left free when the parent allows only a part: room for the contexts of a job that is starting."""
LEAST_SHARE = 0.9
"""Least share of the allowed memory that must be allocated for a valid test."""
_SHARES_LEFT = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064)
"""Shares of free memory to leave, tried in this order: H100 grants all but 0.08 % in one block (measured)."""
_GRAIN = 1 << 16
_SLOWER_BOTH_WAYS = 1.1  # than reading or writing alone: 2.80 TB/s, not 3.05 (H100)
_PROBE = 1 << 30  # bytes written and read to measure the speed before the first march
_KEPT_OF_ONE = MISMATCHES_KEPT // 2  # leaves room for the same words from the repeated march


class Allowance(StrEnum):
    """How much memory the parent allows the test to take."""

    ALL = "all"
    PART = "part"
    NONE = "none"


@dataclass(slots=True)
class MemoryTally:
    """The results of all marches so far."""

    total: int
    free: int
    tested: int = 0
    marches: int = 0
    mismatches: int = 0
    writes: list[float] = field(default_factory=list)
    """Bytes per second of each launch that only wrote."""
    verifies: list[float] = field(default_factory=list)
    """Bytes per second of each launch that only read."""
    _first: list[Mismatch] = field(default_factory=list)

    def add(self, run: Run, first: int = 0) -> None:
        """Adds the result of one launch that began at byte `first` of the block."""
        self.mismatches += run.mismatches
        kept_offsets = {deviation.offset for deviation in self._first}
        for record in sorted(
            run.records, key=lambda record: (first + record.offset not in kept_offsets, record.offset)
        ):
            of_march = sum(deviation.march == self.marches for deviation in self._first)
            if of_march < _KEPT_OF_ONE and len(self._first) < MISMATCHES_KEPT:
                offset = first + record.offset
                self._first.append(
                    Mismatch(march=self.marches, offset=offset, expected=record.expected, found=record.found)
                )

    def facts(self) -> MemoryMeasured | None:
        """Returns the results so far, or None before anything was tested."""
        if not self.tested:
            return None
        return MemoryMeasured(
            total=self.total,
            free=self.free,
            tested=self.tested,
            marches=self.marches,
            mismatches=self.mismatches,
            first=tuple(self._first),
            write=median(self.writes or [0.0]),
            verify=median(self.verifies or [0.0]),
        )


class _Plan(NamedTuple):
    """The plan of one march."""

    inversions: int
    parts: int


class MemoryTest:
    """The test of the memory of one GPU.

    It takes at most `most` bytes. `check` ends the test by an exception if another process is on the GPU.
    """

    def __init__(
        self, device: Device, kernels: MemoryKernels, allowance: Allowance, most: int | None, check: Callable[[], None]
    ) -> None:
        free, total = device.memory()
        self.tally = MemoryTally(total, free)
        self._device, self._kernels, self._check = device, kernels, check
        kept = KEPT_BACK if allowance is Allowance.PART else 0
        self._may_take = min(free - kept, most or free)
        self._wanted = max(0, min(total - kept, most or total))
        self._kept = kept
        self._run_again = False

    def march(self, seed: int, number: int) -> float:
        """Runs one march and returns its seconds on the GPU. Raises CudaError, Obstructed.

        The first march that finds wrong words is repeated before the memory is freed. On a GPU too slow to cover all
        memory within `MARCH_MOST`, the march is split into parts, and all memory is freed after each.
        """
        chosen, took, covered, part, plan = pattern(seed, number), 0.0, 0, 0, None
        while plan is None or part < plan.parts:
            self._check()
            with self._block() as (base, size):
                plan = self._plan(base, size, chosen) if plan is None else plan
                first, last = (size * edge // plan.parts // _GRAIN * _GRAIN for edge in (part, part + 1))
                covered += last - first
                self.tally.tested = max(self.tally.tested, covered) if number == 0 else self.tally.tested
                took += self._part(base, first, last - first, chosen, plan.inversions)
            part += 1
        self.tally.tested = min(self.tally.tested, covered)
        self._check()
        return took

    def _part(self, base: int, first: int, size: int, chosen: Pattern, inversions: int) -> float:
        """Runs the steps from byte `first` of the block; repeats them at the first mismatch. Returns GPU seconds."""
        before = self.tally.mismatches
        took = self._steps(base, first, size, chosen, inversions)
        if self.tally.mismatches > before and not self._run_again:
            self._run_again = True
            took += self._steps(base, first, size, chosen, inversions)
        return took

    def _steps(self, base: int, first: int, size: int, chosen: Pattern, inversions: int) -> float:
        """Writes upwards, verifies and inverts `inversions` times, then verifies downwards."""
        kernels, held, at = self._kernels, chosen, base + first
        took = self._note(kernels.write(at, size, held), first, self.tally.writes, size)
        for number in range(inversions):
            took += self._note(kernels.verify_write(at, size, held, down=number % 2 == 1), first)
            held = held.inverted()
        took += self._note(kernels.verify(at, size, held, down=True), first, self.tally.verifies, size)
        self.tally.marches += 1
        return took

    def _note(self, run: Run, first: int = 0, speeds: list[float] | None = None, size: int = 0) -> float:
        self.tally.add(run, first)
        if speeds is not None and run.seconds > 0:
            speeds.append(size / run.seconds)
        self._check()
        return run.seconds

    def _plan(self, base: int, size: int, chosen: Pattern) -> _Plan:
        """Plans two, one or no inversions, as time allows; if even none is too slow, splits the march into parts.

        Each inversion reads and writes the memory once more.
        """
        if not self.tally.writes:
            probe, kernels = min(size, _PROBE), self._kernels
            took = self._note(kernels.write(base, probe, chosen)) + self._note(kernels.verify(base, probe, chosen))
            speed = 2 * probe / took if took > 0 else float("inf")
        else:
            speed = min(median(self.tally.writes), median(self.tally.verifies or [0.0]))
        for inversions in (2, 1):
            if (2 + 2 * inversions) * size * _SLOWER_BOTH_WAYS / speed <= MARCH_MOST:
                return _Plan(inversions, 1)
        return _Plan(0, min(PARTS_MOST, max(1, ceil(2 * size / speed / MARCH_MOST))))

    @contextmanager
    def _block(self) -> Iterator[tuple[int, int]]:
        """Allocates the largest block that the driver grants. Yields address and size. Raises Obstructed."""
        with ExitStack() as stack:
            for left in _SHARES_LEFT:
                size = int(self._may_take * (1 - left)) // _GRAIN * _GRAIN
                if size < max(_GRAIN, LEAST_SHARE * self._wanted):
                    break
                address = None
                with suppress(OutOfMemoryError):
                    address = stack.enter_context(self._device.allocated(size))
                if address is not None:
                    yield address, size
                    return
        if not self._wanted:
            raise Obstructed(
                f"the memory of {self._device.uuid} is not tested: it has {_gib(self.tally.total)} in all, and {_gib(self._kept)} stay free "
                "while a job may come: exclude or drain the node, then test",
                Obstacle.MEMORY_TAKEN,
            )
        raise Obstructed(
            f"the memory of {self._device.uuid} is not tested: of {_gib(self._wanted)} less than {LEAST_SHARE:.0%} could be had, "
            f"{_gib(self._device.memory()[0])} are free; something holds the rest: see the processes on the GPU, or reset it",
            Obstacle.MEMORY_TAKEN,
        )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
