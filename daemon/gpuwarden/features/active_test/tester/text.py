"""The report for people: a row for each GPU, what was found, what was not tested, what to do next. "Nothing found" is not "healthy"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuwarden.cli.text import table
from gpuwarden.features.active_test.judging.outcome import ActiveVerdict, Outcome
from gpuwarden.features.active_test.tester.report import Report
from gpuwarden.health.model import Severity
from gpuwarden_collectors.active_test.facts import GpuTest, Growth, KernelMeasured, MemoryMeasured, Obstacle
from gpuwarden_collectors.active_test.level import Level

VERDICTS = {
    ActiveVerdict.NOTHING_FOUND: "nothing found",
    ActiveVerdict.WARNING: "warning",
    ActiveVerdict.FAILURE: "failure",
    ActiveVerdict.NO_VERDICT: "no verdict",
}
HEAD = ("GPU", "verdict", "memory tested", "verify", "write", "int8", "SM clock", "to GPU", "from GPU", "hottest")
_AT_FAILURE = "take the node out of scheduling (gpuwarden exclude), and have the board inspected"
_AT_WARNING = "test again when the node is free"
_WAIT = "test again when nobody uses the GPUs"
_LOOK = "before the GPU takes work again, see its findings (gpuwarden status) and the kernel log; then test again"
NEXT: Mapping[Obstacle | None, str] = {
    Obstacle.BUSY: _WAIT,
    Obstacle.DISTURBED: _WAIT,
    Obstacle.MEMORY_TAKEN: _WAIT,
    Obstacle.INTERRUPTED: "test again",
    Obstacle.UNSUPPORTED: "correct what is named above (gpuwarden doctor has more), and test again",
    Obstacle.RESET_FIRST: "drain the node, reset the GPU or reboot, and test again",
    Obstacle.HUNG: _LOOK,
    Obstacle.CRASHED: _LOOK,
    Obstacle.GPU_ERROR: _LOOK,
    Obstacle.FAILED_CALL: _LOOK,
    None: "test again: this test alone shows nothing about the GPU",
}
"""Next steps by the obstacle that left no verdict."""
_NONE = "-"
_GB, _TERA = 1e-9, 1e-12
_TENTH = 1e8  # ns


def shown(report: Report) -> Iterator[str]:
    """Lines, each safe for a terminal only after `clean`."""
    if report.obstacle is not None:
        yield f"not tested: {report.text}"
        yield f"verdict: {VERDICTS[report.verdict]} ({report.obstacle.shown})"
        return
    tests = report.first()
    rows = [_row(report, test) for test in tests]
    yield from table(HEAD, rows)
    for test in tests:
        yield from _details(report, test)
    yield from _without_verdict(report, tests)
    yield from report.notes
    yield from _untested(report, tests)
    yield f"verdict: {VERDICTS[report.verdict]}, level {report.level.value}, {report.seconds:.1f} s"
    yield from (f"to do: {text}" for text in dict.fromkeys(_next(report, tests)))


def _next(report: Report, tests: Sequence[GpuTest]) -> Iterator[str]:
    """Yield what to do next, the worst first."""
    defects = [finding for outcome in report.outcomes.values() for finding in outcome.findings]
    for severity, text in ((Severity.FAILURE, _AT_FAILURE), (Severity.WARNING, _AT_WARNING)):
        if codes := dict.fromkeys(defect.code for defect in defects if defect.severity is severity):
            yield f"{text}: {' and '.join(f'gpuwarden explain {code}' for code in codes)}"
            break
    for test in tests:
        outcome = report.outcomes.get(test.uuid)
        if outcome is None or outcome.verdict is ActiveVerdict.NO_VERDICT:
            yield NEXT[test.obstacle]


def _without_verdict(report: Report, tests: Sequence[GpuTest]) -> Iterator[str]:
    """Yield why GPUs got no verdict, once for all GPUs with the same reason."""
    same: dict[str, list[GpuTest]] = {}
    for test in tests:
        if (outcome := report.outcomes.get(test.uuid)) is not None and outcome.text:
            same.setdefault(outcome.text.replace(test.uuid, "the GPU"), []).append(test)
    for text, alike in same.items():
        yield f"{_name(report, alike[0]) if len(alike) == 1 else f'GPU {_indices(report, alike)}'}: {text}"


def _name(report: Report, test: GpuTest) -> str:
    return f"GPU {report.indices.get(test.uuid, '?')} ({test.slot}, {test.uuid})"


def _indices(report: Report, tests: Sequence[GpuTest]) -> str:
    return ", ".join(str(report.indices.get(test.uuid, test.slot)) for test in tests)


def _row(report: Report, test: GpuTest) -> Sequence[str]:
    memory, pcie = test.memory, test.pcie
    int8 = next((kernel for kernel in test.kernels if kernel.kernel == "int8"), None)
    return (
        str(report.indices.get(test.uuid, test.slot)),
        VERDICTS[report.outcomes[test.uuid].verdict] if test.uuid in report.outcomes else "",
        _NONE if memory is None else _share(memory),
        _speed(memory.verify if memory is not None else 0.0),
        _speed(memory.write if memory is not None else 0.0),
        _NONE if int8 is None or not int8.rate else f"{int8.rate * _TERA:,.0f} TOPS",
        _NONE if int8 is None or not int8.clock else f"{int8.clock:,.0f} MHz",
        _speed(pcie.to_device if pcie is not None else 0.0),
        _speed(pcie.to_host if pcie is not None else 0.0),
        _NONE if test.temperature_most is None else f"{test.temperature_most} °C",
    )


def _share(memory: MemoryMeasured) -> str:
    return f"{memory.tested / memory.total:.1%}" if memory.total else _NONE


def _speed(speed: float) -> str:
    return f"{speed * _GB:,.1f} GB/s" if speed else _NONE


def _details(report: Report, test: GpuTest) -> Iterator[str]:
    name = _name(report, test)
    outcome = report.outcomes.get(test.uuid, Outcome(verdict=ActiveVerdict.NO_VERDICT))
    for finding in outcome.findings:
        yield f"{name}: {finding.severity.value}: {finding.text}"
    for kernel in test.kernels:
        yield from (f"{name}: {text}" for text in _gaps(kernel))
    for peer in test.peers:
        read = f"GPU {report.indices.get(peer.peer, peer.peer)}"
        yield (
            f"{name}: could not read {read}: {peer.error}"
            if peer.error
            else f"{name}: reads {read} at {_speed(peer.speed)}"
        )
    if repeats := sum(each.uuid == test.uuid for each in report.tests) - 1:
        yield f"{name}: tested {repeats} more times, since its result was wrong once"
    yield from (f"{name}: {text}" for grown in test.growth or () if (text := _grown(grown)))


def _grown(grown: Growth) -> str:
    """Return the text of a counter's growth; empty if it is a time below a tenth of a second."""
    if not grown.reading.endswith("_ns"):
        return f"{grown.reading} grew by {grown.by}"
    reading = grown.reading.removesuffix("_ns").replace("_", " ")
    return f"{reading}: {grown.by * 1e-9:.1f} s of the test" if grown.by >= _TENTH else ""


def _gaps(kernel: KernelMeasured) -> Iterator[str]:
    if kernel.missing:
        yield f"{kernel.kernel} did not run on {len(kernel.missing)} of {kernel.sms} SMs"


def _untested(report: Report, tests: Sequence[GpuTest]) -> Iterator[str]:
    """Yield what no verdict of this level covers."""
    done = [test for test in tests if test.obstacle is None]
    if not done:
        return
    left = [
        text
        for text, missing in (
            ("compute (needs architecture 8.0 or later)", any(not test.kernels for test in done)),
            ("PCIe", any(test.pcie is None for test in done)),
            ("reads between GPUs", any(not test.peers for test in done)),
        )
        if missing
    ]
    if left:
        more = "" if report.level is Level.STANDARD else f": level {Level.STANDARD.value} tests the most"
        yield f"not tested: {', '.join(left)}{more}"
    if any(outcome.verdict is ActiveVerdict.NOTHING_FOUND for outcome in report.outcomes.values()):
        yield "a test that finds nothing does not prove that a GPU is healthy: docs/use/active-tests.md"
