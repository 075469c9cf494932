r"""The fold of policy: how each event changes its state.

    wanted -- INTENDED --> pending -- OUTCOME done, already, and EXCLUDED --> held -- INTENDED restore ... RESTORED --> nothing
                             \-- OUTCOME dropped --> nothing                  \-- LIFTED (by somebody else) --> nothing

The judge's events are in the same ledger, and some of them change policy's state, too: a boot, an acknowledgement, a
replaced board. Short-lived fields (`clean`, `clean_since`, `sequence`, `unknown_since`, `foreign`, `cycled`) have no
events and start empty after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from gpuwarden.health.event_data import Data, read
from gpuwarden.health.model import Event, EventKind, Key
from gpuwarden.policy.events import ExcludedByOthers, Lifted, NoticeEnded, Ordered, Outcome, Restored
from gpuwarden.policy.model import OPERATOR, Act, Intent, Notice, Result, Why
from gpuwarden.policy.notices import called_off
from gpuwarden.policy.requirement import Requirement
from gpuwarden.policy.state import (
    KEYS_MOST,
    NOTICES_MOST,
    OVERRIDDEN_MOST,
    UNCOUNTED,
    WHY_MOST,
    Hold,
    Order,
    Override,
    PolicyState,
    for_failure,
    keys_of,
)


def fold(state: PolicyState, event: Event) -> PolicyState:
    """The state after `event`; events of kinds that do not concern policy leave it as it is."""
    change = _CHANGES.get(event.kind)
    state = state if change is None else change(state, event)
    changed = {
        name: new
        for name, requirement in state.requirements.items()
        if (new := requirement.after(event)) is not requirement
    }
    return replace(state, requirements={**state.requirements, **changed}) if changed else state


def _begun_anew(state: PolicyState) -> PolicyState:
    """The state without what was remembered about the last exclusion."""
    return replace(state, person={}, requirements=_over_all(state))


def _over_all(state: PolicyState) -> Mapping[str, Requirement]:
    return {name: requirement.over() for name, requirement in state.requirements.items()}


Item = TypeVar("Item")


def _without(items: Mapping[str, Item], name: str) -> dict[str, Item]:
    return {key: item for key, item in items.items() if key != name}


# --- one function for each kind of event


def _boot(state: PolicyState, event: Event) -> PolicyState:
    if event.boot_id == state.boot_id:
        return state
    notices = {name: notice for name, notice in state.notices.items() if notice.boot_id == event.boot_id}
    holds = _outlived(state)
    return replace(
        state, boot_id=event.boot_id, notices=notices, holds=holds, lifted={}, override=None, declined=frozenset()
    )


def _outlived(state: PolicyState) -> dict[str, Hold]:
    """Holds after a new boot: those for a termination that only sources announced, and no operator, are marked
    `outlived`.
    """
    ends = [notice for notice in state.notices.values() if notice.hard and not notice.called_off]
    if not ends:
        return dict(state.holds)
    by_source = all(notice.source != OPERATOR for notice in ends)
    return {
        name: replace(hold, outlived=by_source) if hold.why is Why.TERMINATION else hold
        for name, hold in state.holds.items()
    }


def _another_machine(state: PolicyState, event: Event) -> PolicyState:
    return PolicyState(boot_id=event.boot_id, requirements=_over_all(state))


def _intended(state: PolicyState, _: Event, intent: Intent) -> PolicyState:
    if not (intent.act and intent.why and intent.actuator and intent.key):  # written by no version of gpuwarden
        return state
    if intent.observed:
        return replace(_counted(state, intent.act, Result.OBSERVED), would={**state.would, intent.actuator: intent})
    if intent.act is Act.EXCLUDE and not state.holds and not state.pending:
        state = _begun_anew(state)
    pending = {**state.pending, intent.actuator: intent}
    return replace(state, pending=pending, would=_without(state.would, intent.actuator))


def _outcome(state: PolicyState, _: Event, data: Outcome) -> PolicyState:
    """Fold an outcome. A refused intent stays wanted, since a person may fix the cause. A dropped order is forgotten
    for that actuator, since the operator was answered.
    """
    if data.result in UNCOUNTED:
        return state
    intent = state.pending.get(data.actuator)
    state = _counted(state, data.intent, data.result)
    if intent is None or intent.key != data.key:
        return state
    pending = _without(state.pending, intent.actuator)
    if data.result is Result.DROPPED and intent.act is Act.EXCLUDE and intent.why is Why.OPERATOR:
        state = _declined(state, intent.actuator, pending)
    left = data.result is not Result.DROPPED or state.holds or pending or state.would
    state = replace(state, pending=pending)
    return state if left else _begun_anew(state)


def _counted(state: PolicyState, act: Act, result: Result) -> PolicyState:
    name = f"{act.value}_{result.value}"
    return replace(state, tried={**state.tried, name: state.tried.get(name, 0) + 1})


def _tried(state: PolicyState, event: Event) -> PolicyState:
    """Restore from a checkpoint the counts for each pair of an intent and its outcome."""
    counts = {f"{act.value}_{result.value}": 0 for act in Act for result in Result}
    recorded = {name: event.data.get(name) for name in counts}
    return replace(
        state,
        tried={name: int(count) for name, count in recorded.items() if isinstance(count, int | float) and count > 0},
    )


def _declined(state: PolicyState, actuator: str, pending: Mapping[str, Intent]) -> PolicyState:
    """Forget an operator's order at one actuator. The order itself remains only if it is in force, or may still be
    written, at another.
    """
    ordered = any((intent.act, intent.why) == (Act.EXCLUDE, Why.OPERATOR) for intent in pending.values())
    if ordered or any(hold.why is Why.OPERATOR for name, hold in state.holds.items() if name != actuator):
        return replace(state, declined=state.declined | {actuator})
    return replace(state, order=None, declined=frozenset())


def _excluded(state: PolicyState, _: Event, hold: Hold) -> PolicyState:
    if not hold.actuator:
        return state
    before = state.holds.get(hold.actuator)
    if hold.why is Why.TERMINATION and before is not None and before.by_failure:
        hold = replace(hold, failed=True)
    holds = {**state.holds, hold.actuator: hold}
    lifted, ended = _without(state.lifted, hold.actuator), _without(state.ended, hold.actuator)
    restored, others = _without(state.restored, hold.actuator), _without(state.others, hold.actuator)
    return replace(state, holds=holds, lifted=lifted, ended=ended, restored=restored, others=others)


def _excluded_by_others(state: PolicyState, event: Event, data: ExcludedByOthers) -> PolicyState:
    return replace(state, others={**state.others, data.actuator: event}) if data.actuator else state


def _restored(state: PolicyState, event: Event, data: Restored) -> PolicyState:
    hold = state.holds.get(data.actuator)
    since, until = (event.at if hold is None else hold.at).wall, event.at.wall
    counted = hold is not None and any(since <= wall <= until for wall in state.returns)  # counted at another actuator
    failed = hold is not None and hold.failed and data.why is Why.TERMINATION
    alone = failed or data.why is Why.FAILURE
    if hold is None and _is_lifted_again(state, data):
        return state
    if hold is not None:
        lifted = Lifted(
            actuator=hold.actuator, why=hold.why, reason=hold.reason, nobody=True, since=hold.since, ours=True
        )
        state = replace(state, restored={**state.restored, hold.actuator: lifted})
    return _over(_returned(state, event) if alone and not counted else state, data.actuator)


def _is_lifted_again(state: PolicyState, data: Restored) -> bool:
    before = state.restored.get(data.actuator)
    return before is not None and before.reason == data.reason


def _lifted(state: PolicyState, event: Event, data: Lifted) -> PolicyState:
    """Fold the end of an exclusion. `nobody`: the scheduler lost it, in a crash or when power saving switched the
    machine off; it is then wanted as before.
    """
    if data.ours:
        return replace(state, restored={**state.restored, data.actuator: data})
    if data.why is None and not data.since:
        state = replace(state, others=_without(state.others, data.actuator))
    if data.since:
        state = replace(state, ended={**state.ended, data.actuator: data.since})
    if data.nobody:
        return replace(state, holds=_without(state.holds, data.actuator))
    hold = state.holds.get(data.actuator)
    order = None if hold is not None and hold.why is Why.OPERATOR else state.order
    declined = state.declined if order is not None else frozenset()
    lifted = {**state.lifted, data.actuator: event.at}
    return _over(replace(state, order=order, declined=declined, lifted=lifted), data.actuator)


def _over(state: PolicyState, actuator: str) -> PolicyState:
    holds = _without(state.holds, actuator)
    state = replace(state, holds=holds)
    return state if holds else _begun_anew(state)


def _ordered(state: PolicyState, event: Event, data: Ordered) -> PolicyState:
    if data.order == Act.EXCLUDE:
        order = Order(reason=data.reason or "", by=data.by or "", at=event.at)
        return replace(state, order=order, declined=frozenset(data.declined.split()), lifted={}, override=None)
    if data.stays_out:
        return replace(state, order=None, declined=frozenset(), would={}, holds=_for_failures(state))
    override = _overriding(state, event, data)
    if data.more:
        return replace(state, override=override)
    return replace(
        state,
        order=None,
        declined=frozenset(),
        lifted={},
        person={},
        requirements=_over_all(state),
        override=override,
        returns=(),
        would={},
        unknown_since=None,
    )


def _overriding(state: PolicyState, event: Event, data: Ordered) -> Override | None:
    """The override after an operator's restoration. A restoration that overrides nothing new keeps the previous name
    and time.
    """
    keys = keys_of(data.overridden or "")
    if data.more:
        more = state.overridden | keys
        return (
            state.override
            if state.override is None or len(more) > OVERRIDDEN_MOST
            else replace(state.override, keys=more)
        )
    if state.override is not None and keys <= state.override.keys:
        return replace(state.override, keys=keys) if keys else None
    return Override(keys=keys, by=data.by or "", at=event.at) if keys else None


def _for_failures(state: PolicyState) -> dict[str, Hold]:
    """Turn all holds into holds for a failure. Their text stays until the text of a failure replaces it."""
    return {name: for_failure(hold) for name, hold in state.holds.items()}


def _noticed(state: PolicyState, _: Event, notice: Notice) -> PolicyState:
    before = state.notices.get(notice.name)
    if before is None and len(state.notices) >= NOTICES_MOST:
        return state
    if before is not None and notice.source != OPERATOR:  # the same notice, with a new deadline
        notice = replace(notice, at=before.at, called_off=before.called_off)
    return replace(state, notices={**state.notices, notice.name: notice})


def _notice_ended(state: PolicyState, _: Event, data: NoticeEnded) -> PolicyState:
    """Fold the end of a notice: its source withdrew it or, if `data` names no source, an operator called it off."""
    if data.source:
        notices: Mapping[str, Notice] = _without(state.notices, f"{data.source}/{data.id or ''}")
    else:
        notices = called_off(state.notices, f"{OPERATOR}/")
    return replace(state, notices=notices, holds=_released(state) if data.released else state.holds)


def _released(state: PolicyState) -> dict[str, Hold]:
    return {
        name: replace(hold, released=True) if hold.why is Why.TERMINATION else hold
        for name, hold in state.holds.items()
    }


def _needs_person(state: PolicyState, event: Event) -> PolicyState:
    if event.key is None or len(state.person) >= KEYS_MOST:
        return state
    why = event.data.get("why")
    return replace(state, person={**state.person, event.key: why[:WHY_MOST] if isinstance(why, str) else ""})


def _acknowledged(state: PolicyState, event: Event) -> PolicyState:
    kept = {key: why for key, why in state.person.items() if key != event.key}
    return replace(state, person=kept, override=_override_without(state, event.key))


def _returned(state: PolicyState, event: Event) -> PolicyState:
    return replace(state, returns=(*state.returns, event.at.wall)[-KEYS_MOST:])


def _cleared(state: PolicyState, event: Event) -> PolicyState:
    return replace(state, override=_override_without(state, event.key))


def _override_without(state: PolicyState, key: Key | None) -> Override | None:
    return None if state.override is None else state.override.without(key)


def _board_gone(state: PolicyState, event: Event) -> PolicyState:
    """Forget findings that need a person when their board is gone. A board that moved to another slot, such as after
    the buses were renumbered, keeps them, since that repairs nothing.
    """
    if event.key is None or "moved_to" in event.data:
        return state
    slot = event.key.subject.slot
    return replace(state, person={key: why for key, why in state.person.items() if key.subject.slot != slot})


def _unpinned(state: PolicyState, event: Event) -> PolicyState:
    """End the overrides of a GPU that is no longer expected: its findings end without events of their own, and later
    findings in that slot must not be overridden.
    """
    slot = "" if event.key is None else event.key.subject.slot
    for key in [key for key in state.overridden if slot and key.subject.slot == slot]:
        state = replace(state, override=_override_without(state, key))
    return _board_gone(state, event)


Change = Callable[[PolicyState, Event], PolicyState]


def _saying(kind: type[Data], change: Callable[[PolicyState, Event, Data], PolicyState]) -> Change:
    return lambda state, event: change(state, event, read(kind, event))


_CHANGES: dict[str, Change] = {
    EventKind.BOOT: _boot,
    EventKind.MACHINE_CHANGED: _another_machine,
    EventKind.INTENDED: _saying(Intent, _intended),
    EventKind.OUTCOME: _saying(Outcome, _outcome),
    EventKind.EXCLUDED: _saying(Hold, _excluded),
    EventKind.HELD: _saying(Hold, _excluded),
    EventKind.EXCLUDED_BY_OTHERS: _saying(ExcludedByOthers, _excluded_by_others),
    EventKind.RESTORED: _saying(Restored, _restored),
    EventKind.RETURNED: _returned,
    EventKind.TRIED: _tried,
    EventKind.LIFTED: _saying(Lifted, _lifted),
    EventKind.ORDERED: _saying(Ordered, _ordered),
    EventKind.NOTICED: _saying(Notice, _noticed),
    EventKind.NOTICE_ENDED: _saying(NoticeEnded, _notice_ended),
    EventKind.NEEDS_PERSON: _needs_person,
    EventKind.ACKNOWLEDGED: _acknowledged,
    EventKind.CLEARED: _cleared,
    EventKind.GPU_REPLACED: _board_gone,
    EventKind.GPU_UNPINNED: _unpinned,
}
