"""The shortest list of events whose fold gives policy's state: it follows the judge's in the ledger's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Key
from gpuwarden.policy.events import Lifted, Ordered
from gpuwarden.policy.model import Act
from gpuwarden.policy.notices import noticed
from gpuwarden.policy.state import Order, PolicyState, texts_of
from gpuwarden_collectors.facts import Stamp


def checkpoint(state: PolicyState, now: Stamp) -> list[Event]:
    """Events whose fold, after the boot of the judge's checkpoint, gives `state` except its short-lived fields."""
    return [*_events(state, now), *_tried(state)]


def _events(state: PolicyState, now: Stamp) -> Iterator[Event]:
    boot = state.boot_id
    if (override := state.override) is not None:
        yield from restored(override.keys, boot, override.at, override.by)
    if state.order is not None:
        yield ordered(state.order, boot, state.declined)
    for wall in state.returns:
        yield Event(kind=EventKind.RETURNED, at=Stamp(0.0, wall), boot_id=boot)
    yield from _lifted(state, now)
    for notice in state.notices.values():
        yield noticed(notice)
    for hold in state.holds.values():
        yield Event(kind=EventKind.HELD, at=hold.at, boot_id=hold.boot_id, data=write(hold))
    yield from state.others.values()
    for intent in (*state.pending.values(), *state.would.values()):
        yield Event(kind=EventKind.INTENDED, at=intent.at, boot_id=boot, data=write(intent))
    for key in sorted(state.person):  # after the intents, whose fold may clear the list
        why = state.person[key]
        yield Event(kind=EventKind.NEEDS_PERSON, at=now, boot_id=boot, key=key, data={"why": why} if why else {})
    for requirement in state.requirements.values():  # after the intents, whose fold may reset them
        yield from requirement.events(now, boot)


def _lifted(state: PolicyState, now: Stamp) -> Iterator[Event]:
    boot = state.boot_id
    for actuator, at in state.lifted.items():
        yield Event(kind=EventKind.LIFTED, at=at, boot_id=boot, data=write(Lifted(actuator=actuator)))
    for data in state.restored.values():
        yield Event(kind=EventKind.LIFTED, at=now, boot_id=boot, data=write(data))
    for actuator, since in state.ended.items():
        ended = Lifted(actuator=actuator, nobody=True, since=since)
        yield Event(kind=EventKind.LIFTED, at=now, boot_id=boot, data=write(ended))


def _tried(state: PolicyState) -> Iterator[Event]:
    """The event with the counts. It comes after the intents, whose fold counts them again."""
    if state.tried:
        yield Event(kind=EventKind.TRIED, at=Stamp(0.0, 0.0), boot_id=state.boot_id, data=dict(state.tried))


def ordered(order: Order, boot_id: str, declined: frozenset[str] = frozenset()) -> Event:
    data = Ordered(order=Act.EXCLUDE, reason=order.reason, by=order.by, declined=" ".join(sorted(declined)))
    return Event(kind=EventKind.ORDERED, at=order.at, boot_id=boot_id, data=write(data))


def restored(overridden: frozenset[Key], boot_id: str, now: Stamp, by: str = "") -> Iterator[Event]:
    """An operator's restoration, which overrides these findings; those beyond the first event's room follow with
    `more`.
    """
    for number, text in enumerate(texts_of(overridden)):
        data = Ordered(order=Act.RESTORE, overridden=text, by=by or None, more=number > 0)
        yield Event(kind=EventKind.ORDERED, at=now, boot_id=boot_id, data=write(data))
