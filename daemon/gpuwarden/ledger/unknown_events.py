"""Events that only a newer version can fold, kept by an older one.

After a downgrade, the fold skips events of kinds and conditions that the older version does not have, and its next
checkpoint would lose them for good. So they are copied unchanged into each checkpoint, and the newer version folds them
after the next upgrade.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuwarden.health.conditions import condition
from gpuwarden.health.model import Event, EventKind

MOST = 1_000
"""Most events that are kept, the newest: more than any node has findings."""

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
    """The checkpoint with the carried events. Those of earlier boots come first, so that its BOOT event applies to
    them, too.
    """
    earlier = tuple(event for event in carried if event.boot_id != boot_id)
    return (*earlier, *checkpoint, *(event for event in carried if event.boot_id == boot_id))
