"""Repairs as metrics: rows of the table."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.features.repair.model import Outcome, StepKind
from gpuwarden.features.repair.shown import STATES, of
from gpuwarden.publish.metrics.lines import COUNTER, GAUGE
from gpuwarden.publish.metrics.row import Metric, Sample
from gpuwarden.publish.snapshot import Snapshot


def _repairs(snapshot: Snapshot) -> Iterator[Sample]:
    """Yield steps by outcome, every pair once repairs are allowed or there was any."""
    shown = of(snapshot)
    if shown.allowed or shown.counts:
        for step in StepKind:
            yield from (((step, outcome), shown.counts.get(f"{step}_{outcome}", 0)) for outcome in Outcome)


def _state(snapshot: Snapshot) -> Iterator[Sample]:
    shown = of(snapshot)
    if shown.allowed:
        yield from (((state,), int(state == shown.state)) for state in STATES)


METRICS: tuple[Metric, ...] = (
    Metric(
        "gpuwarden_repairs_total",
        COUNTER,
        ("step", "outcome"),
        _repairs,
        "Steps of repairs by what came of them, since the ledger began: done, rebooted, failed, refused (nothing was done), unknown, and observed (mode "
        "observe: the step would have been begun). No series while repair.steps is empty.",
        zeros=False,
        default=False,
    ),
    Metric(
        "gpuwarden_repair_state",
        GAUGE,
        ("state",),
        _state,
        "1 for the state of repairs of this node, 0 for the others: clear (nothing is to be repaired), waiting (something forbids the next step, or the last one ended within 3 minutes), running, "
        "person (the steps that are known and allowed were tried, or refused, and did not help). No series while repair.steps is empty.",
    ),
)
