"""Active tests as metrics: rows of the table."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.features.active_test.judging.outcome import ActiveVerdict
from gpuwarden.features.active_test.judging.past import PastTest
from gpuwarden.features.active_test.snapshot import GATE_STATES, figures, of
from gpuwarden.publish.metrics.lines import COUNTER, GAUGE
from gpuwarden.publish.metrics.row import GPU, Metric, Sample, gpu_labels
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.active_test.level import Level


def _runs(snapshot: Snapshot) -> Iterator[Sample]:
    """Return the tests by level and result: every pair once any test was run, none before."""
    counts = of(snapshot).counts
    if not counts:
        return iter(())
    return (((level, result), counts.get(f"{level}_{result}", 0)) for level in Level for result in ActiveVerdict)


def _last(snapshot: Snapshot) -> Iterator[Sample]:
    return (
        ((*labels, result.level.value), result.at.wall) for labels, results in _by_gpu(snapshot) for result in results
    )


def _return_gate(snapshot: Snapshot) -> Iterator[Sample]:
    if (gate := of(snapshot).gate) is not None:
        yield from (((state,), int(state == gate.state)) for state in GATE_STATES)


def _results(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, tests in _by_gpu(snapshot):
        yield from (((*labels, result.value), int(tests[-1].verdict is result)) for result in ActiveVerdict)


def _figure_samples(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, tests in _by_gpu(snapshot):
        newest = next((by_name for test in reversed(tests) if (by_name := figures(test))), {})
        yield from (((*labels, name), value) for name, value in newest.items())


def _by_gpu(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], tuple[PastTest, ...]]]:
    """Yield the label values (index, UUID, slot) and the tests of each GPU that was tested."""
    for gpu in snapshot.verdict.gpus:
        if tests := of(snapshot).results.get(gpu.slot):
            yield gpu_labels(gpu), tests


METRICS: tuple[Metric, ...] = (
    Metric("gpuwarden_test_runs_total", COUNTER, ("level", "result"), _runs,
           "Active tests of single GPUs, by level and result, since the ledger began. No series before the first test. Result no_verdict: the GPU was in "
           "use, or the test was interrupted or could not run.", default=False),
    Metric("gpuwarden_test_last_timestamp_seconds", GAUGE, (*GPU, "level"), _last,
           "Time of the last active test of this GPU at this level, Unix time. No series before the first test."),
    Metric("gpuwarden_test_result", GAUGE, (*GPU, "result"), _results,
           "1 for the result of the last active test of this GPU, 0 for the others. The result nothing_found does not prove that the GPU is healthy. "
           "No series before the first test."),
    Metric("gpuwarden_test_figure", GAUGE, (*GPU, "figure"), _figure_samples,
           "Speeds in the last active test of this GPU without other work on it: int8 in operations per second; in bytes per second verify and write (memory), "
           "to_device and to_host (PCIe), and peers (reads from other GPUs, median)."),
    Metric("gpuwarden_return_gate", GAUGE, ("state",), _return_gate,
           "1 for the state of the test before a return, 0 for the others: clear (none is due), waiting, running, person (an operator must act), impossible (this "
           "host cannot test, and returns without a test). No series while test.return_gate is off and repair.steps is empty.", default=False),
)  # fmt: skip
