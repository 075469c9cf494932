"""The lease of a running test: its GPUs, its latest end, its processes. Folded from events, so it survives a restart.

While it holds, effects of the test are no findings: warnings about load, heat and power of its GPUs wait, and Xids 13,
31, 43 and 45 of its own processes are set aside. Failures are judged as always.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Annotated

from gpuwarden.health.event_data import cut, no_key, otherwise, read, write
from gpuwarden.health.model import NODE, Event, EventKind, Key, Pin
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

GPUS_MOST, WORKERS_MOST, XIDS_MOST = 48, 200, 64
"""Limits that keep each text below the 2,000 characters that the ledger stores."""
LEASE = Key("test", NODE, "lease")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """One test of this node: the data of TEST_BEGUN, which is written again when they change."""

    at: Stamp = field(metadata=no_key())
    """When the test began, or this data last changed."""
    name: Annotated[str, cut(64)]
    """Name of the lease."""
    gpus: Annotated[str, cut(2000)]
    """UUIDs, separated by spaces."""
    level: Level = field(metadata=otherwise(Level.GATE))
    """Level of the test."""
    until: Stamp | None
    """Latest time at which it ends."""
    pid: int = 0
    """Process number of the test."""
    workers: Annotated[str, cut(2000)] = ""
    """Process numbers of its workers so far, separated by spaces."""
    xids: Annotated[str, cut(2000)] = ""
    """Xids of its processes that were set aside, as `slot=number`, separated by spaces."""
    ended: Stamp | None = None
    """When it ended; None while it holds."""
    boot_id: str = field(metadata=no_key())
    """The boot in which it began. A new boot ends it."""

    def holds(self, now: Stamp) -> bool:
        return self.ended is None and self.until is not None and now.boottime < self.until.boottime

    def slots(self, pins: Mapping[str, Pin]) -> frozenset[str]:
        """Slots of the test's GPUs that belong in this machine."""
        gpus = frozenset(self.gpus.split())
        return frozenset([slot for slot, pin in pins.items() if pin.uuid in gpus])

    def xids_of(self, slot: str) -> tuple[int, ...]:
        matches = (_XID.fullmatch(word) for word in self.xids.split())
        return tuple(int(match[2]) for match in matches if match and match[1] == slot)


_XID = re.compile(r"([0-9a-f:.]{1,20})=(\d{1,3})", re.ASCII)


def begun(lease: Lease) -> Event:
    return Event(kind=EventKind.TEST_BEGUN, at=lease.at, boot_id=lease.boot_id, key=LEASE, data=write(lease))


def ended(lease: Lease, by: str, at: Stamp) -> Event:
    return Event(
        kind=EventKind.TEST_ENDED, at=at, boot_id=lease.boot_id, key=LEASE, data={"name": lease.name, "by": by}
    )


def with_lease(lease: Lease | None, event: Event) -> Lease | None:
    """Return the lease after an event TEST_BEGUN, TEST_ENDED, TEST_XID or BOOT."""
    match event.kind:
        case EventKind.BOOT if lease is not None and lease.boot_id != event.boot_id:
            return None
        case EventKind.TEST_BEGUN:
            return read(Lease, event)
        case EventKind.TEST_ENDED if lease is not None and event.data.get("name") == lease.name:
            return replace(lease, ended=event.at)
        case EventKind.TEST_XID if lease is not None and event.key is not None:
            xid = f"{event.key.subject.slot}={event.key.detail}"
            if _XID.fullmatch(xid) and xid not in (xids := lease.xids.split()) and len(xids) < XIDS_MOST:
                return replace(lease, xids=" ".join((*xids, xid)))
    return lease


def pids(workers: Sequence[int]) -> str:
    """PIDs of the newest `WORKERS_MOST` workers, separated by spaces."""
    return " ".join(map(str, workers[-WORKERS_MOST:]))
