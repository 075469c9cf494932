"""The one reader of the kernel log: follows it on the asyncio loop and delivers events in batches.

- **Key.** A record is (boot id, sequence). Reading starts at the oldest record there is; what the resumed position covers
  is skipped, so no record is delivered twice and none is left out. Missing numbers, as after EPIPE, become a `LogGap`.
  A log by syslog(2) is numbered by its times: records were lost there, nobody knows how many, if the oldest that there is
  comes after the position. A position of the other kind of log compares with nothing: what is there then is history, after a gap.
- **Time.** The log stamps records with its own clock: it starts at boot, stops while the machine is suspended, and is
  not steered by NTP, so that it is off by minutes after months. A record that was there before we caught up is stamped by
  that clock, shifted by boottime minus monotonic of this moment (right but for suspends between the record and now). A
  record that arrives while we follow is stamped when it arrives; but where this process stood still, it came at some time since the log
  was last read to its end, and is stamped within that by its own clock, corrected by how far that was off at the last record.
- **Belief.** Only the kernel's own records become events (`belief.py`); of the others, those that would have are counted.
- **Loop.** At most `RECORDS_PER_TURN` records, a millisecond or two, go by before other tasks have their turn. A read that takes longer is
  done in a thread, one at a time. If the source was closed meanwhile, what it brings is discarded: the position is still before it.
- **Errors** after the start close the log and open it again with growing pauses; `error` says so as long as it lasts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial

from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.base import Clock, CollectorError, host_clock
from gpuwarden_collectors.event_facts import BY_TIME, HostEvent, LogGap, LogOrigin, LogPosition, numbered_alike
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.kernel_log.belief import FACILITY, KERNEL, PACKET_FILTER, disbelieved
from gpuwarden_collectors.kernel_log.echoes import Echoes
from gpuwarden_collectors.kernel_log.lines import Record, event_of, parse_record
from gpuwarden_collectors.kernel_log.lockups import Lockups
from gpuwarden_collectors.kernel_log.sources import RecordSource, Turn, open_source

RECORDS_PER_TURN = 100
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds before the log is opened again after an error
BEAT = 5.0
"""Seconds after which a device is read though it reported no record, so that it is known when there was none."""
STOOD_STILL = 2 * BEAT
"""Seconds since the log was last read to its end: after more, this process stood still, and a record may have waited."""


OnEvents = Callable[[Sequence[HostEvent], LogPosition], None]
Aside = Callable[[Callable[[], Turn]], asyncio.Future[Turn]]
"""Does a read in a thread; RuntimeError is in the future where none can be started."""


def _in_executor(read: Callable[[], Turn]) -> asyncio.Future[Turn]:
    return asyncio.ensure_future(asyncio.to_thread(read))


class KernelLog:
    """Follows `path` from `resume` on and calls `on_events` with what it finds, with the position reached.

    `resume` counts only for the same boot. Events older than `history_before` (CLOCK_BOOTTIME, seconds) are marked as
    history. `facilities`: those whose records are believed. `aside`: how a read is done that takes long. Counters, since construction: `records` read, `malformed` ones, `gaps`
    and records `lost` in them, `errors`, and by reason the records that were `disbelieved` though they have the form of an event.
    `error` is empty while the log is followed.
    """

    def __init__(
        self,
        path: str,
        boot_id: str,
        on_events: OnEvents,
        *,
        resume: LogPosition | None = None,
        history_before: float | None = None,
        facilities: Collection[int] = (KERNEL,),
        clock: Clock = host_clock,
        monotonic: Callable[[], float] = time.monotonic,
        aside: Aside = _in_executor,
    ) -> None:
        self.records = self.malformed = self.gaps = self.lost = self.errors = 0
        self.disbelieved = {FACILITY: 0, PACKET_FILTER: 0}
        self.error = ""
        self._facilities = frozenset(facilities)
        self._path = path
        self._boot_id = boot_id
        self._on_events = on_events
        self._history_before = float("-inf") if history_before is None else history_before
        self._clock = clock
        self._monotonic = monotonic
        self._aside = aside
        self._echoes, self._lockups = Echoes(), Lockups()
        self._last = resume.sequence if resume and resume.boot_id == boot_id else None
        self._newest = -1  # highest sequence seen in this log, skipped records included
        self._caught_up = self._from_oldest = self._doubtful = False
        self._at_end = 0.0  # CLOCK_BOOTTIME at which the log was last read to its end
        self._behind = 0.0  # seconds by which the log's clock was behind CLOCK_MONOTONIC when the last record arrived
        self._source: RecordSource | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)

    @property
    def position(self) -> LogPosition | None:
        """Returns how far the log has been read, including records without an event; None before the first record."""
        return None if self._last is None else LogPosition(self._boot_id, self._last)

    @property
    def complete(self) -> bool:
        """True if the log has been read from the resumed position to its present end, without losing a record."""
        return self._caught_up and not self.gaps and not self.error

    def start(self) -> None:
        """Opens the log and follows it on the running loop. After an error it may be called again.

        Raises SourceAbsent or CollectorError, and then follows nothing.
        """
        self.close()
        try:
            self._follow(open_source(self._path))
        except CollectorError as error:
            self.error = str(error)
            raise
        self.error = ""

    def close(self) -> None:
        """Stops following, on the loop that follows; nothing is left running."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._source:
            if self._source.wait is not None:
                asyncio.get_running_loop().remove_reader(self._source.wait)
            self._source.close()
            self._source = None

    def _follow(self, source: RecordSource) -> None:
        self._caught_up = False
        loop = asyncio.get_running_loop()
        if source.wait is not None:
            try:
                loop.add_reader(source.wait, self._turn, source)
            except OSError as error:  # a character device that cannot be waited for, as /dev/null
                source.close()
                raise CollectorError(f"cannot follow the kernel log {self._path}: it is no log device") from error
        if source.poll is not None:
            self._timer = loop.call_later(0, self._turn, source)
        else:
            self._timer = loop.call_later(BEAT, self._beat, source)
        self._source = source

    def _beat(self, source: RecordSource) -> None:
        self._timer = asyncio.get_running_loop().call_later(BEAT, self._beat, source)
        self._turn(source)

    def _turn(self, source: RecordSource) -> None:
        read = partial(source.read, RECORDS_PER_TURN)
        if source.slow():
            self._aside(read).add_done_callback(partial(self._came, source))
        else:
            self._take(source, read)

    def _came(self, source: RecordSource, reading: asyncio.Future[Turn]) -> None:
        if source is self._source:
            self._take(source, reading.result)
        elif not reading.cancelled():
            reading.exception()  # else asyncio logs that nobody asked for it

    def _take(self, source: RecordSource, read: Callable[[], Turn]) -> None:
        try:
            turn = read()
        except OSError as error:
            self._try_again(f"cannot read the kernel log {self._path}: {error.strerror}; opening it again")
            return
        except RuntimeError as error:  # no thread could be started
            self._try_again(f"cannot read the kernel log {self._path}: {error}; opening it again")
            return
        self.error = ""
        self._backoff.succeeded()
        if source.poll is not None:
            if self._timer:
                self._timer.cancel()
            pause = source.poll if turn.drained else 0
            self._timer = asyncio.get_running_loop().call_later(pause, self._turn, source)
        self._deliver(turn)

    def _try_again(self, why: str) -> None:
        self.close()
        self.errors += 1
        self.error = why
        self._timer = asyncio.get_running_loop().call_later(self._backoff.failed(), self._reopen)

    def _reopen(self) -> None:
        self._timer = None
        try:
            self._follow(open_source(self._path))
        except CollectorError as error:
            self._try_again(str(error))

    def _deliver(self, turn: Turn) -> None:
        if turn.restarted:
            self._newest, self._from_oldest = -1, True
        now, monotonic = self._clock(), self._monotonic()
        events: list[HostEvent] = []
        for raw in turn.records:
            record = parse_record(raw)
            if record:
                events += self._events_of(record, self._time_of(record, now, monotonic))
            else:
                self.malformed += 1
        if turn.drained:
            events += [*self._rewound(now), *self._emptied(now)]
            self._caught_up, self._doubtful = True, False
            self._at_end = now.boottime
        position = self.position
        if events and position:
            self._on_events(events, position)

    def _time_of(self, record: Record, now: Stamp, monotonic: float) -> Stamp:
        offset = now.boottime - monotonic
        if not self._caught_up:
            return _shifted(record, now, offset)
        if now.boottime - self._at_end > STOOD_STILL:
            return _shifted(record, now, offset + self._behind, since=self._at_end)
        self._behind = monotonic - record.microseconds / 1e6
        return now

    def _events_of(self, record: Record, at: Stamp) -> list[HostEvent]:
        self._newest = max(self._newest, record.sequence)
        from_oldest, self._from_oldest = self._from_oldest, False
        if self._last is not None and not numbered_alike(self._last, record.sequence):
            self._doubtful = not self._caught_up
            events = self._gap(at, 0, record.sequence)
        elif self._last is not None and record.sequence <= self._last:
            return []
        else:
            events = self._missing(record, at, from_oldest=from_oldest)
        self._last = record.sequence
        self.records += 1
        history = self._doubtful or at.boottime < self._history_before
        event = event_of(record, at, self._boot_id, history=history)
        event = event or self._lockups.named(record)
        if event and (reason := disbelieved(record, self._facilities)):
            self.disbelieved[reason] += 1
        elif event and not self._echoes.is_echo(event, record.microseconds):
            self._lockups.begun(event, record)
            events.append(event)
        return events

    def _missing(self, record: Record, at: Stamp, *, from_oldest: bool) -> list[HostEvent]:
        """Returns the gap before this record. `from_oldest` says that the record is the oldest there is."""
        if self._last is None:
            return []
        if record.sequence >= BY_TIME:
            return self._gap(at, 0, record.sequence) if from_oldest else []
        lost = record.sequence - self._last - 1
        return self._gap(at, lost, record.sequence) if lost else []

    def _emptied(self, now: Stamp) -> list[HostEvent]:
        """Returns a gap if the log by syslog(2) is empty, since `dmesg --clear` hides its lines.

        What came before that and was not read is lost.
        """
        from_oldest, self._from_oldest = self._from_oldest, False
        if not from_oldest or self._last is None or self._last < BY_TIME:
            return []
        return self._gap(now, 0, self._last)

    def _rewound(self, now: Stamp) -> list[HostEvent]:
        """Returns a gap if the log ends before the resumed position.

        It is then another log, and waiting for that position would miss its records.
        """
        if self._last is None or not 0 <= self._newest < self._last:
            return []
        self._last = self._newest
        return self._gap(now, 0, self._newest)

    def _gap(self, at: Stamp, lost: int, sequence: int) -> list[HostEvent]:
        self.gaps += 1
        self.lost += lost
        return [LogGap(at=at, lost=lost, origin=LogOrigin(boot_id=self._boot_id, sequence=sequence))]


def _shifted(record: Record, now: Stamp, offset: float, since: float = float("-inf")) -> Stamp:
    boottime = min(now.boottime, max(since, record.microseconds / 1e6 + offset))
    return Stamp(boottime, now.wall - (now.boottime - boottime))
