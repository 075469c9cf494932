"""Kernel log lines that were processed before are ignored when they are read again.

The kernel numbers the lines of a boot, and a record remembers the highest number that it was made of. A daemon whose
position was lost reads the ring from its beginning: nothing is counted twice then, and no acknowledged finding comes back.
Lines that carry no number (events of NVML and DCGM) are recognised by their time alone, and only from what was acknowledged
(`memory.buried`). Where the kernel log is read in another way than before (`BY_TIME`), the numbers of the two do not compare: what was
there already is recognised by its time.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuwarden.health.memory import State
from gpuwarden.health.records import target_of
from gpuwarden_collectors.event_facts import HostEvent, LogGap, numbered_alike

DRIFT = 600.0
"""Seconds by which the clock of the log may be ahead of this host's after months. A line that is later than the record by more is
new whatever its number: a log that is a file can begin again within one boot."""


def unread(state: State, host_events: Sequence[HostEvent]) -> Sequence[HostEvent]:
    """The host events without those that were processed before."""
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
