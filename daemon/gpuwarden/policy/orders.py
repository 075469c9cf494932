"""Operators' orders, as events. They apply in both modes, and never change another party's exclusion."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Finding, Verdict
from gpuwarden.policy import reasons
from gpuwarden.policy.checkpoint import ordered, restored
from gpuwarden.policy.events import Lifted, NoticeEnded, Ordered
from gpuwarden.policy.model import HORIZON, OPERATOR, Act, Intent, Notice, Result, Settings, Why
from gpuwarden.policy.notices import MOVED, called_off, imminent, noticed
from gpuwarden.policy.situation import live
from gpuwarden.policy.state import Order, PolicyState, intent_key, outcome_data
from gpuwarden_collectors.facts import Stamp

LONGEST = 10_000
"""Most characters of a reason that are read."""


def exclude(by: str, text: str, boot_id: str, now: Stamp) -> Event:
    """The order that keeps the node excluded until an operator restores it. Raises ValueError for a blank reason."""
    if not text[:LONGEST].strip():
        raise ValueError("an exclusion needs a reason, for people who find this node excluded")
    return ordered(Order(reason=reasons.operator(by, text), by=by, at=now), boot_id)


class FailuresStand(ValueError):  # noqa: N818 - a state of the node
    """The node is not restored without `--force`: these `findings` are active failures."""

    def __init__(self, findings: Collection[Finding]) -> None:
        super().__init__(", ".join(str(finding.key) for finding in findings))
        self.findings = tuple(findings)


def restore(
    state: PolicyState,
    verdict: Verdict,
    actuators: Collection[str],
    *,
    by: str,
    boot_id: str,
    now: Stamp,
    settings: Settings,
    force: bool = False,
    untested: bool = False,
) -> list[Event]:
    """Events that restore the node: every exclusion of ours is lifted.

    While failures are active, an operator's exclusion is replaced without a gap by one for the failures. With `force`
    the failures are overridden until each has ended, the next boot, or the next `gpuwarden exclude`. Holds and intents
    at actuators other than these are forgotten, since nothing can be lifted there.

    Raises ValueError while the end of this machine is imminent, and, without `force` and `untested`, if a requirement
    of a feature is not met. Raises FailuresStand if failures are active and there is no other exclusion to end, or if
    mode observe would not exclude the node for them.
    """
    if imminent(state.notices, settings.horizon, now) is not None:
        raise ValueError(
            "the end of this machine is announced: cancel it first (gpuwarden notify-termination --cancel)"
        )
    failures = live(state, verdict)
    gone = unconfigured(state, actuators)
    forgotten = [event for name in gone for event in _forgotten(state, name, boot_id, now)]
    if failures and not force:
        operators = state.order is not None or any(hold.why is not Why.FAILURE for hold in state.holds.values())
        if not (settings.enforce and (operators or gone)):
            raise FailuresStand(failures)
        reason = reasons.failure(failures, {gpu.slot: gpu for gpu in verdict.gpus}, verdict.domain)
        ended = Ordered(order=Act.RESTORE, by=by or None, stays_out=True)
        return [
            Event(kind=EventKind.ORDERED, at=now, boot_id=boot_id, data=write(ended)),
            *forgotten,
            *(event for name in actuators for event in _left_to_failures(state, name, reason, boot_id, now)),
        ]
    if not (force or untested) and (why := _unmet(state, verdict, settings)):
        raise ValueError(why)
    return [
        *restored(state.overridden | {finding.key for finding in failures}, boot_id, now, by),
        *forgotten,
        *(event for name in actuators for event in _restore(state, name, boot_id, now)),
    ]


def _unmet(state: PolicyState, verdict: Verdict, settings: Settings) -> str:
    """The requirements of features that a restoration would ignore, for people; "" if there are none."""
    if not settings.enforce:
        return ""
    return "; ".join(filter(None, (requirement.unmet(verdict) for requirement in state.requirements.values())))


def _left_to_failures(state: PolicyState, name: str, reason: str, boot_id: str, now: Stamp) -> Iterator[Event]:
    """Replace an operator's pending exclusion by one for the failures, which overwrites it if it is already written."""
    pending = state.pending.get(name)
    if pending is None or pending.act is not Act.EXCLUDE or pending.why is not Why.OPERATOR:
        return
    yield from _dropped(state, name, boot_id, now)
    intent = Intent(
        act=Act.EXCLUDE,
        actuator=name,
        why=Why.FAILURE,
        reason=reason,
        at=now,
        replaces=pending.reason,
        key=intent_key(Act.EXCLUDE, name, boot_id, now),
    )
    yield Event(kind=EventKind.INTENDED, at=now, boot_id=boot_id, data=write(intent))


