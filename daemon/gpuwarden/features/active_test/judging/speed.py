"""Judges a test's speeds by the GPU's own past and by its siblings in the run; finds slow SMs and other load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuwarden.features.active_test.judging.outcome import BANDWIDTH_LOW, SM_SLOW, Defect
from gpuwarden.features.active_test.judging.past import PastTest, band, measured, own_median
from gpuwarden.features.active_test.judging.thresholds import (
    ALL_OFF,
    AN_HOUR_APART,
    CLOCKS_SET,
    DEEP,
    FIGURES,
    FLOOR,
    MEASURED,
    POWER_CAP,
    SIBLINGS_LEAST,
    SM_OFF_CHUNKS,
    SM_OFF_SHARE,
    SMS_OFF_MOST,
    Figure,
)
from gpuwarden.health.model import Severity
from gpuwarden.health.statistics import median
from gpuwarden_collectors.active_test.facts import GpuTest, KernelMeasured
from gpuwarden_collectors.dataclass import dataclass


def alike(test: GpuTest, other: GpuTest) -> bool:
    """True if the figures of two GPUs in one run can be compared."""
    return _key(test) == _key(other) and test.name == other.name and test.level is other.level


def _key(test: GpuTest) -> tuple[str, int, int | None, bool]:
    return test.driver, test.kernels_version, test.power_limit, bool(test.reasons & CLOCKS_SET)


def of_same_key(test: GpuTest, past: PastTest) -> bool:
    """True if the figures of a past test of the same board can be compared with those of this one."""
    same = (past.driver, past.kernels_version, past.power_limit, past.clocks_set) == _key(test)
    return same and past.level is test.level and past.band == band(test.temperature)


# --- other load on the GPU


def disturbed(test: GpuTest, siblings: Sequence[GpuTest], past: Sequence[PastTest]) -> str:
    """Return why the speeds do not count: all SMs were slower together, so something else ran. Empty if nothing did."""
    for kernel in test.kernels:
        cycles = [kernel.cycles_least or kernel.cycles]
        cycles += _cycles_of_siblings(kernel, [other for other in siblings if alike(test, other)])
        own = own_median(past, f"cycles_{kernel.kernel}", lambda past_test: _same_code(test, past_test))
        usual = min([value for value in (*cycles, own) if value], default=0.0)
        most = max(kernel.cycles_most, kernel.cycles)
        if usual and most > usual * (1 + ALL_OFF):
            return f"{kernel.kernel}: all SMs together needed {most / usual - 1:.1%} more cycles than they do alone: something else ran on the GPU"
        if len(_slow_sms(kernel)) >= SMS_OFF_MOST:
            return f"{kernel.kernel}: {SMS_OFF_MOST} SMs or more were off together: something else ran on the GPU"
    return ""


def _same_code(test: GpuTest, past: PastTest) -> bool:
    """Return True if cycles can be compared: they depend on the compiled kernel only, not on clock, limit or heat."""
    return (past.name, past.driver, past.kernels_version) == (test.name, test.driver, test.kernels_version)


def _cycles_of_siblings(kernel: KernelMeasured, siblings: Sequence[GpuTest]) -> list[float]:
    cycles = [other.cycles for sibling in siblings for other in sibling.kernels if other.kernel == kernel.kernel]
    return [median(cycles)] if len(cycles) >= SIBLINGS_LEAST else []


# --- one SM


def slow_sms(test: GpuTest) -> Iterator[Defect]:
    deviations: dict[int, tuple[str, float]] = {}
    for kernel in test.kernels:
        for sm, off in _slow_sms(kernel):
            if abs(off) > abs(deviations.get(sm, ("", 0.0))[1]):
                deviations[sm] = kernel.kernel, off
    if deviations:
        named = ", ".join(f"{sm} ({kernel} {off:+.2%})" for sm, (kernel, off) in sorted(deviations.items()))
        text = f"cycles of SM {named} differ from those of the other SMs"
        yield Defect(code=SM_SLOW, detail="", severity=Severity.WARNING, text=text)


def _slow_sms(kernel: KernelMeasured) -> list[tuple[int, float]]:
    if kernel.chunks < SM_OFF_CHUNKS:
        return []
    return [
        (outlier.sm, outlier.worst) for outlier in kernel.outliers if outlier.chunks >= SM_OFF_SHARE * kernel.chunks
    ]


# --- speeds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """One figure with its references; None for a reference that is not known."""

    figure: Figure
    value: float
    own: float | None
    siblings: float | None
    floor: float | None

    def below(self, share: float) -> list[bool]:
        """Compare the value with own past and siblings, if known: True if it is lower by more than `share`."""
        return [self.value < usual * (1 - share) for usual in (self.own, self.siblings) if usual is not None]

    @property
    def slow(self) -> bool:
        """True if the value is below own past, and siblings if known; far below either; or below the floor of its board."""
        below = self.own is not None and all(self.below(self.figure.drop))
        return below or any(self.below(DEEP)) or self._below_floor

    @property
    def as_usual(self) -> bool:
        """True if at least one known reference (own past, siblings, floor) shows the value to be as usual."""
        references = [usual for usual in (self.own, self.siblings, self.floor) if usual is not None]
        return any(self.value >= usual * (1 - self.figure.drop) for usual in references)

    @property
    def _below_floor(self) -> bool:
        return self.floor is not None and self.value < self.floor * (1 - FLOOR)

    @property
    def deep(self) -> bool:
        return self.own is not None and self.siblings is not None and all(self.below(DEEP))

    @property
    def text(self) -> str:
        references = (("own median", self.own), ("siblings", self.siblings), ("measured on such boards", self.floor))
        usual = ", ".join(f"{label} {_print(self.figure, value)}" for label, value in references if value is not None)
        return f"{self.figure.title}: {_print(self.figure, self.value)} {self.figure.unit}; {usual}"


def _print(figure: Figure, value: float) -> str:
    return f"{value * figure.scale:,.4g}" if value * figure.scale < 1000 else f"{value * figure.scale:,.0f}"


def slow_figures(
    test: GpuTest, siblings: Sequence[GpuTest], past: Sequence[PastTest]
) -> tuple[list[Defect], tuple[str, ...], tuple[str, ...]]:
    """Judge the speeds of one GPU.

    Returns the defects, the names of figures so slow that a second time is a failure, and the names of findings on which the test
    leaves it open: their figure was not measured, or no known reference shows it to be as usual.
    """
    defects: list[Defect] = []
    deep: list[str] = []
    unjudged: list[str] = []
    values = measured(test)
    others = [measured(other) for other in siblings if alike(test, other)]
    for figure in FIGURES:
        if (value := values.get(figure.name)) is None:
            unjudged.append(figure.finding)
            continue
        compared = _Compared(
            figure=figure,
            value=value,
            siblings=_of_siblings(others, figure.name),
            own=own_median(
                [earlier for earlier in past if not earlier.found(figure.finding)],
                figure.name,
                lambda past_test: of_same_key(test, past_test),
            ),
            floor=MEASURED.get((test.name, test.power_limit or 0), {}).get(figure.name),
        )
        if not compared.as_usual:
            unjudged.append(figure.finding)
        if not compared.slow:
            continue
        counts = compared.deep and not _excused(test)
        deep += [figure.name] if counts else []
        failed = counts and _deep_before(figure.name, test, past)
        severity = Severity.FAILURE if failed else Severity.WARNING
        defects.append(Defect(code=figure.code, detail=figure.detail, severity=severity, text=compared.text))
    return defects, tuple(deep), tuple(dict.fromkeys(unjudged))


def _of_siblings(others: Sequence[dict[str, float]], figure: str) -> float | None:
    values = [value for other in others if (value := other.get(figure)) is not None]
    return median(values) if len(values) >= SIBLINGS_LEAST else None


def _excused(test: GpuTest) -> bool:
    """Return True if the driver gives a reason for a low clock: then a low speed is a warning at most."""
    expected = POWER_CAP if any(kernel.kernel == "bf16" for kernel in test.kernels) else 0
    return bool(test.reasons & ~expected)


def _deep_before(figure: str, test: GpuTest, past: Sequence[PastTest]) -> bool:
    """Return True if a test an hour ago or more found the figure just as low, and none since then better."""
    for earlier in sorted(past, key=lambda each: each.at.wall, reverse=True):
        if not of_same_key(test, earlier) or figure not in earlier.values():
            continue
        if figure not in earlier.deep.split():
            return False
        if test.started.wall - earlier.at.wall >= AN_HOUR_APART:
            return True
    return False


def asymmetric(tests: Sequence[GpuTest], drop: float) -> Iterator[tuple[str, Defect]]:
    """Yield, for peers that read each other at different speeds, the slower reader and its defect."""
    speeds = {(test.uuid, peer.peer): peer.speed for test in tests for peer in test.peers if peer.speed > 0}
    for (reader, peer), speed in speeds.items():
        back = speeds.get((peer, reader))
        if back is not None and speed < back * (1 - drop):
            text = f"reading peer {peer}: {speed / 1e9:.4g} GB/s; {back / 1e9:.4g} the other way"
            yield reader, Defect(code=BANDWIDTH_LOW, detail="peers", severity=Severity.WARNING, text=text)
