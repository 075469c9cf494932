"""How often each port went down lately, durably: its counters, and when they grew in this boot.

Memory changes by events alone, as that of NVLinks (`nvlink/link_counters.py`): what a counter grew is what it shows beyond the last
event. An event is written for each time that a port goes down, until it flaps; from then on one in ten minutes. So a restart
loses nothing. What was counted while no daemon ran may be of any day: it counts as once, unless the port flapped already.
A boot begins anew, since ports train in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from gpuwarden.health.event_data import read, write
from gpuwarden.health.host.memory import PORTS_KEPT, port_subject
from gpuwarden.health.host.port_errors import MAXIMUM
from gpuwarden.health.model import Event, EventKind, Evidence, Key, Sighting
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts

FLAPPING = "infiniband_flapping"
FLAPS, WINDOW = 3, 3 * 3600.0
"""Three times down within three hours: what Azure's health agent takes for a flapping link."""
EACH = 600.0
"""A port that flaps has one event in each stretch of so many seconds."""
MARKS_KEPT = 32
"""More than events come in a window."""


class Counters(NamedTuple):
    """Counters of a port's outages; None: not read, or of no use. `seen_down` counts what passes see, and is used where `link_downed` is blind."""

    link_downed: int | None = None
    carrier_down: int | None = None
    seen_down: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PortDowns:
    """Outages of one port. `since`: when it was first read in this boot. `marks`: when it went down, and how often. Times of CLOCK_BOOTTIME."""

    counters: Counters
    """By the last event."""
    since: float
    marks: tuple[tuple[float, int], ...] = ()

    def lately(self, now: float) -> int:
        """Number of times the port went down within the window, by events."""
        return sum([times for at, times in self.marks if at > now - WINDOW])


Downs = Mapping[str, PortDowns]
"""By name of the port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortCounted:
    """COUNTED of a port: its counters from now on."""

    link_downed: int | None = None
    carrier_down: int | None = None
    seen_down: int | None = None
    downs: int = 0
    """Times down since the event before."""
    since: float | None = None
    """In checkpoints."""
    marks: str | None = None
    """In checkpoints: `7200.5:1 7230.0:2`."""


def is_blind(port: PortFacts) -> bool:
    """True if the port's own counter of outages is at its maximum, so that only what passes see can be counted."""
    return port.link_downed == MAXIMUM["link_downed"] and port.carrier_down is None


def counted_downs(
    remembered: Downs, followed: frozenset[str], infiniband: InfinibandFacts, now: Stamp, boot_id: str
) -> list[Event]:
    """The events for what the counters show beyond what is known. `followed`: ports that were read in this life before."""
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
    """Total growth of the counters. A counter that went backwards was reset and counts from zero."""
    pairs = [(a, b) for a, b in zip(old, new, strict=True) if a is not None and b is not None]
    return sum([now - before if now >= before else now for before, now in pairs])


def infiniband_flapping(infiniband: InfinibandFacts, remembered: Downs, now: float) -> list[Sighting]:
    """Ports that went down too often, by the port's counters, so that an interruption between two passes counts; by what passes
    saw if the counters are blind.
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
    """True if the port was not followed for the whole window yet. A port without counters has nothing to wait for."""
    return name in remembered and now - remembered[name].since < WINDOW


def _event(name: str, at: Stamp, boot_id: str, data: PortCounted) -> Event:
    key = Key(FLAPPING, port_subject(name))
    return Event(kind=EventKind.COUNTED, at=at, boot_id=boot_id, key=key, data=write(data))


def with_downs(remembered: Downs, event: Event) -> Downs:
    """Memory after an event COUNTED of a port."""
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
    """Memory after a HOST_FORGOTTEN, which may be of a port."""
    subject = None if event.key is None else event.key.subject
    if subject is None or subject.kind != "port" or subject.part not in remembered:
        return remembered
    return {name: memory for name, memory in remembered.items() if name != subject.part}


def down_events(remembered: Downs, at: Stamp, boot_id: str) -> Iterator[Event]:
    """Events that rebuild this memory from nothing."""
    for name, memory in remembered.items():
        marks = " ".join(f"{when!r}:{times}" for when, times in memory.marks)
        data = PortCounted(**memory.counters._asdict(), since=memory.since, marks=marks or None)
        yield _event(name, at, boot_id, data)


def _marks(text: str | None) -> Iterator[tuple[float, int]]:
    for pair in (text or "").split()[-MARKS_KEPT:]:
        when, _, times = pair.partition(":")
        if times.isdecimal() and len(times) <= 12 and when.replace(".", "", 1).isdecimal() and len(when) <= 32:
            yield float(when), int(times)
