"""A notice reaches the evacuation when it is appended, before any step of the judge; the exclusion follows from that step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import dropwhile
from pathlib import Path

import pytest

from gpuwarden.features.evacuation.policy.model import open_evacuations
from gpuwarden.health.model import EventKind
from gpuwarden.ledger.reader import read_only
from gpuwarden.policy.model import Notice
from gpuwarden.policy.notices import id_of
from gpuwarden_collectors.event_facts import XidEvent
from gpuwarden_collectors.facts import Stamp
from support.waiting import until
from support.whole_node import WholeNode

XIDS = (79, 95, 31, 94, 119, 48, 63, 64, 74, 92)


@asynccontextmanager
async def running(node: WholeNode) -> AsyncIterator[WholeNode]:
    """Run the node's daemon for one life."""
    await node.begin()
    try:
        yield node
    finally:
        await node.kill()


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    return WholeNode(tmp_path)


def spot(node: WholeNode, within: float = 120.0) -> Notice:
    now = node.host.now
    ends = Stamp(now.boottime + within, now.wall + within)
    return Notice(source="aws", kind="interruption", at=now, boot_id=node.host.boot_id, deadline=ends, id="aws-1")


def storm(node: WholeNode) -> Iterator[XidEvent]:
    """Yield Xids that keep the next step of the judge busy."""
    return (node.host.xid(gpu, number) for _ in range(100) for gpu in (0, 1) for number in XIDS)


def since_notice(node: WholeNode) -> list[str]:
    return [event.kind for event in dropwhile(lambda event: event.kind != EventKind.NOTICED, node.journal.recent)]


async def happened(node: WholeNode, kind: EventKind) -> None:
    await until(lambda: kind in [event.kind for event in node.journal.recent])


async def idle(node: WholeNode) -> None:
    """Wait until the evacuation waits for a notice."""
    async with asyncio.timeout(60.0):
        while "scan" not in node.order or node.departing._job_scan._reading is not None:
            await asyncio.sleep(0.001)


async def test_a_notice_wakes_the_evacuation_before_a_step_of_the_judge_however_long_that_takes(
    node: WholeNode,
) -> None:
    async with running(node):
        await idle(node)
        node.engine.ingest(storm(node), node.host.now)
        node.order.clear()
        node.enforcement.announced("aws", [spot(node)])
        assert since_notice(node) == [EventKind.NOTICED, EventKind.DEPARTING]
        assert node.order == []
        await happened(node, EventKind.INTENDED)
        assert node.order[:2] == ["scan", "step"]
        judged = since_notice(node)[2:]
        assert judged.index(EventKind.XID) < judged.index(EventKind.INTENDED)


async def test_a_daemon_killed_between_a_notice_and_its_step_excludes_the_node_and_goes_on_with_the_evacuation(
    node: WholeNode,
) -> None:
    notice = spot(node)
    async with running(node):
        node.enforcement.announced("aws", [notice])
    assert kinds_on_disk(node)[-2:] == [EventKind.NOTICED, EventKind.DEPARTING]
    async with running(node):
        await happened(node, EventKind.EXCLUDED)
        assert EventKind.DEPARTING not in [event.kind for event in node.journal.recent]
        assert list(open_evacuations(node.departing.state)) == [id_of(notice)]


async def test_a_notice_that_is_withdrawn_before_its_step_excludes_nothing_and_is_over_at_once(node: WholeNode) -> None:
    async with running(node):
        node.enforcement.announced("aws", [spot(node)])
        node.enforcement.announced("aws", [])
        assert since_notice(node) == [
            EventKind.NOTICED, EventKind.DEPARTING, EventKind.NOTICE_ENDED, EventKind.DEPARTED
        ]  # fmt: skip
        for _ in range(3):
            node.step()
            await asyncio.sleep(0)
        assert EventKind.INTENDED not in since_notice(node)


async def test_a_notice_begins_no_evacuation_until_the_end_is_near(node: WholeNode) -> None:
    async with running(node):
        node.enforcement.announced("aws", [spot(node, within=3_610.0)])
        assert since_notice(node) == [EventKind.NOTICED]
        for _ in range(4):  # 5 s each
            node.step()
        assert since_notice(node).count(EventKind.DEPARTING) == 1


async def test_a_notice_before_the_ledger_was_read_waits_for_what_an_earlier_daemon_did(node: WholeNode) -> None:
    notice = spot(node)
    async with running(node):
        node.enforcement.announced("aws", [notice])
        await happened(node, EventKind.EXCLUDED)

    def announced() -> None:
        node.enforcement.announced("aws", [replace(notice, at=node.host.now)])
        assert [event.kind for event in node.journal.recent] == [EventKind.NOTICED]

    await node.begin(meanwhile=announced)
    try:
        assert EventKind.DEPARTING not in since_notice(node)
        assert list(open_evacuations(node.departing.state)) == [id_of(notice)]
    finally:
        await node.kill()


def kinds_on_disk(node: WholeNode) -> Sequence[str]:
    with read_only(node.path) as reader:
        return [event.kind for event in reader.memory().events]
