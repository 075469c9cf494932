"""The status section and metrics of enforcement: pure functions of its part of the snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuwarden.policy.model import Act, Flag, NodeState, Owner, Result
from gpuwarden.publish.snapshot import Enforced, Snapshot, Wanted
from gpuwarden.publish.times import rfc3339, when

Document = dict[str, Any]

ACTS = tuple(act.value for act in Act)
RESULTS = tuple(result.value for result in Result)
_OTHERS = (Owner.FOREIGN.value, Flag.MAINTENANCE.value)

NOT_READ = "not read yet"
"""The error of a scheduler in the first moments of the daemon."""


def document(snapshot: Snapshot) -> Document:
    """Return the enforcement section of the status document."""
    enforced = snapshot.enforced
    return {
        "schedulers": [_scheduler(name, enforced.node_states.get(name)) for name in enforced.actuators],
        "wanted": [_wanted(intent) for intent in enforced.pending],
        "would": [_wanted(intent) for intent in enforced.would],
        "blocked": dict(enforced.blocked),
        "breaker": enforced.breaker,
        "needs_person": list(enforced.person),
        "needs_person_why": list(enforced.person_why),
        "order": enforced.order or None,
        "overridden": _overridden(enforced),
        "notifications": [
            {"target": receiver.target, "queued": receiver.queued, **receiver.counts, "error": receiver.error}
            for receiver in snapshot.receivers
        ],
    }


def _scheduler(name: str, state: NodeState | None) -> Document:
    if state is None or not state.reachable:
        return {"actuator": name, "reachable": False, "error": NOT_READ if state is None else state.error}
    return {
        "actuator": name,
        "reachable": True,
        "error": "",
        "state": state.state,
        "excluded": _excluded_for(state),
        "reason": (f"{state.reason} : {state.suffix}" if state.suffix else state.reason) or state.closed,
        "since": rfc3339(state.since) if state.since else None,
    }


def _excluded_for(state: NodeState) -> str | None:
    if state.owner is not Owner.NONE or state.closed:
        return state.why.value if state.why is not None else Owner.FOREIGN.value
    return Flag.MAINTENANCE.value if Flag.MAINTENANCE in state.flags else None


def _overridden(enforced: Enforced) -> Document | None:
    override = enforced.override
    if override is None or not enforced.overridden:
        return None
    return {"findings": list(enforced.overridden), "by": override.by, "since": when(override.at)}


def _wanted(wanted: Wanted) -> Document:
    intent = wanted.intent
    return {
        "intent": intent.act.value,
        "actuator": intent.actuator,
        "why": intent.why.value,
        "reason": intent.reason,
        "since": rfc3339(intent.at.wall),
        "text": wanted.text,
    }


# --- samples for metrics


def exclusions(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield 1 for each actuator and cause in force, else 0.

    Every pair exists from the start, so that no series first appears with its first exclusion, except maintenance,
    whose starts no alert counts.
    """
    in_force = set(snapshot.enforced.excluded)
    causes = ("failure", "termination", "operator", Owner.FOREIGN.value)
    pairs = [(actuator, cause) for actuator in snapshot.enforced.actuators for cause in causes] + [("", "operator")]
    planned = [(actuator, cause) for actuator, cause in in_force if cause == Flag.MAINTENANCE.value]
    return (
        ((actuator, _owner(cause), cause), int((actuator, cause) in in_force)) for actuator, cause in pairs + planned
    )


def _owner(cause: str) -> str:
    return "other" if cause in _OTHERS else "gpuwarden"


def intents(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield counts by act and result, if there is or was an actuator. Every pair exists from the start, so that no
    series first appears with its first intent.
    """
    counts = snapshot.enforced.counts
    if snapshot.enforced.actuators or any(counts.values()):
        for act in ACTS:
            yield from (((act, result), counts.get(f"{act}_{result}", 0)) for result in RESULTS)


def exclusions_since(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], float]]:
    """Yield the start of each of gpuwarden's exclusions in force, by the scheduler's clock."""
    for actuator, owner in snapshot.enforced.excluded:
        state = snapshot.enforced.node_states.get(actuator)
        if state is not None and state.why is not None and state.since:
            yield (actuator, _owner(owner), owner), state.since


def answering(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    for name in snapshot.enforced.actuators:
        if (state := snapshot.enforced.node_states.get(name)) is not None:
            yield (name,), int(state.reachable)


def queued(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    return (((receiver.target,), receiver.queued) for receiver in snapshot.receivers)


def notified(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    return (
        ((receiver.target, outcome), n) for receiver in snapshot.receivers for outcome, n in receiver.counts.items()
    )
