"""That a test runs: on which GPUs, until when at most, by which processes. Made of events, so that a restart does not forget it.

While it holds, what the test does to its GPUs is taken for what it is: warnings about load, heat and power of these GPUs wait, and
Xids 13, 31, 43 and 45 of its own processes are set aside. Failures are judged as always.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

from gpuwarden.health.active_test.thresholds import XIDS_OF_WORKERS
from gpuwarden.health.event_data import cut, no_key, otherwise, read, write
from gpuwarden.health.model import NODE, Event, EventKind, Key, Pin
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.event_facts import Source, XidEvent
from gpuwarden_collectors.facts import Stamp

GPUS_MOST, WORKERS_MOST, XIDS_MOST = 48, 200, 64
"""So that each text is below the 2,000 characters that the ledger keeps of one."""
LATE = 30.0
"""Seconds after the end in which lines about the test's processes may still be read."""
LEASE = Key("test", NODE, "lease")
WARNINGS_THAT_WAIT = frozenset({"gpu_slow", "thermal_limit", "thermal_slowdown", "power_brake", "gpu_held_after_job"})
"""Conditions that a test's load, heat, power and processes could look like. The others do not come of these, or need longer than a
test: a job that stalls has ten busy minutes before; power capping at the GPU's own limit, and memory in use, are no findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One test of this node: the event TEST_BEGUN, which comes again when more is known of it."""

    at: Stamp = field(metadata=no_key())
    """When it was begun, or that became known."""
    name: Annotated[str, cut(64)]
    """Of this lease."""
    gpus: Annotated[str, cut(2000)]
    """UUIDs, separated by spaces."""
    level: Level = field(metadata=otherwise(Level.GATE))
    """What is tested."""
    until: Stamp | None
    """When it ends at the latest."""
    pid: int = 0
    """Of the process that runs the test."""
    workers: Annotated[str, cut(2000)] = ""
    """Process numbers of its workers so far, separated by spaces."""
    xids: Annotated[str, cut(2000)] = ""
    """Xids of its processes that were set aside, as `slot=number`, separated by spaces."""
    ended: Stamp | None = None
    """When it ended; None while it holds."""

    def holds(self, now: Stamp) -> bool:
        return self.ended is None and self.until is not None and now.boottime < self.until.boottime

    def slots(self, pins: Mapping[str, Pin]) -> frozenset[str]:
        """Slots of the test's GPUs that belong in this machine."""
        gpus = frozenset(self.gpus.split())
        return frozenset([slot for slot, pin in pins.items() if pin.uuid in gpus])

    def xids_of(self, slot: str) -> tuple[int, ...]:
        found = (_XID.fullmatch(one) for one in self.xids.split())
        return tuple(int(one[2]) for one in found if one and one[1] == slot)


_XID = re.compile(r"([0-9a-f:.]{1,20})=(\d{1,3})", re.ASCII)


def begun(lease: Lease, at: Stamp, boot_id: str) -> Event:
    return Event(kind=EventKind.TEST_BEGUN, at=at, boot_id=boot_id, key=LEASE, data=write(lease))


def ended(lease: Lease, by: str, at: Stamp, boot_id: str) -> Event:
    return Event(kind=EventKind.TEST_ENDED, at=at, boot_id=boot_id, key=LEASE, data={"name": lease.name, "by": by})


def lease_events(lease: Lease | None, boot_id: str) -> Iterator[Event]:
    """The event that makes this lease."""
    if lease is not None:
        yield begun(lease, lease.at, boot_id)


def with_lease(known: Lease | None, event: Event) -> Lease | None:
    """The lease after an event TEST_BEGUN, TEST_ENDED or TEST_XID."""
    match event.kind:
        case EventKind.TEST_BEGUN:
            return read(Lease, event)
        case EventKind.TEST_ENDED if known is not None and event.data.get("name") == known.name:
            return replace(known, ended=event.at)
        case EventKind.TEST_XID if known is not None and event.key is not None:
            one = f"{event.key.subject.slot}={event.key.detail}"
            if _XID.fullmatch(one) and one not in (given := known.xids.split()) and len(given) < XIDS_MOST:
                return replace(known, xids=" ".join((*given, one)))
    return known


def set_aside(lease: Lease | None, pins: Mapping[str, Pin], event: XidEvent) -> bool:
    """True if the Xid was caused by the test's own processes: the event names the PID of one, or is a bare number about a GPU of
    the test, on which nothing else runs.
    """
    if lease is None or event.xid not in XIDS_OF_WORKERS or not _during(lease, event.at):
        return False
    if event.pid is not None:
        return str(event.pid) in lease.workers.split()
    over = lease.ended is not None and event.at.boottime > lease.ended.boottime  # the next job may have begun
    return not over and event.source is not Source.KERNEL_LOG and event.slot in lease.slots(pins)


def _during(lease: Lease, at: Stamp) -> bool:
    end = lease.ended or lease.until
    return end is not None and at.boottime <= end.boottime + LATE


def pids(workers: Sequence[int]) -> str:
    """PIDs of the newest `WORKERS_MOST` workers, separated by spaces."""
    return " ".join(map(str, workers[-WORKERS_MOST:]))
