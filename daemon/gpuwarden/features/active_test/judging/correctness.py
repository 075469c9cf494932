"""Wrong results of a test: memory, kernels, copies, error counters, a hung driver. They count on a shared GPU, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from gpuwarden.features.active_test.judging.outcome import TEST_FAILED, TEST_HUNG, ActiveVerdict, Defect
from gpuwarden.features.active_test.judging.past import PastTest
from gpuwarden.features.active_test.judging.thresholds import AN_HOUR_APART, CORRECTED_A_SECOND
from gpuwarden.health.model import Severity
from gpuwarden_collectors.active_test.facts import GpuTest, Obstacle

W, F = Severity.WARNING, Severity.FAILURE
NAMED_MOST = 4
"""Places that a text names."""
UNCORRECTED = ("ecc_uncorrected_volatile", "ecc_uncorrected_aggregate")
AS_ALWAYS = {
    "remapped_rows_uncorrectable": "rows remapped for uncorrectable errors",
    "retired_pages_double_bit": "pages retired for double-bit errors",
    "pcie_fatal_errors": "fatal PCIe errors",
}
"""Counters that only hardware errors increase, and what they count."""
CORRECTED = "ecc_corrected_volatile"


def defect(detail: str, severity: Severity, text: str) -> Defect:
    return Defect(code=TEST_FAILED, detail=detail, severity=severity, text=text)


def wrong_results(runs: Sequence[GpuTest], past: Sequence[PastTest]) -> Iterator[Defect]:
    """Yield the wrong results of one GPU. `runs`: its tests in this run, `past`: its tests of the last 28 days."""
    for check in _CHECKS:
        yield from check(runs, past)


def wrong_once(runs: Sequence[GpuTest]) -> bool:
    """Return True if a result was wrong once: three more tests of this GPU decide whether the fault lasts."""
    return any(defect.severity is W and defect.detail in ("memory", "compute") for defect in wrong_results(runs, ()))


def _memory(runs: Sequence[GpuTest], _: Sequence[PastTest]) -> Iterator[Defect]:
    tests = [run.memory for run in runs if run.memory is not None and run.memory.mismatches > 0]
    if not tests:
        return
    marches = [
        {(number, deviation.march, deviation.offset) for deviation in test.first} for number, test in enumerate(tests)
    ]
    offsets = Counter(offset for places in marches for _, _, offset in places)
    bits = next((deviation.expected ^ deviation.found for test in tests for deviation in test.first), 0)
    many = sum(test.mismatches for test in tests)
    again = [offset for offset, times in offsets.items() if times > 1]
    places = ", ".join(f"{offset:#x}" for offset in list(again or offsets)[:NAMED_MOST])
    text = f"memory: {many} wrong 32-bit words, first at {places or 'an unknown place'} (bits {bits:#010x})"
    if any(run.ecc for run in runs if run.memory is not None and run.memory.mismatches > 0):
        yield defect("memory", F, f"{text}, with ECC on")
    elif again or many > sum(test.tested // 4 for test in tests):
        yield defect("memory", F, f"{text}, twice at one place")
    else:
        yield defect("memory", W, f"{text}, each place once; ECC is off or not known")


def _compute(runs: Sequence[GpuTest], past: Sequence[PastTest]) -> Iterator[Defect]:
    wrong: Counter[int] = Counter()
    kernels: dict[str, None] = {}
    unnamed = times = 0
    for kernel in (kernel for run in runs for kernel in run.kernels):
        for deviation in kernel.deviations:
            wrong[deviation.sm] += max(1, deviation.chunks)
        unnamed += max(0, kernel.deviating - len(kernel.deviations))
        if kernel.deviations or kernel.deviating:
            kernels[kernel.kernel] = None
            times += max(1, kernel.wrong_chunks, *(deviation.chunks for deviation in kernel.deviations))
    if not times:
        return
    sms = ", ".join(f"{sm} ({chunks}x)" for sm, chunks in wrong.most_common(NAMED_MOST))
    text = f"{', '.join(kernels)}: wrong results on SM {sms or 'not named'}"
    text += f", and on {more} more" if (more := max(0, len(wrong) - NAMED_MOST) + unnamed) else ""
    before = sum(f"{TEST_FAILED}.compute" in earlier.findings for earlier in past)
    if times > 1:  # two SMs that are wrong in one chunk count once: one event on the board may affect both
        yield defect("compute", F, text)
    elif before:
        yield defect("compute", F, f"{text}; results were wrong in {before} other tests of the last 28 days")
    else:
        yield defect("compute", W, f"{text}, once; a second one within 28 days is a failure")


def _transfer(runs: Sequence[GpuTest], past: Sequence[PastTest]) -> Iterator[Defect]:
    parts = []
    if words := sum(run.pcie.mismatches for run in runs if run.pcie is not None):
        parts.append(f"PCIe: {words} wrong 32-bit words copied")
    peers = Counter[str]()
    for peer in (peer for run in runs for peer in run.peers):
        peers[peer.peer] += peer.mismatches
    parts += [f"{words} wrong 32-bit words read from {peer}" for peer, words in peers.most_common(NAMED_MOST) if words]
    if not parts:
        return
    again = len([run for run in runs if _transferred_wrong(run)]) > 1
    before = any(f"{TEST_FAILED}.transfer" in earlier.findings for earlier in past)
    yield defect("transfer", F if again or before else W, "; ".join(parts))


def _transferred_wrong(run: GpuTest) -> bool:
    return bool(run.pcie is not None and run.pcie.mismatches) or any(peer.mismatches for peer in run.peers)


def _counters(runs: Sequence[GpuTest], _: Sequence[PastTest]) -> Iterator[Defect]:
    grown: Counter[str] = Counter()
    for growth in (growth for run in runs for growth in run.growth or ()):
        grown[growth.reading] += max(0, growth.by)
    errors = (
        [f"{max(grown[name] for name in UNCORRECTED)} uncorrectable ECC errors"]
        if any(map(grown.get, UNCORRECTED))
        else []
    )
    errors += [f"{text} ({grown[name]})" for name, text in AS_ALWAYS.items() if grown[name] > 0]
    if errors:
        yield defect("errors", F, f"during the test: {', '.join(errors)}")
    seconds = sum(run.seconds for run in runs)
    if grown[CORRECTED] > CORRECTED_A_SECOND * max(1.0, seconds):
        yield defect("errors", W, f"{grown[CORRECTED]} corrected ECC errors in {seconds:.0f} s of the test")


def _hung(runs: Sequence[GpuTest], past: Sequence[PastTest]) -> Iterator[Defect]:
    """Yield a hang: once, the host or a slow driver start may explain it; again an hour later it is a failure."""
    hung = next((run for run in runs if run.obstacle is Obstacle.HUNG), None)
    if hung is None:
        return
    before = _hung_before(hung, past)
    text = f"{hung.text}; the same an hour ago or more, and no test has ended well since" if before else hung.text
    yield Defect(code=TEST_HUNG, detail="", severity=F if before else W, text=text)


def _hung_before(test: GpuTest, past: Sequence[PastTest]) -> bool:
    for earlier in sorted(past, key=lambda each: each.at.wall, reverse=True):
        if earlier.verdict in (ActiveVerdict.NOTHING_FOUND, ActiveVerdict.WARNING):
            return False
        if earlier.found(TEST_HUNG) and test.started.wall - earlier.at.wall >= AN_HOUR_APART:
            return True
    return False


_CHECKS: tuple[Callable[[Sequence[GpuTest], Sequence[PastTest]], Iterator[Defect]], ...] = (
    _memory,
    _compute,
    _transfer,
    _counters,
    _hung,
)
