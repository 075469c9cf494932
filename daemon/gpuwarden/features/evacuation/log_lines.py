"""The log lines of an evacuation's events."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwarden.features.evacuation.policy.model import BY_EXIT, BY_STEP
from gpuwarden.health.model import Event, EventKind

Line = tuple[str, str]

WITHOUT_CHECKPOINT = {BY_EXIT: "signalled process ended", BY_STEP: "job ended before acknowledging"}
"""Texts for SAVED without `saved`. A process that ends may have acknowledged before by a file, which names no process."""


def _signalling(event: Event) -> Line:
    if event.data.get("way") != "none":
        return "info", "signalling job"
    return "info", "marking job before its signal" if event.data.get("marking") else "job not signalled"


def _signalled(event: Event) -> Line:
    if event.data.get("result") == "unknown":
        return "warning", "unknown whether the job got its signal"
    return "info", "job signalled"


def _saved(event: Event) -> Line:
    if event.data.get("saved"):
        return "info", "checkpoint acknowledged"
    return "info", WITHOUT_CHECKPOINT.get(str(event.data.get("by")), "acknowledged without a checkpoint")


LINES: Mapping[EventKind, Line | Callable[[Event], Line]] = {
    EventKind.DEPARTING: ("warning", "evacuation begun"),
    EventKind.SIGNALLING: _signalling,
    EventKind.SIGNALLED: _signalled,
    EventKind.SAVED: _saved,
    EventKind.REQUEUED: ("info", "job requeued"),
    EventKind.NOT_REQUEUED: ("warning", "job not requeued"),
    EventKind.FINAL_NODE_STATE: ("warning", "final node state"),
    EventKind.APPROVING: ("warning", "approving the termination early"),
    EventKind.APPROVED: ("warning", "termination approval outcome"),
    EventKind.DEPARTED: ("info", "evacuation over"),
}
