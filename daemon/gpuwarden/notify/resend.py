"""What is sent again after a start, since messages that wait for delivery end with the process: whatever lasts, as receivers know it.

Findings are those of `grouping.py`; here are the node's health, exclusions and announced ends, out of a checkpoint of the journal.
A daemon that is restarted in a loop sends them once in `SPACING`; what happens meanwhile is sent as ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gpuwarden.health.model import Event, EventKind, Health
from gpuwarden_collectors.facts import Stamp

SPACING = 600.0
"""Seconds between two daemons that send again."""
_BAD = (Health.WARNING.value, Health.FAILURE.value)


def lasting(checkpoint: Iterable[Event]) -> Iterator[Event]:
    """Health unless it is good, exclusions and announced ends, as the events with which they began."""
    for event in checkpoint:
        if event.kind == EventKind.HELD:
            yield replace(event, kind=EventKind.EXCLUDED)
        elif event.kind == EventKind.NOTICED or (event.kind == EventKind.HEALTH and event.data.get("to") in _BAD):
            yield event


class Spacing:
    """When this daemon may send again. `mark`: a file whose time is that of the last resend, of any daemon."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark
        self._marked = False
        self._last = float("-inf")
        with contextlib.suppress(OSError):
            self._last = mark.stat().st_mtime

    def over(self, now: Stamp) -> bool:
        """A time in the future, of a clock that was wrong, holds nothing up."""
        return self._marked or not 0 <= now.wall - self._last < SPACING

    def sent(self) -> None:
        """Note the first resend of this daemon. Without the file other daemons are not held up."""
        if not self._marked:
            self._marked = True
            with contextlib.suppress(OSError):
                self._mark.touch(mode=0o600)
