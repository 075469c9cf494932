"""A ledger of 0.1.0 with every kind of event: it means the same to this version, which writes its events as 0.1.0 does."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.features.active_test.gate.state import Gate
from gpuwarden.features.active_test.judging.lease import Lease
from gpuwarden.features.active_test.judging.past import PastTest
from gpuwarden.features.bundle import memory as bundle
from gpuwarden.features.evacuation.policy import event_data as evacuation
from gpuwarden.features.repair import model as repair
from gpuwarden.features.why import stored as why
from gpuwarden.health import events as health
from gpuwarden.health.event_data import read, write
from gpuwarden.health.host import port_downs
from gpuwarden.health.host.memory import KnownPort
from gpuwarden.health.model import Event, EventKind, Key, Subject
from gpuwarden.health.nvlink import link_counters
from gpuwarden.ledger.reader import read_only
from gpuwarden.ledger.rows import event_of, row_of
from gpuwarden.policy import events as policy
from gpuwarden.policy.model import Intent, Notice
from gpuwarden.policy.state import Hold
from support.whole_node import folded

FOLDER = Path(__file__).parents[1] / "data/ledger"
LEDGER = (FOLDER / "every_kind.sql").read_text()
FOLDED = (FOLDER / "every_kind.folded.jsonl").read_text()
"""The rows of a checkpoint of all that the ledger holds: its meaning, in a form that no renaming of code touches."""

TYPED: dict[str | tuple[str, str], type[Any]] = {
    EventKind.RISING: health.Raised,
    EventKind.RAISED: health.Raised,
    EventKind.XID: health.Lines,
    (EventKind.XID, "kept"): health.LinesKept,
    EventKind.SXID: health.Lines,
    (EventKind.SXID, "kept"): health.LinesKept,
    EventKind.AER: health.Lines,
    (EventKind.AER, "kept"): health.LinesKept,
    EventKind.KERNEL_LINE: health.Lines,
    (EventKind.COUNTED, link_counters.COUNTED): link_counters.Counted,
    (EventKind.COUNTED, port_downs.FLAPPING): port_downs.PortCounted,
    EventKind.TEST_BEGUN: Lease,
    EventKind.TEST_XID: health.Lines,
    EventKind.TESTED: PastTest,
    EventKind.GATE_WANTED: Gate,
    EventKind.GATE_BEGUN: Gate,
    EventKind.GATE_ENDED: Gate,
    EventKind.REPAIR_BEGUN: repair.Try,
    EventKind.REPAIR_ENDED: repair.Ended,
    EventKind.REPAIR_TRIED: repair.Try,
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
    EventKind.EXCLUDED_BY_OTHERS: policy.ExcludedByOthers,
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
    EventKind.FINAL_NODE_STATE: evacuation.FinalNodeState,
    EventKind.APPROVING: evacuation.Approving,
    EventKind.APPROVED: evacuation.Approved,
    EventKind.ANSWERED: evacuation.Answered,
    EventKind.OOM_KILL: health.OomKilled,
    EventKind.JOB_BEGUN: why.Begun,
    EventKind.JOB_USED: why.Used,
    EventKind.JOB_ENDED: why.Ended,
    EventKind.BUNDLE_MADE: bundle.BundleMade,
    EventKind.BUNDLE_FAILED: bundle.BundleFailed,
}
"""`kept`: in a checkpoint, where an event of this kind has other fields. With a part of the key, where the fields depend on it."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(LEDGER)
    return path


def test_every_kind_is_in_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        kinds = {kind for (kind,) in database.execute("SELECT kind FROM events UNION SELECT kind FROM checkpoint")}
    assert kinds == set(EventKind)


def test_it_means_what_it_meant_before(path: Path) -> None:
    checkpoint = [event_of(tuple(json.loads(line))) for line in FOLDED.splitlines()]
    with read_only(path) as reader:
        assert folded(reader.memory().events) == folded(checkpoint)


def test_what_is_typed_is_read_and_written_again_key_for_key(path: Path) -> None:
    columns = "kind, boot_id, boottime, wall, code, subject, detail, data"
    kinds = set()
    with closing(sqlite3.connect(path)) as database:
        for table in ("events", "checkpoint"):
            for row in database.execute(f"SELECT {columns} FROM {table}"):
                event = event_of(row)
                kind = kind_of(event)
                if (typed := TYPED.get(kind)) is not None:
                    assert row_of(replace(event, data=write(read(typed, event)))) == row
                    kinds.add(kind)
    assert kinds == TYPED.keys()


def kind_of(event: Event) -> str | tuple[str, str]:
    match event.kind, event.key:
        case EventKind.HOST_LEARNED, Key(subject=Subject(kind="port" as part)):
            return event.kind, part
        case EventKind.SUMMED | EventKind.COUNTED, Key(code=part):
            return event.kind, part
    return (event.kind, "kept") if event.data.get("kept") or "bursts" in event.data else event.kind


def test_each_of_its_rows_is_written_again_byte_for_byte(path: Path) -> None:
    columns = "kind, boot_id, boottime, wall, code, subject, detail, data"
    with closing(sqlite3.connect(path)) as database:
        for table in ("events", "checkpoint"):
            for row in database.execute(f"SELECT {columns} FROM {table}"):
                assert row_of(event_of(row)) == row
