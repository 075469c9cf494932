"""Durable memory of the recent outages of each port: its counters, and when they grew in this boot.

Memory changes by events only, as for NVLinks (`nvlink/link_counters.py`): growth is measured against the last event.
Each outage writes an event until the port flaps; from then on there is one event per ten minutes. A restart loses
nothing. Growth while no daemon ran may be of any day and counts as one outage, unless the port flapped already. A boot
begins anew, since ports train during it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuwarden.health.event_data import read, write
from gpuwarden.health.host.memory import PORTS_KEPT, port_subject
from gpuwarden.health.host.port_errors import MAXIMUM
from gpuwarden.health.model import Event, EventKind, Evidence, Key, Sighting
from gpuwarden_collectors.dataclass import dataclass, replace
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts

FLAPPING = "infiniband_flapping"
FLAPS, WINDOW = 3, 3 * 3600.0
"""Three outages within three hours, the rule of Azure's health agent for a flapping link."""
EACH = 600.0
"""Seconds. A flapping port has at most one event in each interval of this length."""
MARKS_KEPT = 32
"""More than the events in a window."""


class Counters(NamedTuple):
    """Counters of a port's outages; None: not read or not used. `seen_down` counts outages that passes see, and is used
    while `link_downed` is blind.
    """

    link_downed: int | None = None
    carrier_down: int | None = None
    seen_down: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortDowns:
    """Outages of one port. `since`: first read in this boot. `marks`: time and number of outages. CLOCK_BOOTTIME."""

    counters: Counters
    """Values at the last event."""
    since: float
    marks: tuple[tuple[float, int], ...] = ()

    def lately(self, now: float) -> int:
        """Return the number of outages within the window, by events."""
        return sum([times for at, times in self.marks if at > now - WINDOW])


Downs = Mapping[str, PortDowns]
"""By name of the port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounted:
    """Data of an event COUNTED of a port: its new counters."""

    link_downed: int | None = None
    carrier_down: int | None = None
    seen_down: int | None = None
    downs: int = 0
    """Outages since the previous event."""
    since: float | None = None
    """Only in checkpoints."""
    marks: str | None = None
    """In checkpoints: `7200.5:1 7230.0:2`."""


def is_blind(port: PortFacts) -> bool:
    """Return True if the port's outage counter is at its maximum, so that only outages seen by passes count."""
    return port.link_downed == MAXIMUM["link_downed"] and port.carrier_down is None


def counted_downs(
    remembered: Downs, followed: frozenset[str], infiniband: InfinibandFacts, now: Stamp, boot_id: str
) -> list[Event]:
    """Return events for growth of the counters since the last events. `followed`: ports this daemon has read before."""
    began = now.boottime // EACH * EACH
    events: list[Event] = []
    for port in infiniband.ports:
        before, counters = remembered.get(port.name), _counters(port)
        if before is None:
            room = len(remembered) + len(events) < PORTS_KEPT
            if room and counters != Counters():
                events.append(_event(port.name, now, boot_id, PortCounted(**counters._asdict())))
            continue
        counters = _merged(before.counters, counters)
        flaps = before.lately(began) >= FLAPS
        if counters == before.counters or (flaps and before.marks[-1][0] >= began):
            continue
        downs = _growth(before.counters, counters)
        downs = downs if flaps or port.name in followed else min(downs, 1)
        events.append(_event(port.name, now, boot_id, PortCounted(**counters._asdict(), downs=downs)))
    return events


def _counters(port: PortFacts) -> Counters:
    return Counters(port.link_downed, port.carrier_down, port.seen_down if is_blind(port) else None)


def _merged(old: Counters, new: Counters) -> Counters:
    return Counters(*(before if now is None else now for before, now in zip(old, new, strict=True)))


def _growth(old: Counters, new: Counters) -> int:
    """Return the total growth of the counters. A counter that decreased was reset and counts from zero."""
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
    return sum([now - before if now >= before else now for before, now in pairs])


def infiniband_flapping(infiniband: InfinibandFacts, remembered: Downs, now: float) -> list[Sighting]:
    """Return ports that went down too often, by their counters, which include outages between two passes.

    If the counters are blind, outages seen by passes count.
    """
    sightings = []
    for port in infiniband.ports:
        memory = remembered.get(port.name)
        if memory is None or not memory.marks:
            continue
        downs = memory.lately(now) + _growth(memory.counters, _counters(port))
        if downs >= FLAPS:
            evidence: Evidence = {"downs": downs, "hours": round(WINDOW / 3600)}
            if is_blind(port):
                evidence = {**evidence, "counted_by": "passes, since link_downed stands at its maximum"}
            sightings.append(Sighting(Key(FLAPPING, port_subject(port.name)), evidence))
    return sightings


def is_young(remembered: Downs, name: str, now: float) -> bool:
    """Return True if the port has counters but was not yet followed for the whole window."""
    return name in remembered and now - remembered[name].since < WINDOW


def _event(name: str, at: Stamp, boot_id: str, data: PortCounted) -> Event:
    key = Key(FLAPPING, port_subject(name))
    return Event(kind=EventKind.COUNTED, at=at, boot_id=boot_id, key=key, data=write(data))


def with_downs(remembered: Downs, event: Event) -> Downs:
    """Return the memory after an event COUNTED of a port."""
    if event.key is None or event.key.code != FLAPPING:
        return remembered
    name, at, data = event.key.subject.part, event.at.boottime, read(PortCounted, event)
    counters = Counters(data.link_downed, data.carrier_down, data.seen_down)
    memory = remembered.get(name)
    if memory is None:
        since = at if data.since is None else data.since
        memory = PortDowns(counters=counters, since=since, marks=tuple(_marks(data.marks)))
    elif data.downs > 0:
        marks = [mark for mark in memory.marks if mark[0] > at - WINDOW]
        memory = replace(memory, counters=counters, marks=(*marks[-MARKS_KEPT + 1 :], (at, data.downs)))
    else:
        memory = replace(memory, counters=counters)
    return {**remembered, name: memory}


def without_port(remembered: Downs, event: Event) -> Downs:
    """Return the memory after an event HOST_FORGOTTEN, which may be of a port."""
    subject = None if event.key is None else event.key.subject
    if subject is None or subject.kind != "port" or subject.part not in remembered:
        return remembered
    return {name: memory for name, memory in remembered.items() if name != subject.part}


def down_events(remembered: Downs, at: Stamp, boot_id: str) -> Iterator[Event]:
    """Yield events that rebuild this memory from nothing, for a checkpoint."""
    for name, memory in remembered.items():
        marks = " ".join(f"{when!r}:{times}" for when, times in memory.marks)
        data = PortCounted(**memory.counters._asdict(), since=memory.since, marks=marks or None)
        yield _event(name, at, boot_id, data)


def _marks(text: str | None) -> Iterator[tuple[float, int]]:
    for pair in (text or "").split()[-MARKS_KEPT:]:
        when, _, times = pair.partition(":")
        if times.isdecimal() and len(times) <= 12 and when.replace(".", "", 1).isdecimal() and len(when) <= 32:
            yield float(when), int(times)
