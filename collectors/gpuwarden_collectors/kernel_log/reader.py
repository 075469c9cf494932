"""The one reader of the kernel log: follows it on the asyncio loop and delivers events in batches.

- **Key.** (boot id, sequence) identifies a record. Reading starts at the oldest record and skips those up to the
  resumed position, so no record is delivered twice or omitted. Missing numbers, as after EPIPE, become a `LogGap`.
  Lines read by syslog(2) are numbered by time: if the oldest one is newer than the position, an unknown number of
  records was lost. Positions of the two kinds are not comparable: after a change of kind a gap is reported, and
  existing records are history.
- **Time.** Records carry the log's own clock, which starts at boot, stops during suspend and is not corrected by NTP,
  so it is off by minutes after months. A record from before the reader caught up gets that time, shifted by the present
  difference of CLOCK_BOOTTIME and CLOCK_MONOTONIC (wrong only if a suspend lies between the record and now). A record
  that arrives later gets the time of its arrival. If this process was stopped, the record may have arrived at any time
  since the log was last read to its end: then it gets the log's time, corrected by that clock's error at the last
  record, and limited to that interval.
- **Belief.** Only the kernel's own records become events (`belief.py`). Rejected ones that look like events are counted.
- **Loop.** At most `RECORDS_PER_TURN` records, a millisecond or two, are processed before other tasks run. A slow read
  is made in a thread, one at a time. If the source is closed meanwhile, the result is discarded; the position stays.
- **Errors** after the start close the log, which is opened again after growing pauses; `error` is set until then.
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
"""Seconds between reads of a device that reported no record: each read confirms that the log is at its end."""
STOOD_STILL = 2 * BEAT
"""Seconds since the log was last read to its end after which this process counts as stopped meanwhile."""


OnEvents = Callable[[Sequence[HostEvent], LogPosition], None]
Aside = Callable[[Callable[[], Turn]], asyncio.Future[Turn]]
"""Makes a read in a thread; the future has a RuntimeError if no thread can be started."""


def _in_executor(read: Callable[[], Turn]) -> asyncio.Future[Turn]:
    return asyncio.ensure_future(asyncio.to_thread(read))


class KernelLog:
    """Follows `path` from `resume` on, and calls `on_events` with the events and the position reached.

    `resume` only applies to the same boot. Events older than `history_before` (CLOCK_BOOTTIME, seconds) are marked as
    history. `facilities`: those whose records are accepted. `aside`: makes slow reads. Counters since construction:
    `records` read, `malformed` records, `gaps`, records `lost` in them, `errors`, and, by reason, `disbelieved`
    records in the form of an event. `error` is empty while the log is followed.
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
        """Returns the position of the last record read, with or without an event; None before the first record."""
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
        """Stops following. Call it on the loop that follows the log."""
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
            except OSError as error:  # a character device that epoll does not support, as /dev/null
                source.close()
                raise CollectorError(f"cannot follow the kernel log {self._path}: it is not a log device") from error
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
            reading.exception()  # otherwise asyncio logs an unretrieved exception

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
        """Returns the gap before this record, if any. `from_oldest`: the record is the oldest in the log."""
        if self._last is None:
            return []
        if record.sequence >= BY_TIME:
            return self._gap(at, 0, record.sequence) if from_oldest else []
        lost = record.sequence - self._last - 1
        return self._gap(at, lost, record.sequence) if lost else []

    def _emptied(self, now: Stamp) -> list[HostEvent]:
        """Returns a gap if syslog(2) returns no lines because of `dmesg --clear`.

        Unread lines from before the clear are lost.
        """
        from_oldest, self._from_oldest = self._from_oldest, False
        if not from_oldest or self._last is None or self._last < BY_TIME:
            return []
        return self._gap(now, 0, self._last)

    def _rewound(self, now: Stamp) -> list[HostEvent]:
        """Returns a gap if the log ends before the resumed position.

        It is then another log, whose records would be skipped until it reached that position.
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
