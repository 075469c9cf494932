"""What is published of acting. Pure functions of what acting shows of itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gpuwarden.policy.model import Act, Owner, Result, Standing
from gpuwarden.publish.notices import notice_document
from gpuwarden.publish.snapshot import Acted, Snapshot, Wanted
from gpuwarden.publish.times import rfc3339

Document = dict[str, Any]

ACTS = tuple(act.value for act in Act)
RESULTS = tuple(result.value for result in Result)


def with_acted(snapshot: Snapshot, acted: Acted) -> Snapshot:
    excluded_by = tuple(f"{actuator}:{owner}" if actuator else owner for actuator, owner in acted.excluded)
    notice = None if acted.notice is None else notice_document(acted.notice)
    return replace(snapshot, acted=acted, excluded_by=excluded_by, notice=notice)


def document(acted: Acted) -> Document:
    """What `status` says of acting."""
    return {
        "schedulers": [_standing(name, acted.standings.get(name)) for name in acted.actuators],
        "wanted": [_wanted(one) for one in acted.pending],
        "would": [_wanted(one) for one in acted.would],
        "blocked": dict(acted.blocked),
        "breaker": acted.breaker,
        "needs_person": list(acted.person),
        "order": acted.order or None,
        "notifications": [
            {"target": told.target, "queued": told.queued, **told.counts, "trouble": told.error} for told in acted.told
        ],
    }


def _standing(name: str, standing: Standing | None) -> Document:
    if standing is None or not standing.reachable:
        return {
            "actuator": name,
            "reachable": False,
            "trouble": "not asked yet" if standing is None else standing.trouble,
        }
    ours = standing.why.value if standing.why is not None else Owner.FOREIGN.value
    return {
        "actuator": name,
        "reachable": True,
        "trouble": "",
        "state": standing.state,
        "excluded": None if standing.owner is Owner.NONE else ours,
        "reason": f"{standing.reason} : {standing.suffix}" if standing.suffix else standing.reason,
        "since": rfc3339(standing.since) if standing.since else None,
    }


def _wanted(wanted: Wanted) -> Document:
    return {
        "intent": wanted.act.value,
        "actuator": wanted.actuator,
        "why": wanted.why.value,
        "reason": wanted.reason,
        "since": rfc3339(wanted.at.wall),
        "text": wanted.text,
    }


# --- samples for metrics


def exclusions(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    """Each actuator with each cause, so that no series is born with its first exclusion."""
    stands = set(snapshot.acted.excluded)
    causes = ("failure", "termination", "operator", Owner.FOREIGN.value)
    pairs = [(actuator, cause) for actuator in snapshot.acted.actuators for cause in causes] + [("", "operator")]
    return (((actuator, _owner(cause), cause), int((actuator, cause) in stands)) for actuator, cause in pairs)


def _owner(cause: str) -> str:
    return "other" if cause == Owner.FOREIGN.value else "gpuwarden"


def intents(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    counts = snapshot.acted.counts
    return (((act, result), counts.get(f"{act}_{result}", 0)) for act in ACTS for result in RESULTS)


def exclusions_since(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], float]]:
    """Of what stands of ours, by the clock of whoever keeps it."""
    for actuator, owner in snapshot.acted.excluded:
        standing = snapshot.acted.standings.get(actuator)
        if standing is not None and standing.why is not None and standing.since:
            yield (actuator, _owner(owner), owner), standing.since


def answering(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    for name in snapshot.acted.actuators:
        if (standing := snapshot.acted.standings.get(name)) is not None:
            yield (name,), int(standing.reachable)


def queued(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    return (((told.target,), told.queued) for told in snapshot.acted.told)


def told(snapshot: Snapshot) -> Iterator[tuple[tuple[str, ...], int]]:
    return (((one.target, outcome), n) for one in snapshot.acted.told for outcome, n in one.counts.items())
