"""Durable memory of the errors of each NVLink: the value of its counter, and the ten-minute intervals in which it grew.

Time is divided into *cells* of ten minutes. A cell in which a counter grew is *marked*, regardless of the amount: a
retraining link counts several recoveries at once. Growth in the cell after a mark belongs to that mark, so that an
incident of a few minutes is not two marks. At most half of the cells of a day are marked.

Memory changes by events only; growth is measured against the last event. A restart loses nothing, and growth while the
daemon was down is one mark. There is at most one event per GPU and cell, and none while nothing grows. A counter that
decreased begins anew, and its first value is no growth, since links train after a reset and after a boot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import NamedTuple

from gpuwarden.health.event_data import read, write
from gpuwarden.health.model import Event, EventKind, Key, gpu
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts, Stamp

CELL = 600.0
"""Seconds."""
DAY = 144
"""Cells of the last day, which are kept and judged."""
SETTLES = 300.0
"""Seconds after a boot in which growth is no mark, since links train (`nvlink/detectors.py`, FABRIC_START)."""
COUNTED = "nvlink_link_errors"


class LinkCount(NamedTuple):
    """Memory of one link's counter.

    `value`: its value at the last event. `cell`: the cell of that event, -1 at the start of a counter. `base`: its
    first value, counted before gpuwarden read it. `marks`: marked cells, oldest first.
    """

    value: int
    base: int
    cell: int = -1
    marks: tuple[int, ...] = ()

    @property
    def settles(self) -> int:
        """The cell in which growth still belongs to the newest mark, or -1."""
        return self.marks[-1] + 1 if self.marks and self.marks[-1] == self.cell else -1


Links = Mapping[str, Mapping[int, LinkCount]]
"""By slot of the GPU and number of the link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Data of an event COUNTED. Links as `14:508 15:2`: number and value."""

    begun: str | None = None
    """Counters that are new, or decreased."""
    grown: str | None = None
    """Links whose counters grew; the cell of the event is marked for them."""
    settled: str | None = None
    """Links whose counters grew right after a mark, without a new mark."""
    marks: str | None = None
    """In checkpoints: `14:2966402,2966400,2966402`: number, cell of the last event, and the marked cells."""


_errors = attrgetter("replay_errors", "recovery_errors", "recoveries", "recovery_failures")
"""Replays and recoveries (NVLink 1 to 4) or recoveries (NVLink 5) since driver load. CRC, symbol and effective errors do not count: every link
has some and corrects them (DCGM has rates for them)."""
_UNREAD = (None, None, None, None)


def cell_at(now: Stamp) -> int:
    return int(now.wall // CELL)


def learn_links(links: Links, sight: Sight) -> list[Event]:
    """Return the events for changes of the counters since the last events."""
    now, boot_id = sight.now, sight.view.boot_id
    training = now.boottime < SETTLES
    return [
        event
        for facts in sight.answering
        for event in _of_gpu(links.get(facts.slot, {}), facts, now, boot_id, training=training)
    ]


def _of_gpu(
    counts: Mapping[int, LinkCount], facts: GpuFacts, now: Stamp, boot_id: str, *, training: bool
) -> Iterator[Event]:
    cell = cell_at(now)
    begun: list[str] = []
    grown: list[str] = []
    settled: list[str] = []
    for link in facts.links:
        errors = _errors(link)
        if errors == _UNREAD:
            continue
        value, before = sum(filter(None, errors)), counts.get(link.link)
        if before is None or value < before.value or (training and value != before.value):
            begun.append(f"{link.link}:{value}")
        elif value > before.value and cell != before.cell:  # the cell is lower after the clock was set back
            (settled if before.settles == cell else grown).append(f"{link.link}:{value}")
    if begun or grown or settled:
        data = Counted(begun=_text(begun), grown=_text(grown), settled=_text(settled))
        yield _event(facts.slot, now, boot_id, data)


def _event(slot: str, at: Stamp, boot_id: str, data: Counted) -> Event:
    return Event(kind=EventKind.COUNTED, at=at, boot_id=boot_id, key=Key(COUNTED, gpu(slot)), data=write(data))


def _text(pairs: list[str]) -> str | None:
    return " ".join(pairs) or None


def remembered(links: Links, event: Event) -> Links:
    """Return the memory after an event COUNTED."""
    if event.key is None or event.key.code != COUNTED:
        return links
    data, cell = read(Counted, event), cell_at(event.at)
    counts = dict(links.get(event.key.subject.slot, {}))
    for number, value in _numbers(data.begun):
        counts[number] = LinkCount(value, value, -1, counts[number].marks if number in counts else ())
    for number, value in _numbers(data.settled):
        if (count := counts.get(number)) is not None:
            counts[number] = count._replace(value=value, cell=cell)
    for number, value in _numbers(data.grown):
        if (count := counts.get(number)) is not None:
            marks = (*(mark for mark in count.marks if cell - DAY < mark < cell), cell)
            counts[number] = LinkCount(value, count.base, cell, marks)
    for number, last, cells in _marks(data.marks):
        if (count := counts.get(number)) is not None:
            counts[number] = count._replace(cell=last, marks=cells)
    return {**links, event.key.subject.slot: counts}


def link_events(links: Links, at: Stamp, boot_id: str) -> Iterator[Event]:
    """Yield events that rebuild this memory from nothing, for a checkpoint."""
    for slot, counts in links.items():
        begun = [f"{number}:{count.base}" for number, count in counts.items()]
        grown = [f"{number}:{count.value}" for number, count in counts.items() if count.value != count.base]
        marks = [f"{n}:{','.join(map(str, (c.cell, *c.marks)))}" for n, c in counts.items() if c.marks or c.cell >= 0]
        data = Counted(begun=_text(begun), settled=_text(grown), marks=_text(marks))
        yield _event(slot, at, boot_id, data)


def _numbers(text: str | None) -> Iterator[tuple[int, int]]:
    for pair in (text or "").split():
        number, _, value = pair.partition(":")
        if number.isdecimal() and value.isdecimal() and len(pair) <= 32:
            yield int(number), int(value)


def _marks(text: str | None) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    for pair in (text or "").split():
        number, _, cells = pair.partition(":")
        first, *marks = cells.split(",")
        valid = number.isdecimal() and all(mark.isdecimal() and len(mark) <= 12 for mark in marks)
        if valid and first.removeprefix("-").isdecimal() and len(first) <= 12:
            yield int(number), int(first), tuple(map(int, marks[-DAY:]))