def unconfigured(state: PolicyState, actuators: Collection[str]) -> list[str]:
    """Actuators with a hold or a pending intent that are no longer configured."""
    return sorted({*state.holds, *state.pending} - set(actuators))


def _forgotten(state: PolicyState, name: str, boot_id: str, now: Stamp) -> Iterator[Event]:
    yield from _dropped(state, name, boot_id, now)
    if (hold := state.holds.get(name)) is not None:
        lifted = Lifted(actuator=name, why=hold.why, reason=hold.reason, by="forgotten: no longer configured")
        yield Event(kind=EventKind.LIFTED, at=now, boot_id=boot_id, data=write(lifted))


def _dropped(state: PolicyState, name: str, boot_id: str, now: Stamp) -> Iterator[Event]:
    if (pending := state.pending.get(name)) is not None:
        dropped = outcome_data(pending, Result.DROPPED, "an operator restores")
        yield Event(kind=EventKind.OUTCOME, at=now, boot_id=boot_id, data=dropped)


def _restore(state: PolicyState, name: str, boot_id: str, now: Stamp) -> Iterator[Event]:
    yield from _dropped(state, name, boot_id, now)
    intent = Intent(
        act=Act.RESTORE,
        actuator=name,
        why=Why.OPERATOR,
        reason="",
        at=now,
        force=True,
        key=intent_key(Act.RESTORE, name, boot_id, now),
        ended=state.ended.get(name, 0.0),
    )
    yield Event(kind=EventKind.INTENDED, at=now, boot_id=boot_id, data=write(intent))


def announce(within: float, text: str, by: str, boot_id: str, now: Stamp) -> Event:
    """The operator's notice that this machine ends in `within` seconds. A later notice replaces an earlier one."""
    deadline = Stamp(now.boottime + within, now.wall + within)
    notice = Notice(
        source=OPERATOR, kind="termination", at=now, boot_id=boot_id, deadline=deadline, reason=_reason_of(text, by)
    )
    return noticed(notice)


def is_announced(state: PolicyState, within: float, text: str, by: str, now: Stamp) -> bool:
    """True if the same end, at the same time, was announced before."""
    notice = state.notices.get(f"{OPERATOR}/")
    if notice is None or notice.called_off or notice.deadline is None or notice.reason != _reason_of(text, by):
        return False
    return abs(notice.deadline.boottime - now.boottime - within) <= MOVED


def is_sooner(state: PolicyState, within: float, now: Stamp) -> bool:
    """True if the new deadline halves the remaining time, or if there was none. Such a change must not wait, and cannot
    come often.
    """
    notice = state.notices.get(f"{OPERATOR}/")
    if notice is None or notice.deadline is None:
        return True
    return within <= (notice.deadline.boottime - now.boottime) / 2.0


def _reason_of(text: str, by: str) -> str:
    return reasons.line(f"{by}: {text}" if text else by)


def call_off(state: PolicyState, by: str, boot_id: str, now: Stamp, horizon: float = HORIZON) -> Event:
    """The event that calls off an operator's notice or, if there is none, all notices of other sources.

    Raises ValueError if there is neither a notice nor an exclusion for a termination.
    """
    announced = any(not notice.called_off for notice in state.notices.values())
    if not announced and not any(hold.why is Why.TERMINATION for hold in state.holds.values()):
        raise ValueError("there is no termination notice to cancel")
    left = imminent(called_off(state.notices, f"{OPERATOR}/"), horizon, now)
    data = write(NoticeEnded(by=by, released=left is None))
    return Event(kind=EventKind.NOTICE_ENDED, at=now, boot_id=boot_id, data=data)
