"""Selects the lasting states to resend after a start, since queued messages are lost when the process ends.

`grouping.py` selects the findings; this module the node's health, exclusions and termination notices, from a checkpoint
of the journal. A daemon that restarts in a loop resends at most once per `SPACING`; new events are always sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from gpuwarden.health.model import Event, EventKind, Health
from gpuwarden_collectors.facts import Stamp

SPACING = 600.0
"""Least seconds between the resends of two runs of the daemon."""
_BAD = (Health.WARNING.value, Health.FAILURE.value)


def lasting(checkpoint: Iterable[Event]) -> Iterator[Event]:
    """Yield health (if warning or failure), exclusions and termination notices, as the events with which they began."""
    for event in checkpoint:
        if event.kind == EventKind.HELD:
            yield replace(event, kind=EventKind.EXCLUDED)
        elif event.kind == EventKind.NOTICED or (event.kind == EventKind.HEALTH and event.data.get("to") in _BAD):
            yield event


class Spacing:
    """Decides when this run may resend. `mark`: a file whose mtime is the time of the last resend of any run."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark
        self._marked = False
        self._last = float("-inf")
        with contextlib.suppress(OSError):
            self._last = mark.stat().st_mtime

    def over(self, now: Stamp) -> bool:
        """Return True if this run may resend. A mark in the future, set by a wrong clock, does not delay it."""
        return self._marked or not 0 <= now.wall - self._last < SPACING

    def sent(self) -> None:
        """Set the mark at this run's first resend. If the file cannot be written, the next run is not delayed."""
        if not self._marked:
            self._marked = True
            with contextlib.suppress(OSError):
                self._mark.touch(mode=0o600)
