"""The journal: cut anywhere, what the daemon knows is the fold of what its ledger holds, by whatever door an event came in."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from gpuwarden.engine.journal import Journal, Step
from gpuwarden.features.active_test.judging.lease import Lease, begun, ended
from gpuwarden.features.active_test.judging.submission import submitted
from gpuwarden.features.evacuation.acknowledge import Acknowledged
from gpuwarden.features.evacuation.policy import events as evacuation
from gpuwarden.features.evacuation.policy.delivery import Aim, Delivery, Way
from gpuwarden.features.evacuation.policy.model import Sent
from gpuwarden.health.model import Event, EventKind
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.reader import read_only
from gpuwarden.ledger.rows import Memory
from gpuwarden.policy.model import Notice, Result
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.event_facts import GpuResetEvent, LogPosition
from gpuwarden_collectors.facts import Stamp
from support.active_tests import healthy, uuid, wrong_result, wrong_words
from support.evacuations import process
from support.hosts import slot
from support.ledgers import HERE, PATIENCE
from support.whole_node import WholeNode

JOB = "slurm/71"


async def _passes(node: WholeNode, number: int) -> None:
    gpu = number % 2 if number % 2 in node.host.gpus else 0  # the other may be gone, and accepted so
    if number % 3 == 0:
        node.host.change(gpu, remapped_rows_failure=number % 2)
    elif number % 3 == 1:
        node.host.change(gpu, pcie_width=(16, 8)[number // 3 % 2])
    for _ in range(1 + number % 8):
        node.step()


async def _line(node: WholeNode, number: int) -> None:
    node.step(node.host.xid(number % 2, (79, 95, 31, 94, 119, 48)[number % 6]))


async def _reset(node: WholeNode, number: int) -> None:
    node.step(GpuResetEvent(at=node.host.now, slot=slot(number % 2), ok=True))


async def _acknowledge(node: WholeNode, number: int) -> None:
    findings = node.verdict.findings
    if findings:
        with suppress(ValueError):
            node.append([node.engine.acknowledge(str(findings[number % len(findings)].key), "root", node.host.now)])


async def _accept(node: WholeNode, number: int) -> None:
    if number % 2:
        node.host.gpus.pop(1, None)
        node.host.devices.pop(1, None)
        node.step()
    with suppress(ValueError):
        node.append(node.engine.accept_inventory(node.host.now))


async def _announce(node: WholeNode, number: int) -> None:
    node.enforcement.orders.announce(60.0 * number, "power works", "root")


async def _call_off(node: WholeNode, _: int) -> None:
    with suppress(ValueError):
        node.enforcement.orders.call_off("root")


async def _cloud(node: WholeNode, number: int) -> None:
    now = node.host.now
    ends = Stamp(now.boottime + 10.0 * number, now.wall + 10.0 * number)
    notice = Notice(source="aws", kind="interruption", at=now, boot_id=node.host.boot_id, deadline=ends, id="aws-1")
    node.enforcement.announced("aws", [notice] if number % 4 else [])


async def _signal(node: WholeNode, number: int) -> None:
    """A job is signalled, as the executor writes it down."""
    boot, now = node.host.boot_id, node.host.now
    aims = tuple(Aim(receiver=process(100 * number + n), signal="TERM") for n in range(number % 4))
    way = (Way.LOCAL, Way.JOB_WIDE)[number % 2]
    for notice in list(node.departing.current())[:1]:
        delivery = Delivery(way=way if aims else Way.NONE, signal="TERM", receivers=aims, text="SIGTERM")
        node.append_soon(evacuation.signalling(notice, JOB, delivery, None, boot_id=boot, now=now))
        if number % 3:
            result = (Sent.SENT, Sent.UNSENT)[number % 2]
            node.append_soon([evacuation.signalled(notice, JOB, way, result, count=1, boot_id=boot, now=now)])


async def _job_acknowledges(node: WholeNode, number: int) -> None:
    for rank in range(number % 5):
        acknowledgement = Acknowledged(
            job=JOB, pid=100 + rank, started=1_000, uid=1_000, notice="", rank=rank, saved=rank % 2 == 0, step=7
        )
        node.departing.acknowledged(acknowledgement)


async def _leave(node: WholeNode, number: int) -> None:
    """Append the events that the executor writes of its other steps."""
    boot, now = node.host.boot_id, node.host.now
    notice = next(iter(node.departing.current()), "aws/aws-1")
    node.append_soon([
        (
            evacuation.requeued(JOB, number, boot_id=boot, now=now),
            evacuation.not_requeued(JOB, "it may not be", permanent=number % 2 == 0, boot_id=boot, now=now),
            evacuation.final_node_state(notice, "down", Result.DONE, "", boot_id=boot, now=now),
            evacuation.approving(notice, boot_id=boot, now=now),
            evacuation.approved(notice, Result.DONE, "", boot_id=boot, now=now),
        )[number % 5]
    ])  # fmt: skip


async def _checkpoint(node: WholeNode, _: int) -> None:
    if node.journal.recalled:
        node.ledger.append(checkpoint=node.journal.checkpoint(node.host.now))


async def _restart(node: WholeNode, number: int) -> None:
    """Every other time the ledger answers late, and events come before that."""
    await node.kill()
    await node.begin(PATIENCE if number % 2 else 0.0)
    if number % 4 == 0:
        await _line(node, number)


async def _reboot(node: WholeNode, _: int) -> None:
    await node.kill()
    node.host.reboot()
    await node.begin()


async def _tested(node: WholeNode, number: int) -> None:
    """Results of a test are handed in, some of them twice."""
    made = (healthy(number % 2), wrong_words(healthy(number % 2), (0, 64)), wrong_result(healthy(number % 2), (3, 1)))[
        number % 3
    ]
    for _ in range(1 + number % 2):
        test = replace(made, started=Stamp(float(number), float(number)))
        node.append(submitted(node.engine.state, [test], node.host.now, node.host.boot_id)[1])


async def _lease(node: WholeNode, number: int) -> None:
    until = Stamp(node.host.now.boottime + 60, node.host.now.wall + 60)
    lease = Lease(
        at=node.host.now,
        boot_id=node.host.boot_id,
        name=f"{number:016x}",
        gpus=uuid(0),
        level=Level.QUICK,
        until=until,
        workers="77",
    )
    node.append([begun(lease)])
    node.step(replace(node.host.xid(0, 43), pid=77 if number % 3 else 78))
    if number % 2:
        node.append([ended(lease, "over", node.host.now)])


DOORS: dict[str, Callable[[WholeNode, int], Awaitable[None]]] = {
    "passes": _passes,
    "line": _line,
    "reset": _reset,
    "acknowledge": _acknowledge,
    "accept": _accept,
    "exclude": lambda node, _: node.orders("exclude"),
    "restore": lambda node, _: node.orders("restore"),
    "announce": _announce,
    "call off": _call_off,
    "cloud": _cloud,
    "signal": _signal,
    "job acknowledges": _job_acknowledges,
    "leave": _leave,
    "checkpoint": _checkpoint,
    "restart": _restart,
    "reboot": _reboot,
    "tested": _tested,
    "lease": _lease,
}
"""Each way in which an event comes in; outcomes of the actuator come in beside them all, from its own task."""


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(story=st.lists(st.tuples(st.sampled_from(sorted(DOORS)), st.integers(0, 40)), max_size=10))
@example(story=[("exclude", 0), ("restart", 0), ("restore", 0), ("checkpoint", 0), ("line", 1), ("restart", 1)])
@example(story=[("line", 0), ("cloud", 9), ("signal", 2), ("job acknowledges", 4), ("checkpoint", 0), ("leave", 0)])
@example(
    story=[
        ("tested", 2),
        ("checkpoint", 0),
        ("acknowledge", 0),
        ("tested", 5),
        ("lease", 4),
        ("restart", 1),
        ("tested", 0),
    ]
)
@example(story=[("line", 1), ("acknowledge", 0), ("accept", 1), ("reboot", 0), ("announce", 2), ("call off", 0)])
def test_at_any_cut_the_live_state_is_the_fold_of_the_ledger(story: list[tuple[str, int]]) -> None:
    async def play(node: WholeNode) -> None:
        await node.begin()
        try:
            for door, number in story:
                await DOORS[door](node, number)
                await node.recalled()
                assert await node.on_disk() == node.live, door
        finally:
            await node.kill()

    with folder() as path:
        asyncio.run(play(WholeNode(path)))


# --- the journal itself


class Projected:
    """Counts what it folds; `breaks` at one kind."""

    def __init__(self, breaks: str = "") -> None:
        self.folded: list[str] = []
        self.breaks = breaks

    def fold(self, event: Event) -> None:
        if event.kind == self.breaks:
            raise RuntimeError(f"{event.kind} cannot be folded")
        self.folded.append(event.kind)

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        self.folded = []
        yield

    def checkpoint(self, now: Stamp) -> list[Event]:
        return [replace(event_of("summed"), at=now)]


def event_of(kind: str) -> Event:
    return Event(kind=kind, at=Stamp(1.0, 1.0), boot_id="b1")


@contextmanager
def journal(*projections: Projected) -> Iterator[tuple[Journal, list[Step]]]:
    steps: list[Step] = []
    with folder() as path:
        ledger = Ledger(path / "ledger.db", machine=HERE, boot_id="b1", clock=host_clock)
        made = Journal(ledger, request_step=steps.append, clock=host_clock)
        made.projections = projections
        try:
            yield made, steps
        finally:
            asyncio.run(ledger.close(PATIENCE))  # its thread would write into a folder that is being removed


def test_an_event_that_one_projection_cannot_fold_is_lost_to_that_one_alone() -> None:
    first, second = Projected(breaks="xid"), Projected()
    with journal(first, second) as (made, _), capture_logs() as lines:
        made.append([event_of("boot"), event_of("xid"), event_of("reset")])
    assert first.folded == ["boot", "reset"]
    assert second.folded == ["boot", "xid", "reset"]
    assert [(line["kind"], line["projection"]) for line in lines] == [("xid", "Projected")]


def test_who_folded_events_while_deciding_on_them_does_not_fold_them_again() -> None:
    first, second = Projected(), Projected()
    with journal(first, second) as (made, _):
        made.append([event_of("xid")], by=first)
    assert (first.folded, second.folded) == ([], ["xid"])


def test_a_recall_on_top_of_the_ledger_keeps_the_events_since_the_start() -> None:
    only = Projected()
    with journal(only) as (made, _):
        made.append([event_of("xid")])
        made.recall(Memory(events=(event_of("boot"),), begun=False))
        assert only.folded == ["boot", "xid"]
        made.append([event_of("reset")])
        made.recall(Memory(events=(event_of("ledger_moved"),), begun=True), late=True)
    assert only.folded == ["boot", "xid", "reset"]


def test_a_step_is_asked_for_by_events_and_by_nothing_else() -> None:
    with journal() as (made, steps):
        made.append([event_of("started")])
        made.append([], step=Step.NOW, position=LogPosition("b1", 1))
        made.append([event_of("saved")], step=Step.SOON)
        made.append([event_of("ordered")], step=Step.NOW)
    assert steps == [Step.SOON, Step.NOW]


def test_the_position_of_the_kernel_log_is_committed_with_the_events_of_its_lines() -> None:
    async def write(path: Path) -> Memory:
        ledger = Ledger(path / "ledger.db", machine=HERE, boot_id="b1", clock=host_clock)
        made = Journal(ledger, request_step=lambda _: None, clock=host_clock)
        memory = await ledger.open(PATIENCE)
        assert memory is not None
        made.recall(memory)
        made.append([event_of(EventKind.XID)], position=LogPosition("b1", 7))
        made.append([event_of(EventKind.INTENDED)])
        made.append([], position=LogPosition("b1", 8))
        assert await ledger.close(PATIENCE)
        with read_only(path / "ledger.db") as reader:
            return reader.memory()

    with folder() as path:
        memory = asyncio.run(write(path))
    assert memory.position == LogPosition("b1", 8)
    assert [event.kind for event in memory.events][-2:] == ["xid", "intended"]
