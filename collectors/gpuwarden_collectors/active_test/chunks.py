"""Evaluates single chunks of a compute kernel, and aggregates all its chunks. Uses no GPU: records in, facts out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import field
from statistics import median

from gpuwarden_collectors.active_test.facts import MISMATCHES_KEPT, Deviation, KernelMeasured, Outlier
from gpuwarden_collectors.active_test.kernels import layout
from gpuwarden_collectors.active_test.kernels.layout import WarpRecord
from gpuwarden_collectors.dataclass import dataclass

OFF = 0.0005
"""Relative deviation from the median cycles that makes an SM an outlier: 17 times the most measured (0.003 %)."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One launch on all SMs. `cycles`: of each SM's slowest warp, for one loop. `clock`: MHz. `rate`: operations per second."""

    deviating: Counter[int]
    """Warps with a wrong result, by SM."""
    cycles: dict[int, float]
    clock: float
    rate: float

    @property
    def median_cycles(self) -> float:
        """Median clock cycles across all SMs."""
        return median(self.cycles.values())


def chunk(records: Sequence[WarpRecord], rounds: int, entry: str, expected: int | None) -> Chunk:
    """Evaluates one launch. `expected` is the known checksum; if None, the majority's checksum counts as right."""
    checksum = Counter(record.checksum for record in records).most_common(1)[0][0] if expected is None else expected
    cycles: dict[int, float] = defaultdict(float)
    for record in records:
        cycles[record.sm] = max(cycles[record.sm], layout.cycles_per_loop(record, rounds))
    nanoseconds = median(record.nanoseconds for record in records) or 1
    operations = layout.OPERATIONS[entry] * layout.LOOPS * rounds * len(records)
    return Chunk(
        deviating=Counter(record.sm for record in records if record.checksum != checksum),
        cycles=dict(cycles),
        clock=1000 * median(record.cycles for record in records) / nanoseconds,
        rate=1e9 * operations / nanoseconds,
    )


@dataclass(slots=True)
class KernelTally:
    """All chunks of one kernel so far. Results count from the first chunk on, cycles and rates after the GPU is warm."""

    kernel: str
    sms: int
    _chunks: int = 0
    _wrong_chunks: int = 0
    _seen: set[int] = field(default_factory=set)
    _deviating: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _off: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    _medians: list[float] = field(default_factory=list)
    _clocks: list[float] = field(default_factory=list)
    _rates: list[float] = field(default_factory=list)

    def add(self, chunk: Chunk, *, warm: bool) -> None:
        """Adds a chunk; its cycles and rate count only if it is `warm`."""
        self._seen.update(chunk.cycles)
        self._wrong_chunks += bool(chunk.deviating)
        for sm, warps in chunk.deviating.items():
            self._deviating[sm].append(warps)
        if not warm:
            return
        self._chunks += 1
        usual = chunk.median_cycles
        for sm, cycles in chunk.cycles.items():
            if usual and abs(off := cycles / usual - 1) > OFF:
                self._off[sm].append(off)
        self._medians.append(usual)
        self._clocks.append(chunk.clock)
        self._rates.append(chunk.rate)

    def facts(self) -> KernelMeasured | None:
        """Returns the results so far, or None before the first chunk."""
        if not self._seen:
            return None
        return KernelMeasured(
            kernel=self.kernel,
            chunks=self._chunks,
            sms=self.sms,
            missing=self._missing(),
            deviations=self._deviations(),
            deviating=len(self._deviating),
            wrong_chunks=self._wrong_chunks,
            outliers=self._outliers(),
            cycles=median(self._medians or [0.0]),
            cycles_least=min(self._medians, default=0.0),
            cycles_most=max(self._medians, default=0.0),
            clock=median(self._clocks or [0.0]),
            rate=median(self._rates or [0.0]),
        )

    def _missing(self) -> tuple[int, ...]:
        """Returns the SMs without a result.

        Empty if as many SMs were seen as the GPU has: PTX does not guarantee that SM ids are contiguous.
        """
        if len(self._seen) >= self.sms:
            return ()
        return tuple(sorted(set(range(self.sms)) - self._seen))

    def _deviations(self) -> tuple[Deviation, ...]:
        deviations = (Deviation(sm=sm, chunks=len(warps), warps=sum(warps)) for sm, warps in self._deviating.items())
        return tuple(sorted(deviations, key=lambda deviation: (-deviation.warps, deviation.sm))[:MISMATCHES_KEPT])

    def _outliers(self) -> tuple[Outlier, ...]:
        outliers = (Outlier(sm=sm, chunks=len(off), worst=max(off, key=abs)) for sm, off in self._off.items())
        return tuple(sorted(outliers, key=lambda outlier: (-abs(outlier.worst), outlier.sm))[:MISMATCHES_KEPT])
