"""Ignores kernel log lines that were processed before.

The kernel numbers the lines of a boot, and a record keeps the highest number it contains. A daemon that lost its
position reads the ring from the beginning; nothing is counted twice then, and no acknowledged finding returns. Events
without a number (of NVML and DCGM) are recognised by their time, and only if they were acknowledged (`memory.buried`).
If the kernel log is now read by another method (`BY_TIME`), old lines are recognised by their time.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwarden.health.memory import State
from gpuwarden.health.records import target_of
from gpuwarden_collectors.event_facts import HostEvent, LogGap, numbered_alike

DRIFT = 600.0
"""Seconds by which the clock of the log may be ahead of the host's after months. A line later than the record by more
is new regardless of its number: a log in a file can restart within one boot."""


def unread(state: State, host_events: Sequence[HostEvent]) -> Sequence[HostEvent]:
    """Return the host events that were not processed before."""
    return [event for event in host_events if not _read_before(state, event)] if host_events else host_events


def _read_before(state: State, event: HostEvent) -> bool:
    if isinstance(event, LogGap) or event.origin is None or (target := target_of(event)) is None:
        return False
    record = state.records.get(target[1])
    if record is None or record.boot_id != event.origin.boot_id:
        return False
    alike = numbered_alike(event.origin.sequence, record.sequence)
    before = event.origin.sequence <= record.sequence if alike else event.history
    return before and event.at.boottime <= record.last.boottime + DRIFT
