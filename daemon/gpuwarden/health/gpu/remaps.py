"""History of the rows that each board remapped for corrected errors. The counter never falls in a board's life.

Counts and the wall time at which each was first seen are kept by board for a week, across restarts, reboots and changes
of slot. If a reading falls, as with a driver that lacks the InfoROM's record, its return to the old value is no growth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuwarden.health.event_data import read, write
from gpuwarden.health.events import Remapped
from gpuwarden.health.model import Event, EventKind, Key, Subject
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import Stamp

WINDOW = 7 * 86_400.0
SPACING = 600.0
"""Minimum seconds between two kept counts of one board."""
KEPT, BOARDS_KEPT = 32, 256
BOARD = "board"
"""Kind of subject of the events."""

Counts = tuple[tuple[float, int], ...]
RemapHistory = Mapping[str, Counts]


def learn_remaps(history: RemapHistory, sight: Sight) -> Iterator[Event]:
    """Yield an event for the first count of each board, and for higher ones at least `SPACING` apart."""
    for facts in sight.answering:
        count = facts.readings.remapped_rows_correctable
        if count is None or not facts.uuid:
            continue
        counts = history.get(facts.uuid)
        if counts is None or (count > counts[-1][1] and not 0.0 <= sight.now.wall - counts[-1][0] < SPACING):
            yield _event(facts.uuid, count, sight.now, sight.view.boot_id)


def _event(board: str, count: int, at: Stamp, boot_id: str) -> Event:
    key = Key("host", Subject(BOARD, part=board))
    return Event(kind=EventKind.HOST_LEARNED, at=at, boot_id=boot_id, key=key, data=write(Remapped(remapped=count)))


def with_count(history: RemapHistory, event: Event) -> RemapHistory:
    """Return the history with the count of one event. The newest count before the window stays as the base."""
    if event.key is None:
        return history
    board, at, count = event.key.subject.part, event.at.wall, read(Remapped, event).remapped
    counts = (*history.get(board, ()), (at, count))
    older = sum(when <= at - WINDOW for when, _ in counts)
    counts = counts[max(0, older - 1) :]
    if len(counts) > KEPT:
        counts = (counts[0], *counts[2:])
    others = {name: each for name, each in history.items() if name != board}
    return dict([*others.items(), (board, counts)][-BOARDS_KEPT:])


def remaps_lately(history: RemapHistory, board: str, count: int, wall: float) -> int:
    """Return how many of the board's `count` rows were remapped within the last `WINDOW`, as far as recorded."""
    counts = history.get(board, ())
    before = [total for at, total in counts if at <= wall - WINDOW] or [total for _, total in counts[:1]]
    return max(0, count - before[-1]) if before else 0


def remap_events(history: RemapHistory, now: Stamp, boot_id: str) -> Iterator[Event]:
    """Yield events that rebuild this history from nothing, for a checkpoint."""
    for board, counts in history.items():
        yield from (_event(board, count, Stamp(now.boottime, at), boot_id) for at, count in counts)
