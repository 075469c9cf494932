"""What older versions made of lines of the kernel log that the kernel had not written: left out when their ledgers are read.

Records of every facility counted, and were only marked. Of such a ledger these events are not folded:

    XID, SXID, AER   with a `facility` other than 0
    RAISED           with `written_by` in its evidence; what follows (LATCHED, CLEARED) finds no track
    RAISED, RESET    made of such an Xid 154
    CLEARED          by such an Xid, or "by reset, reboot or replacement", where nothing but such a RESET had released the latch: it is active again

A reset made of a line "reset done" carries no facility, nor does one that was already summed up in a checkpoint: these count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuwarden.health.memory import State
from gpuwarden.health.model import Event, EventKind, Latch
from gpuwarden.health.state import fold
from gpuwarden.health.xid.lines import asks_for_nothing

RELEASED = "reset, reboot or replacement"
"""The `by` of the event that ended a latch."""
_LINES = (EventKind.XID, EventKind.SXID, EventKind.AER)


@dataclass(frozen=True, slots=True)
class Recalled:
    """`events`: to be folded. `left_out`: the ids of findings and resets that others than the kernel made, each once."""

    events: tuple[Event, ...]
    left_out: tuple[str, ...] = ()


def without_forged(events: Iterable[Event]) -> Recalled:
    events = tuple(events)
    if not any(event.data.get("facility") or "written_by" in event.data for event in events):
        return Recalled(events)
    kept: list[Event] = []
    left_out: dict[str, None] = {}
    state, forged, resets = State(), dict[tuple[str, str], bool](), set[str]()
    for event in events:
        slot, detail = ("", "") if event.key is None else (event.key.subject.slot, event.key.detail)
        if event.kind == EventKind.XID:
            forged[slot, detail] = bool(event.data.get("facility"))
        if _forged(event) or ((number := _made_of(event)) and forged.get((slot, number), False)):
            left_out[_name(event)] = None
            resets |= {slot} if event.kind == EventKind.RESET else set()
        elif slot in resets and _unreleased(state, event):
            left_out[_name(event)] = None
        else:
            kept.append(event)
            state = fold(state, event)
    return Recalled(tuple(kept), tuple(left_out))


def _forged(event: Event) -> bool:
    by_another = event.kind in _LINES and bool(event.data.get("facility"))
    return by_another or (event.kind in (EventKind.RAISED, EventKind.RISING) and "written_by" in event.data)


def _made_of(event: Event) -> str:
    """The number of the Xid that alone made this event, on the same GPU; empty for most."""
    match event.kind:
        case EventKind.RESET if asks_for_nothing(str(event.data.get("text", ""))):
            return "154"
        case EventKind.RAISED | EventKind.RISING:
            return str(event.data.get("said_by", "")).removeprefix("Xid ")
        case EventKind.CLEARED:
            return str(event.data.get("by", "")).removeprefix("Xid ")
        case _:
            return ""


def _unreleased(state: State, event: Event) -> bool:
    """Whether this event ends a latch that nothing else released."""
    if event.kind != EventKind.CLEARED or event.key is None or event.data.get("by") != RELEASED:
        return False
    track = state.tracks.get(event.key)
    return track is not None and track.latch is not Latch.NONE and track.released is None


def _name(event: Event) -> str:
    what = {EventKind.RESET.value: "reset of", EventKind.CLEARED.value: "end of"}.get(event.kind, "")
    about = event.key.subject if event.kind == EventKind.RESET and event.key else event.key
    return f"{what} {about}".strip()
