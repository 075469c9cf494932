"""When an archive is asked for at a failure, and what is remembered of the answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuwarden.cli.text import when
from gpuwarden.config.model import load
from gpuwarden.config.sources import Layer, Sources
from gpuwarden.engine.journal import Step
from gpuwarden.features.bundle.client import FINDINGS_MOST
from gpuwarden.features.bundle.daemon import ANSWERED_WITHIN, TOGETHER, Bundles, unanswered
from gpuwarden.features.bundle.memory import ANSWERS_MOST, BundleFailed, BundleMade, answered, answers_of
from gpuwarden.features.bundle.snapshot import shown
from gpuwarden.features.bundle.status_text import sections
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.model import Event, EventKind, Finding, Health, Severity, Verdict, gpu
from gpuwarden.health.state import State, fold
from gpuwarden.ledger.rows import event_of, row_of
from gpuwarden.publish import status
from gpuwarden_collectors.facts import Stamp
from support.bundling import answering
from support.repair_scenes import remembered
from support.snapshots import UPTIME, at, finding, slot, snapshot

NOW = at(UPTIME)
ONE = replace(finding("gpu_missing", gpu(slot(1))), severity=Severity.FAILURE, first_seen=at(UPTIME - 70))
ID = str(ONE.key)


def folded(*events: Event, state: State | None = None) -> State:
    state = state or State(boot_id="b")
    for event in events:
        state = fold(state, event)
    return state


def made(ident: str, second: float, missing: str = "") -> Event:
    return answered(BundleMade(finding=ident, file=f"/var/{second}.tar.zst", missing=missing), at(second), "b")


@pytest.mark.parametrize(
    ("finding", "counts"),
    [
        (ONE, True),
        (replace(ONE, severity=Severity.WARNING), False),
        (replace(ONE, shadow=True), False),
        (replace(ONE, confirmed=False), False),
        (replace(ONE, first_seen=at(UPTIME - 2 * ANSWERED_WITHIN)), True),
    ],
)
def test_only_a_failure_that_counts_has_an_archive(finding: Finding, counts: bool) -> None:
    assert [name for name, _ in unanswered([finding], {}, ())] == ([ID] if counts else [])


def test_one_that_has_an_answer_is_asked_for_again_only_after_it_ended_and_came_back() -> None:
    before, after = (
        folded(made(ID, UPTIME - 100)),
        folded(answered(BundleFailed(finding=ID, why="no"), at(UPTIME - 10), "b")),
    )
    assert [name for name, _ in unanswered([ONE], answers_of(before), ())] == [ID]
    assert unanswered([ONE], answers_of(after), ()) == []


def test_answers_survive_rows_and_checkpoints_and_the_oldest_is_forgotten() -> None:
    events = [made(f"xid.{number}@node", float(number)) for number in range(ANSWERS_MOST + 3)]
    state = folded(*(event_of(row_of(event)) for event in events))
    assert list(answers_of(state)) == [f"xid.{number}@node" for number in range(3, ANSWERS_MOST + 3)]
    again = folded(*checkpoint(state, NOW))
    assert answers_of(again) == answers_of(state)
    garbage = Event(kind=EventKind.BUNDLE_MADE, at=NOW, boot_id="b", data={"finding": 7, "file": None})
    assert answers_of(fold(state, garbage)) == answers_of(state)


class Node:
    """What the part uses of the daemon: a verdict, a state that folds what is appended, and a clock that is set."""

    def __init__(self, socket: Path) -> None:
        self.now = NOW
        self.verdict = Verdict(at=NOW, health=Health.FAILURE)
        self.engine, self.journal = self, self
        self.state = State(boot_id="b")
        self.appended: asyncio.Queue[Event] = asyncio.Queue()
        options = {"bundle": {"on_failure": True, "socket": str(socket)}}
        config = load(Sources(file=None, overrides=(Layer("test", options),)))
        self.part = Bundles(SimpleNamespace(config=config, boot_id="b"), self, lambda: self.now)  # type: ignore[arg-type]

    def append(self, events: list[Event], *, step: Step) -> None:
        assert step is Step.SOON
        for event in events:
            self.state = fold(self.state, event)
            self.appended.put_nowait(event)

    def fails(self, *findings: Finding, at_second: float) -> None:
        self.now = at(at_second)
        self.verdict = replace(self.verdict, findings=findings)
        self.part.step()

    async def event(self) -> Event:
        async with asyncio.timeout(60.0):
            return await self.appended.get()


async def test_failures_of_one_minute_are_one_archive_which_names_all_and_each_gets_its_event(tmp_path: Path) -> None:
    path, two = tmp_path / "s", replace(ONE, key=replace(ONE.key, subject=gpu(slot(2))))
    with answering(path, b'{"file": "/var/x.tar.zst", "missing": ["a", "b"]}') as asked:
        node = Node(path)
        node.fails(ONE, at_second=UPTIME)
        node.fails(ONE, two, at_second=UPTIME + TOGETHER - 1)
        node.fails(ONE, two, at_second=UPTIME + TOGETHER)
        node.fails(ONE, two, at_second=UPTIME + TOGETHER + 1)
        events = [await node.event(), await node.event()]
        node.fails(ONE, two, at_second=UPTIME + 3 * TOGETHER)
        await node.part.stop()
    assert [json.loads(request) for request in asked] == [{"findings": [ID, str(two.key)]}]
    data = {"file": "/var/x.tar.zst", "missing": "a, b"}
    assert [(event.kind, str(event.key), event.data) for event in events] == [
        (EventKind.BUNDLE_MADE, ident, {"finding": ident, **data, "since": ONE.first_seen.wall})
        for ident in (ID, str(two.key))
    ]


async def test_a_clock_that_is_set_back_before_the_answer_makes_no_failure_unanswered(tmp_path: Path) -> None:
    with answering(tmp_path / "s", b'{"file": "/var/x.tar.zst", "missing": []}'):
        node = Node(tmp_path / "s")
        node.fails(ONE, at_second=UPTIME)
        node.now = Stamp(NOW.boottime + TOGETHER, NOW.wall - 3600)
        node.part.step()
        event = await node.event()
        await node.part.stop()
    assert unanswered([ONE], answers_of(node.state), ()) == []
    assert remembered(event).bundles[ID] >= ONE.first_seen.wall  # a repair waits for it


async def test_a_failure_that_the_service_has_not_found_has_no_archive_and_the_others_have(tmp_path: Path) -> None:
    path, two = tmp_path / "s", replace(ONE, key=replace(ONE.key, subject=gpu(slot(2))))
    document = {"file": "/var/x.tar.zst", "missing": [], "not_found": [str(two.key)]}
    with answering(path, json.dumps(document).encode()):
        node = Node(path)
        node.fails(ONE, two, at_second=UPTIME)
        node.fails(ONE, two, at_second=UPTIME + TOGETHER)
        events = [await node.event(), await node.event()]
        await node.part.stop()
    assert [(event.kind, str(event.key)) for event in events] == [
        (EventKind.BUNDLE_MADE, ID),
        (EventKind.BUNDLE_FAILED, str(two.key)),
    ]


async def test_one_that_was_a_warning_for_an_hour_and_those_beyond_one_request_have_their_answer_once(
    tmp_path: Path,
) -> None:
    many = [replace(ONE, key=replace(ONE.key, detail=str(number))) for number in range(ANSWERS_MOST + 4)]
    late = [replace(finding, first_seen=at(UPTIME - 3600)) for finding in many]
    with answering(tmp_path / "s", *[b'{"file": "/var/x.tar.zst", "missing": []}'] * 5) as asked:
        node = Node(tmp_path / "s")
        node.fails(*(replace(finding, severity=Severity.WARNING) for finding in late), at_second=UPTIME - 60)
        for turn, count in enumerate((FINDINGS_MOST, FINDINGS_MOST, len(many) - 2 * FINDINGS_MOST, 0)):
            node.fails(*late, at_second=UPTIME + 1000 * turn)
            node.fails(*late, at_second=UPTIME + 1000 * turn + TOGETHER)
            for _ in range(count):
                await node.event()
            await asyncio.sleep(0.05)
        await node.part.stop()
    names = [name for request in asked for name in json.loads(request)["findings"]]
    assert sorted(names) == sorted(str(finding.key) for finding in many)


async def test_a_service_that_gives_none_is_an_event_with_the_reason(tmp_path: Path) -> None:
    node = Node(tmp_path / "none")
    node.fails(ONE, at_second=UPTIME)
    node.fails(ONE, at_second=UPTIME + TOGETHER)
    event = await node.event()
    await node.part.stop()
    assert (event.kind, event.data["finding"]) == (EventKind.BUNDLE_FAILED, ID)
    assert "systemctl enable --now gpuwarden-bundle.socket" in str(event.data["why"])


@pytest.mark.parametrize(
    ("last", "text"),
    [
        (
            made(ID, UPTIME - 5, "nvidia-bug-report.log.gz"),
            f"/var/{UPTIME - 5}.tar.zst; without nvidia-bug-report.log.gz",
        ),
        (answered(BundleFailed(finding=ID, why="no\nsocket"), at(UPTIME - 5), "b"), "none could be made: no\\nsocket"),
    ],
)
def test_status_shows_the_last_one_in_a_line(last: Event, text: str) -> None:
    answer = shown(folded(made("xid.1@node", 1.0), last), NOW)
    document = status.status(replace(snapshot(2), features={"bundle": answer}), NOW)
    ((_, lines),) = sections(document)
    assert lines == [f"{when(document['bundle']['at'])}, {ID}: {text}"]


def test_status_says_nothing_where_none_was_ever_asked_for() -> None:
    document = status.status(snapshot(2), NOW)
    assert (document["bundle"], list(sections(document))) == (None, [("archive for the vendor", [])])


def test_the_time_of_an_answer_is_that_of_its_event() -> None:
    answer = shown(folded(made(ID, 12.0)), Stamp(0.0, 0.0))
    assert answer is not None
    assert answer.at == at(12.0)
