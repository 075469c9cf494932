"""Events that only a newer version can read, carried along by an older one.

After a downgrade the fold leaves out what it does not know: a condition that came with the newer version, a kind of event.
The checkpoint that the older daemon writes would lose them for good. So it takes them along, as they were, and the newer
daemon finds them again after the next upgrade.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuwarden.health.conditions import condition
from gpuwarden.health.model import Event, EventKind

MOST = 1_000
"""The newest are kept: more than any node has findings, and a bound on whatever the file holds."""

_OF_CONDITIONS = frozenset(
    (
        EventKind.RISING,
        EventKind.SUBSIDED,
        EventKind.RAISED,
        EventKind.LATCHED,
        EventKind.CLEARED,
        EventKind.ACKNOWLEDGED,
    )
)
_KINDS = frozenset(EventKind)


def unknown_events(events: Iterable[Event]) -> tuple[Event, ...]:
    """The last MOST of `events` that this version cannot fold, in order."""
    return tuple(event for event in events if _is_unknown(event))[-MOST:]


def _is_unknown(event: Event) -> bool:
    if event.kind not in _KINDS:
        return True
    return event.kind in _OF_CONDITIONS and event.key is not None and condition(event.key.code) is None


def with_unknown_events(carried: tuple[Event, ...], checkpoint: Iterable[Event], boot_id: str) -> tuple[Event, ...]:
    """The checkpoint with them in it: those of earlier boots come first, so that its boot counts for them too."""
    earlier = tuple(event for event in carried if event.boot_id != boot_id)
    return (*earlier, *checkpoint, *(event for event in carried if event.boot_id == boot_id))
