"""Reads a trace into records. Only one line and the newest facts of each collector are in memory at a time."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Self

from gpuwarden.health.model import Event, EventKind, Key
from gpuwarden.health.view import Rules
from gpuwarden.trace.limits import MEMORY_MOST, Slots, bounded
from gpuwarden.trace.records import (
    FACTS,
    FORMAT,
    Accepted,
    Acknowledged,
    ActiveTested,
    Began,
    ErrorsChanged,
    HostEventsSeen,
    Passed,
    Record,
    RulesChanged,
)
from gpuwarden_collectors.base import Observation, PassOutcome, WorkerReport
from gpuwarden_collectors.changes import applied
from gpuwarden_collectors.codec import CodecError, from_wire
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import NvmlFacts, Stamp
from gpuwarden_collectors.pci_facts import PciFacts

LINE_MAX = 4 << 20
"""Most bytes of a line. Complete facts of 16 GPUs are 60 KB, ten thousand host events in one line 2 MB."""
BOOTTIME_MAX, WALL_MAX = 1e10, 2e11
"""Seconds: three hundred years of uptime, and a year with four digits."""
_DIGITS_MAX = 20  # of 2^64 - 1

Line = dict[str, Any]


class TraceError(Exception):
    """The trace cannot be read beyond `line`. The message has file, line, problem and remedy."""

    def __init__(self, name: str, line: int, problem: str) -> None:
        super().__init__(f"{name}, line {line}: {problem}")
        self.line = line


@dataclass(frozen=True, slots=True)
class _Last:
    facts: Any = None
    worker: WorkerReport | None = None


class TraceReader:
    """An open trace; iterating yields its records, and raises TraceError at the first line that cannot be read.

    The constructor raises OSError, and TraceError for a file that is not a trace or has a newer format. Several traces
    in one file are read as one. `version`: of the gpuwarden that wrote the first. `skipped`: number of lines of unknown
    kinds so far. `box`: the description in the first line of a frozen black box.
    """

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        self._raw = path.open("rb")
        zipped = self._raw.peek(2)[:2] == b"\x1f\x8b"
        self._file: BufferedIOBase = gzip.GzipFile(fileobj=self._raw) if zipped else self._raw
        self._number = 0
        self._offset = 0.0
        self._last: dict[str, _Last] = {}
        self._slots = Slots()
        self._part: tuple[str, int] | None = None
        self._until = -1.0
        self.skipped = 0
        self.box: Line | None = None
        try:
            self.version = self._header(self._next() or {})
        except TraceError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self._raw.close()

    def __iter__(self) -> Iterator[Record]:
        while (line := self._next()) is not None:
            if "trace" in line:  # another trace follows, as in a black box
                self._header(line)
                continue
            try:
                record = self._record(line)
            except CodecError as error:
                raise self._error(str(error)) from error
            if record is None:
                self.skipped += 1
            elif not (isinstance(record, Began) and self._goes_on(record)):
                yield record
        self._whole()

    def _goes_on(self, began: Began) -> bool:
        """Return True if the record begins the next part of the same recording. Later differences are based on it."""
        before, self._part = self._part, (began.life, began.part)
        return bool(began.life) and before == (began.life, began.part - 1)

    def _whole(self) -> None:
        """Raise TraceError if a black box ends before it was frozen: a file cut between flushes has a valid end."""
        frozen = None if self.box is None else self.box.get("ends")
        if frozen is not None and not (isinstance(frozen, float | int) and abs(self._until - frozen) < 0.001):
            raise self._error("the black box ends before the time at which it was frozen: its copy was cut short")

    # --- lines

    def _header(self, line: Line) -> str:
        if type(line.get("trace")) is not int:
            raise self._error('this is not a gpuwarden trace: the first line of one begins with {"trace":')
        written_by = str(line.get("gpuwarden"))[:40]
        if line["trace"] > FORMAT:
            newer = f"gpuwarden {written_by} wrote this trace in format {line['trace']}"
            raise self._error(f"{newer}, and this version reads formats up to {FORMAT}: use a newer one")
        if isinstance(line.get("box"), dict) and self.box is None:
            self.box = line["box"]
        return written_by

    def _next(self) -> Line | None:
        """Return the next line; None at a valid end."""
        self._number += 1
        try:
            line = self._file.readline(LINE_MAX + 1)
        except EOFError:
            raise self._error("the trace ends in the middle: its recorder was killed or its copy cut short") from None
        except (OSError, zlib.error) as error:
            raise self._error(f"the file is damaged: {error}") from error
        if not line:
            return None
        if not line.endswith(b"\n"):
            long = f"a line of more than {LINE_MAX} bytes: no trace has one"
            raise self._error(long if len(line) > LINE_MAX else "the trace ends in the middle of this line")
        try:
            content = _JSON.decode(line.decode())
        except (ValueError, RecursionError) as error:
            raise self._error(f"this is not JSON: {str(error)[:100]}") from None
        if type(content) is not dict:
            raise self._error("this is not a JSON object")
        return content

    def _error(self, problem: str) -> TraceError:
        return TraceError(self._name, self._number, problem)

    # --- records

    def _record(self, line: Line) -> Record | None:
        boottime = from_wire(float, line.get("at"))
        if "wall" in line:
            self._offset = from_wire(float, line["wall"]) - boottime
        at = _sane(Stamp(boottime, boottime + self._offset))
        self._until = boottime
        for kind, record in _KINDS.items():
            if kind in line:
                return record(line, at)
        if "pass" in line:
            return self._pass(line, at)
        if "began" in line:
            self._last.clear()
            began = replace(_began(line, at), passes=tuple(self._passes(line)))
            self._slots.add(event.key.subject.slot for event in began.memory or () if event.key is not None)
            return began
        return None

    def _passes(self, line: Line) -> Iterator[Observation[Any]]:
        lines = _list(line.get("passes", []))
        if len(lines) > 2 * len(FACTS):
            raise CodecError(f"{len(lines)} passes, and no daemon has more than {2 * len(FACTS)} newest ones", "passes")
        for entry in map(_object, lines):
            boottime = from_wire(float, entry.get("at"))
            if (passed := self._pass(entry, _sane(Stamp(boottime, max(0.0, boottime + self._offset))))) is not None:
                yield passed.observation

    def _pass(self, line: Line, at: Stamp) -> Passed | None:
        name = from_wire(str, line["pass"])
        if name not in FACTS:
            return None
        last = self._last.get(name, _Last())
        worker = _changed(WorkerReport | None, last.worker, line, "worker")
        facts = self._facts(name, last.facts, line)
        self._last[name] = _Last(facts, worker)
        outcome = from_wire(PassOutcome, line.get("outcome", PassOutcome.OBSERVED.value))
        observed = outcome is PassOutcome.OBSERVED
        if observed and facts is None:
            raise CodecError("a pass observed, but has no facts and none came before")
        took = from_wire(float, line.get("took", 0.0))
        observation = Observation(
            collector=name,
            outcome=outcome,
            started=Stamp(at.boottime - took, at.wall - took),
            finished=at,
            facts=facts if observed else None,
            error=from_wire(str, line.get("error", "")),
            worker=worker,
        )
        return Passed(observation)

    def _facts(self, name: str, old: object, line: Line) -> Any:
        if "facts" not in line:
            return old
        bounded(line["facts"])
        facts = _changed(FACTS[name], old, line, "facts")
        if isinstance(facts, NvmlFacts):
            self._slots.add(gpu.slot for gpu in facts.gpus)
        elif isinstance(facts, PciFacts):
            self._slots.add(device.slot for device in facts.devices)
        return facts


def _changed(kind: Any, old: object, line: Line, key: str) -> Any:
    try:
        return applied(kind, old, line[key]) if key in line else old
    except CodecError as error:
        raise error.below(f".{key}") from None


def _began(line: Line, at: Stamp) -> Began:
    lines = line.get("memory")
    if lines is not None and len(_list(lines)) > MEMORY_MOST:
        raise CodecError(f"{len(lines)} earlier events; a summary of a ledger has at most {MEMORY_MOST}", "memory")
    memory = None if lines is None else tuple(_event(event) for event in _list(lines))
    rules = from_wire(Rules, line.get("rules", {}))
    life, part = from_wire(str, line.get("life", "")), from_wire(int, line.get("part", 0))
    return Began(at=at, boot_id=from_wire(str, line["began"]), rules=rules, memory=memory, life=life, part=part)


def _host_events(line: Line, at: Stamp) -> HostEventsSeen:
    events = tuple(from_wire(HostEvent, event) for event in _list(line["events"]))
    for event in events:
        _sane(event.at)
    return HostEventsSeen(at=at, events=events)


def _errors_changed(line: Line, at: Stamp) -> ErrorsChanged:
    return ErrorsChanged(at=at, errors={name: from_wire(str, text) for name, text in _object(line["errors"]).items()})


def _acknowledged(line: Line, at: Stamp) -> Acknowledged:
    by = from_wire(str, line.get("by", ""))
    return Acknowledged(at=at, finding=from_wire(str, line["acknowledged"]), by=by)


def _active_tested(line: Line, at: Stamp) -> ActiveTested:
    events = tuple(_event(event) for event in _list(line["tested"])[:TESTED_MOST])
    if strange := [event.kind for event in events if event.kind not in _OF_TESTS]:
        raise CodecError(f"event {strange[0][:40]!r} does not belong to an active test", "tested")
    return ActiveTested(at=at, events=events)


_OF_TESTS = frozenset({EventKind.TEST_BEGUN, EventKind.TEST_ENDED, EventKind.TESTED, EventKind.RELEASED})
TESTED_MOST = 512
"""Most events of one active test, which makes two for each GPU."""


_KINDS: Mapping[str, Callable[[Line, Stamp], Record]] = {
    "events": _host_events,
    "errors": _errors_changed,
    "ruled": lambda line, at: RulesChanged(at=at, rules=from_wire(Rules, line["ruled"])),
    "acknowledged": _acknowledged,
    "accepted": lambda _, at: Accepted(at=at),
    "tested": _active_tested,
}
"""The kinds of lines that do not depend on other lines."""


def _event(line: object) -> Event:
    """Parse an event that `writer._event_line` wrote. Raises CodecError."""
    event = _object(line)
    at = [from_wire(float, clock) for clock in _list(event.get("at"))]
    if len(at) != 2:
        raise CodecError("expected two clocks, boottime and wall", "memory.at")
    key = from_wire(str | None, event.get("key"))
    return Event(
        kind=from_wire(str, event.get("kind")),
        at=_sane(Stamp(*at)),
        boot_id=from_wire(str, event.get("boot_id")),
        key=None if key is None else Key.parse(key),
        data={name: _scalar(value) for name, value in _object(event.get("data")).items()},
    )


def _scalar(value: object) -> str | int | float | bool | None:
    if isinstance(value, str | int | float | None):
        return value
    raise CodecError(f"expected one value, found {type(value).__name__}", "memory.data")


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise CodecError(f"expected a list, found {type(value).__name__}")
    return value


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CodecError(f"expected an object, found {type(value).__name__}")
    return value


def _sane(at: Stamp) -> Stamp:
    if not (0 <= at.boottime <= BOOTTIME_MAX and 0 <= at.wall <= WALL_MAX):
        raise CodecError(f"an implausible time: {at.boottime:g} s after boot, {at.wall:g} s in Unix time", "at")
    return at


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _float(text: str) -> float:
    value = float(text)
    return value if abs(value) < 1e300 else _no_number(text[:20])


def _int(text: str) -> int:
    return int(text) if len(text) <= _DIGITS_MAX else int(_no_number(f"{text[:_DIGITS_MAX]}…"))


_JSON = json.JSONDecoder(parse_constant=_no_number, parse_float=_float, parse_int=_int)
"""Created once, since `json.loads` would create one for every line."""
