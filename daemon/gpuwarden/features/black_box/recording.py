"""Records for the black box in the event loop: records become lines at once, which a thread writes every 30 seconds.

Nothing here blocks or grows: what the thread cannot take is dropped and counted, and a new segment begins, which does
not depend on what was lost.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuwarden import __version__
from gpuwarden.base.background import BackgroundWriter
from gpuwarden.base.log import get_logger
from gpuwarden.engine.engine import Engine
from gpuwarden.features.black_box.boxes import Box, Failure
from gpuwarden.features.black_box.ring import SEGMENT_MOST, Ring
from gpuwarden.health.view import Seen
from gpuwarden.trace.records import Began, ErrorsChanged, HostEventsSeen, Record
from gpuwarden.trace.writer import TraceWriter
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import Stamp

SEGMENT_SECONDS = 600.0
PIECE = 64 << 10
"""Bytes of lines that are handed to the thread before the next flush."""
WAITING_MOST = 512 << 10
"""Most bytes of lines that wait for the disk."""
EVENTS_MOST = 1000
"""Most host events of one line: a storm must not make a line that no reader accepts."""
AGAIN_AFTER = 30.0
"""Seconds between two attempts to begin a segment after a failed write."""
HANGS_AFTER = 60.0
"""Seconds of one write after which the disk is reported as hanging."""
SAVED_WITHIN = 60.0
"""Seconds for which a repair waits for the disk: as long as one write may take before it is reported as hanging."""
_JOBS_MOST = 64

log = get_logger()

Frozen = Callable[[Box], None]


class Recording:
    """Records what the engine reads. `frozen` is called in the thread with each new box."""

    def __init__(self, folder: Path, engine: Engine, frozen: Frozen) -> None:
        self.ring = Ring(folder)
        self.begun: Stamp | None = None
        """When the newest segment began; None before the first."""
        self._engine = engine
        self._frozen = frozen
        self._writer = BackgroundWriter("black box", _JOBS_MOST, on_error=self._failed)
        self._lines = io.BytesIO()
        self._trace = TraceWriter(self._lines, version=__version__)
        self._life, self._part = "", 0
        self._last = Stamp(0.0, 0.0)
        self._records = 0
        self._lost = 0
        self._lost_written = 0  # by the thread
        self._lost_reported = 0
        self._given = 0
        self._done = 0
        self._hole = False
        self._broken = 0
        self._failure = ""

    # --- records

    def take(self, record: Record) -> None:
        """Record what the engine has read."""
        if self._hole or self._broken == self._part:
            self._lost += 1
            return
        for part in _bounded(record):
            self._trace.write(part)
        self._records += 1
        self._last = max(self._last, record.at)
        if self._lines.tell() >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Hand the recorded lines to the thread."""
        if self._lines.tell() and not self._hole:
            until, part = self._last, self._part
            self._submit(lambda lines: self.ring.append(lines, until), part)

    def tend(self, now: Stamp, *, anew: bool = False) -> None:
        """Begin another segment if one is due. Called after a step, when nothing waits to be judged. `anew`: the
        judge's memory was replaced.
        """
        failed = self._hole or self._broken == self._part
        if self.begun is None or anew or failed:
            waits = self.waiting > 0 or (self.begun and now.boottime - self.begun.boottime < AGAIN_AFTER)
            if not (failed and waits):
                self._begin(now, secrets.token_hex(8))
        elif now.boottime - self.begun.boottime >= SEGMENT_SECONDS or self._is_large():
            self._begin(now, self._life)

    def freeze(self, failure: Failure, errors: Mapping[str, str]) -> None:
        """Freeze everything up to the step of this failure, which becomes the last record."""
        failure = replace(failure, at=max(failure.at, self._last))
        self.take(ErrorsChanged(at=failure.at, errors=dict(errors)))
        self.flush()
        if not self._writer.submit(lambda: self._freeze(failure)):
            log.error("black box not frozen: the disk hangs", finding=failure.finding)

    @property
    def lost(self) -> int:
        """Return how many records since the start are in no segment."""
        return self._lost + self._lost_written

    # --- segments

    def _begin(self, now: Stamp, life: str) -> None:
        self.flush()
        self._part = self._part + 1
        self._life = life
        engine = self._engine
        self._lines = io.BytesIO()
        self._trace = TraceWriter(self._lines, version=__version__)
        self._trace.write(
            Began(
                at=now,
                boot_id=engine.view.boot_id,
                rules=engine.rules,
                memory=tuple(engine.checkpoint(now)),
                passes=tuple(_newest(engine.view.passes)),
                life=life,
                part=self._part,
            )
        )
        self._trace.write(ErrorsChanged(at=now, errors=dict(engine.view.errors)))
        self.begun, self._last, self._hole = now, now, False
        lost, self._lost_reported = self.lost - self._lost_reported, self.lost
        boot_id = engine.view.boot_id
        self._submit(lambda lines: self.ring.begin(lines, boot_id, now, lost), self._part)

    def _is_large(self) -> bool:
        segments = self.ring.segments
        return bool(segments) and segments[-1].begun == self.begun and segments[-1].size >= SEGMENT_MOST

    def _submit(self, job: Callable[[bytes], None], part: int) -> None:
        lines, records = self._lines.getvalue(), self._records
        self._lines.seek(0)
        self._lines.truncate()
        self._records = 0
        if (self.waiting and self.waiting + len(lines) > WAITING_MOST) or not self._writer.submit(
            lambda: self._write(job, lines, part, records)
        ):
            self._hole = True
            self._lost += records
            return
        self._given += len(lines)

    # --- in the thread

    def _write(self, job: Callable[[bytes], None], lines: bytes, part: int, records: int) -> None:
        try:
            if self._broken != part:  # otherwise an earlier line is missing
                job(lines)
                self._failure = ""
                return
        except Exception:
            self._broken = part
            raise
        finally:
            self._done += len(lines)
            if self._broken == part:
                self._lost_written += records

    def _freeze(self, failure: Failure) -> None:
        try:
            box = self.ring.freeze(failure)
        except OSError as error:
            log.error("black box not frozen", finding=failure.finding, error=str(error))  # noqa: TRY400 - it says it all
            raise
        if box is not None:
            self._frozen(box)

    def _failed(self, error: Exception) -> None:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        self._failure = text or type(error).__name__

    # --- state

    def error(self, now: Stamp) -> str:
        """Return why the black box is not written; "" while it is."""
        hint = "free space there, or set black_box.enabled = false"
        if self._failure:
            return f"cannot write {self.ring.folder}: {self._failure}: present events are not recorded; {hint}"
        if (seconds := self._writer.stalled_for(now.boottime)) >= HANGS_AFTER:
            return f"writing to {self.ring.folder} hangs for {seconds:.0f} s: present events are not recorded; check the disk"
        return ""

    @property
    def waiting(self) -> int:
        """Return how many bytes of lines the thread has not written yet."""
        return self._given - self._done

    async def saved(self) -> None:
        """Return once all records are written and pending boxes have been handled, after SAVED_WITHIN at most."""
        self.flush()
        if not await self._writer.flush(SAVED_WITHIN):
            log.warning("black box not awaited: the disk hangs", seconds=SAVED_WITHIN)

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 - it gives up then, which is no error
        """Write the waiting lines, and end the thread."""
        self.flush()
        await self._writer.flush(timeout)
        self.end(0.0)

    def end(self, timeout: float) -> None:
        """Close it without an event loop. Blocks for `timeout` seconds at most."""
        self.flush()
        self._writer.close(timeout)


def _bounded(record: Record) -> Iterator[Record]:
    if not isinstance(record, HostEventsSeen) or len(record.events) <= EVENTS_MOST:
        yield record
        return
    for first in range(0, len(record.events), EVENTS_MOST):
        yield replace(record, events=record.events[first : first + EVENTS_MOST])


def _newest(passes: Mapping[str, Seen[Any]]) -> Iterator[Observation[Any]]:
    """Yield the newest pass of each collector, preceded by the pass that its facts are from."""
    for seen in passes.values():
        if seen.latest is None:
            continue
        if seen.facts is not None and seen.latest.outcome is not PassOutcome.OBSERVED and seen.at and seen.started:
            yield replace(
                seen.latest,
                outcome=PassOutcome.OBSERVED,
                started=seen.started,
                finished=seen.at,
                facts=seen.facts,
                error="",
            )
        yield seen.latest
