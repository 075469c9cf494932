"""Selects the events that add a day to the memory of lemons, and their owner (a board or the node)."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.event_data import read
from gpuwarden.health.events import Reset
from gpuwarden.health.lemons.memory import NODE_OWNER, What
from gpuwarden.health.memory import State, board, case, failures
from gpuwarden.health.model import Event, EventKind, Key, Severity

REMAPS = ("row_remap_pending", "row_remap_failed", "xid.63", "xid.64")
OF_THE_NODE = ("driver_unresponsive",)
"""Failures that name no GPU but are still caused by hardware."""


def days_of(state: State, event: Event) -> Iterator[tuple[str, What]]:
    """Yield what `event` adds to the memory of lemons, with its owner. `state` is the state before the event."""
    key = event.key
    if event.kind == EventKind.BOOT and event.boot_id != state.boot_id:
        yield from _owned(state, What.REBOOTS)
    elif event.kind == EventKind.EXCLUDED:
        yield from _owned(state, What.EXCLUSIONS)
    elif event.kind == EventKind.REQUEUED:
        yield from _owned(state, What.REQUEUES)
    elif key is None:
        return
    elif event.kind == EventKind.RESET and read(Reset, event).ok:
        stood = failures(state, key.subject.slot, event.at.wall)
        yield from ((board(state, track.key.subject.slot), What.RESETS) for track in stood)
    elif event.kind in (EventKind.RAISED, EventKind.XID) and (owner := _owner(state, key)):
        before = state.tracks.get(key)
        active = before is not None and before.raised
        severity = before.severity if event.kind == EventKind.XID and before is not None else event.data.get("severity")
        failed = severity == Severity.FAILURE
        if failed and event.kind == EventKind.RAISED and not active:
            yield owner, What.FAILURES
        if failed and key.code == "xid" and (active or event.kind == EventKind.RAISED):
            yield owner, What.XIDS
        if case(state, key)[1] in REMAPS:
            yield owner, What.REMAPS


def _owner(state: State, key: Key) -> str:
    """Return the board of a finding, the node for its switches and its driver, or "" if the finding does not count."""
    if key.subject.slot in state.pins:
        return board(state, key.subject.slot)
    return NODE_OWNER if key.subject.kind == "switch" or key.code in OF_THE_NODE else ""


def _owned(state: State, kind: What) -> Iterator[tuple[str, What]]:
    """Yield `kind` for each owner of an active failure."""
    for track in state.tracks.values():
        if track.raised and track.severity is Severity.FAILURE and (owner := _owner(state, track.key)):
            yield owner, kind
