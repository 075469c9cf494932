"""Ledgers that earlier commits wrote, with every kind of event: they mean the same to this version, and it writes their events as they did."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.health import events as health
from gpuwarden.health.event_data import read, write
from gpuwarden.health.host.memory import KnownPort
from gpuwarden.health.model import Event, EventKind, Key, Subject
from gpuwarden.ledger.reader import read_only
from gpuwarden.ledger.rows import event_of, row_of
from gpuwarden.policy import events as policy
from gpuwarden.policy.evacuation import event_data as evacuation
from gpuwarden.policy.model import Intent, Notice
from gpuwarden.policy.state import Hold
from support.whole_node import folded

FOLDER = Path(__file__).parents[1] / "data/ledger"
COMMITS = ["23d4377", "46086eb"]
"""`every_kind_COMMIT.sql` is a ledger as that commit wrote it, and `….folded.jsonl` the rows of a checkpoint of all that it held: the meaning of
the ledger, in a form that no renaming touches. 46086eb made the rows; those of overrides and signals were made again when an override got
the name and time of its operator, and a signal before a call-off stopped counting."""
_LINES = {EventKind.COUNTED, EventKind.KERNEL_LINE}
_TESTS = {EventKind.TEST_BEGUN, EventKind.TEST_ENDED, EventKind.TEST_XID, EventKind.TESTED, EventKind.RELEASED}
_GATES = {EventKind.GATE_ABLE, EventKind.GATE_WANTED, EventKind.GATE_BEGUN, EventKind.GATE_ENDED}
LATER = {"23d4377": {EventKind.LEDGER_LOST, *_LINES, *_TESTS, *_GATES}, "46086eb": _LINES | _TESTS | _GATES}
"""Kinds that came after it."""

TYPED: dict[str | tuple[str, str], type[Any]] = {
    EventKind.RISING: health.Raised,
    EventKind.RAISED: health.Raised,
    EventKind.XID: health.Lines,
    (EventKind.XID, "kept"): health.LinesKept,
    EventKind.SXID: health.Lines,
    (EventKind.SXID, "kept"): health.LinesKept,
    EventKind.AER: health.Lines,
    (EventKind.AER, "kept"): health.LinesKept,
    EventKind.RESET: health.Reset,
    EventKind.HEALTH: health.HealthSet,
    EventKind.GPU_PINNED: health.Pinned,
    EventKind.GPU_REPLACED: health.Pinned,
    (EventKind.HOST_LEARNED, "port"): KnownPort,
    (EventKind.SUMMED, "raises"): health.RaisedAt,
    (EventKind.SUMMED, "treatments"): health.Treated,
    EventKind.INTENDED: Intent,
    EventKind.OUTCOME: policy.Outcome,
    EventKind.EXCLUDED: Hold,
    EventKind.HELD: Hold,
    EventKind.RESTORED: policy.Restored,
    EventKind.LIFTED: policy.Lifted,
    EventKind.ORDERED: policy.Ordered,
    EventKind.NOTICED: Notice,
    EventKind.NOTICE_ENDED: policy.NoticeEnded,
    EventKind.DEPARTING: evacuation.Departing,
    EventKind.DEPARTED: evacuation.Departed,
    EventKind.SIGNALLING: evacuation.Signalling,
    (EventKind.SIGNALLING, "kept"): evacuation.KeptJob,
    EventKind.SIGNALLED: evacuation.Signalled,
    EventKind.SAVED: evacuation.Saved,
    (EventKind.SAVED, "kept"): evacuation.KeptSaved,
    EventKind.REQUEUED: evacuation.Requeued,
    EventKind.NOT_REQUEUED: evacuation.NotRequeued,
    EventKind.LAST_WORDS: evacuation.FinalNodeState,
    EventKind.APPROVING: evacuation.Approving,
    EventKind.APPROVED: evacuation.Approved,
    EventKind.ANSWERED: evacuation.Answered,
}
"""`kept`: in a checkpoint, where an event of this kind has other fields. With a part of the key, where the fields depend on it."""
GONE = {"facility"}
"""Keys that 23d4377 wrote, and no later commit."""
LATER_KEYS = {"23d4377": {"in_steps", "returned", "unsaved"}, "46086eb": set[str]()}
"""Keys that came after it, and are always written since."""


@pytest.fixture(params=COMMITS)
def commit(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def path(commit: str, tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((FOLDER / f"every_kind_{commit}.sql").read_text())
    return path


def checkpoint(commit: str) -> list[Event]:
    lines = (FOLDER / f"every_kind_{commit}.folded.jsonl").read_text().splitlines()
    return [event_of(tuple(json.loads(line))) for line in lines]


def test_every_kind_is_in_it(commit: str, path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        found = {kind for (kind,) in database.execute("SELECT kind FROM events UNION SELECT kind FROM checkpoint")}
    known = {kind for kind in EventKind if kind not in LATER[commit]}
    assert found == known


def test_it_means_what_it_meant_before(commit: str, path: Path) -> None:
    with read_only(path) as reader:
        assert folded(reader.memory().events) == folded(checkpoint(commit))


def test_what_is_typed_is_read_and_written_again_key_for_key(commit: str, path: Path) -> None:
    columns = "kind, boot_id, boottime, wall, code, subject, detail, data"
    kinds = set()
    with closing(sqlite3.connect(path)) as database:
        for table in ("events", "checkpoint"):
            for row in database.execute(f"SELECT {columns} FROM {table}"):
                event = event_of(row)
                kind = kind_of(event)
                if (typed := TYPED.get(kind)) is not None:
                    was = replace(event, data={name: event.data[name] for name in event.data if name not in GONE})
                    data = write(read(typed, was))
                    known = {name: data[name] for name in data if name in event.data or name not in LATER_KEYS[commit]}
                    assert row_of(replace(event, data=known)) == row_of(was)
                    kinds.add(kind)
    assert kinds == TYPED.keys()


def kind_of(event: Event) -> str | tuple[str, str]:
    match event.kind, event.key:
        case EventKind.HOST_LEARNED, Key(subject=Subject(kind="port" as part)):
            return event.kind, part
        case EventKind.SUMMED, Key(code=part):
            return event.kind, part
    return (event.kind, "kept") if event.data.get("kept") or "bursts" in event.data else event.kind


def test_each_of_its_rows_is_written_again_byte_for_byte(path: Path) -> None:
    columns = "kind, boot_id, boottime, wall, code, subject, detail, data"
    with closing(sqlite3.connect(path)) as database:
        for table in ("events", "checkpoint"):
            for row in database.execute(f"SELECT {columns} FROM {table}"):
                assert row_of(event_of(row)) == row
