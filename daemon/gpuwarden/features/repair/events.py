"""Selects the data of repair events that leave the daemon: all, also in notifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwarden.config.notify import Group
from gpuwarden.health.model import Event, EventKind, Evidence


def _whole(event: Event) -> Evidence:
    return event.data


NAMELESS: Mapping[EventKind, Callable[[Event], Event]] = {}
NOTIFIED: Mapping[EventKind, tuple[Group, Callable[[Event], Evidence | None]]] = {
    EventKind.REPAIR_BEGUN: ("exclusion", _whole),
    EventKind.REPAIR_ENDED: ("exclusion", _whole),
}
