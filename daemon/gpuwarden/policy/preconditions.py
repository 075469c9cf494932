"""May this be written, given what stands there? One answer for deciding and for the look right before the write."""

from __future__ import annotations

from gpuwarden.policy.model import Act, Flag, Intent, Outcome, Owner, Result, Standing, Why

RANK = {Why.FAILURE: 0, Why.TERMINATION: 1, Why.OPERATOR: 2}
"""A reason of ours gives way to one of higher rank."""
CLOCK_APART = 1.5
"""Seconds by which two readings of one exclusion's time may differ: schedulers keep whole ones."""


def answer(intent: Intent, standing: Standing) -> Outcome | None:
    """What came of it without a write, or None if it is to be written now."""
    return _exclude(intent, standing) if intent.act is Act.EXCLUDE else _restore(intent, standing)


def same(reason: str, since: float, standing: Standing) -> bool:
    """Whether exactly this exclusion stands: a text of ours that somebody wrote again by hand is theirs."""
    apart = abs(since - standing.since) if since and standing.since else 0.0
    return standing.owner is Owner.OURS and standing.reason == reason and apart <= CLOCK_APART


def _exclude(intent: Intent, standing: Standing) -> Outcome | None:
    match standing.owner:
        case Owner.FOREIGN:
            return Outcome(result=Result.DROPPED, text=f"it is excluded by somebody else: {_shown(standing)}")
        case Owner.OURS if standing.reason == intent.reason:
            return Outcome(result=Result.ALREADY, since=standing.since)
        case Owner.OURS if standing.suffix:
            return Outcome(result=Result.DROPPED, text=f"it is excluded, and the scheduler added {standing.suffix!r}")
        case Owner.OURS if standing.why is not None and not _gives_way(standing.why, intent.why):
            return Outcome(result=Result.DROPPED, text=f"it is excluded by us already: {standing.reason}")
    return _barred(standing, frozenset())


def _gives_way(stands: Why, to: Why) -> bool:
    """A failure's text is not refreshed: since when the node is out would be lost."""
    return RANK[stands] < RANK[to] or (stands is to and to is not Why.FAILURE)


def _restore(intent: Intent, standing: Standing) -> Outcome | None:
    match standing.owner:
        case Owner.NONE:
            return Outcome(result=Result.ALREADY, text="no exclusion of ours stands")
        case Owner.FOREIGN:
            return Outcome(result=Result.DROPPED, text=f"it is excluded by somebody else: {_shown(standing)}")
    if standing.suffix:
        return Outcome(result=Result.DROPPED, text=f"the scheduler added {standing.suffix!r}: lift it there")
    if intent.reason and not same(intent.reason, intent.since, standing):
        return Outcome(
            result=Result.DROPPED, text=f"another exclusion stands than the one to be lifted: {standing.reason}"
        )
    allowed = frozenset({Flag.DOWN}) if standing.why is Why.TERMINATION else frozenset()
    return _barred(standing, allowed)


def _barred(standing: Standing, allowed: frozenset[Flag]) -> Outcome | None:
    flags = sorted(standing.flags - allowed)
    if not flags:
        return None
    return Outcome(result=Result.DROPPED, text=f"the scheduler says {', '.join(flags)} of this node ({standing.state})")


def _shown(standing: Standing) -> str:
    return standing.reason or standing.state or "no reason given"
