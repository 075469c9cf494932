"""The metrics of evacuations."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.features.evacuation.policy.model import Given
from gpuwarden.features.evacuation.shown import evacuations
from gpuwarden.publish.metrics.lines import COUNTER, HISTOGRAM
from gpuwarden.publish.metrics.row import Metric, Sample
from gpuwarden.publish.snapshot import Snapshot

OUTCOMES = ("sent", "local_only", "watched", "unsent", "unknown")
"""The results of signalling a job; `local_only`: sent, but the job has other nodes, whose ranks were not signalled."""


def _signalled(snapshot: Snapshot) -> Iterator[Sample]:
    """Return counts by outcome, every outcome from the start: no series appears only with its first job."""
    return (((outcome,), evacuations(snapshot).outcomes.get(outcome, 0)) for outcome in OUTCOMES)


def _signal_seconds(snapshot: Snapshot) -> Iterator[Sample]:
    """Yield the histogram wherever a notice may come, so that it is scraped before its first value."""
    times = evacuations(snapshot).signal_seconds
    if snapshot.notice_sources or any(times.counts):
        yield from times.samples()


def _acknowledged(snapshot: Snapshot) -> Iterator[Sample]:
    """Return counts by acknowledgement, every one from the start, as in `_signalled`."""
    return (((answer.value,), evacuations(snapshot).answers.get(answer, 0)) for answer in Given)


METRICS = (
    Metric(
        "gpuwarden_jobs_signalled_total",
        COUNTER,
        ("outcome",),
        _signalled,
        "Jobs to be signalled because their machine ends or a GPU failed, by outcome. Outcome local_only: only the ranks on this node were signalled, "
        "and the job has other nodes; watched: another node signals the job; unsent: not signalled; unknown: the daemon was killed, or the "
        "controller did not answer, while the signal was sent.",
    ),
    Metric(
        "gpuwarden_jobs_acknowledged_total",
        COUNTER,
        ("answer",),
        _acknowledged,
        "Jobs by their acknowledgement of the notice. Answer saved: the job has saved; unsaved: a rank reports that it saved nothing; "
        "ended: all signalled processes ended without an acknowledgement. A job with two answers counts for both.",
    ),
    Metric(
        "gpuwarden_notice_to_signal_seconds",
        HISTOGRAM,
        ("le",),
        _signal_seconds,
        "Time from the arrival of a notice on this node until a running job is signalled. No series without a source of notices before the first job.",
    ),
)
