"""The mark of a node that is tested, in a real Slurm: of several nodes no more than at_once go on, and no text of others is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden.actuators.fleet_turn import FleetTurn, TurnOptions, read_marks
from gpuwarden.features.active_test.at_once import TEST
from gpuwarden.features.active_test.gate.part import gate_turn
from gpuwarden.features.repair.budget import REPAIR
from gpuwarden.policy.fleet_marks import Mark
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.options import SlurmOptions
from support.slurm import CONTROLLER, SLURM_PARTS, Slurm

pytestmark = SLURM_PARTS


@pytest.fixture(autouse=True)
def _no_texts(slurm: Slurm) -> Iterator[None]:
    yield
    for name in slurm.names:
        slurm.scontrol("update", f"NodeName={name}", "Comment=", "Extra=")


async def entered(slurm: Slurm, *names: str, at_once: int = 2) -> dict[str, str]:
    """Return the answer to each of these nodes when all ask together."""
    clients = {name: SlurmClient(conf=slurm.conf, inherited=slurm.environment, node=name) for name in names}
    marks = {
        name: gate_turn(client, SlurmOptions(enabled=True), at_once=at_once, slurm_user="root", lasts=60.0, pause=3.0)
        for name, client in clients.items()
    }
    try:
        answers = await asyncio.gather(*(mark.enter() for mark in marks.values()))
        return dict(zip(names, answers, strict=True))
    finally:
        await asyncio.gather(*(client.close() for client in clients.values()))


def marked(slurm: Slurm) -> list[str]:
    return [name for name in slurm.names if "gpuwarden: test from=" in slurm.show(name)]


@pytest.mark.slow
def test_of_three_nodes_that_return_together_two_are_tested(slurm: Slurm) -> None:
    answers = asyncio.run(entered(slurm, *slurm.names))
    assert sum(not why for why in answers.values()) == 2
    assert marked(slurm) == [name for name in slurm.names if not answers[name]]


@pytest.mark.slow
def test_texts_of_others_stay_and_where_both_fields_are_taken_it_is_tested_uncounted(slurm: Slurm) -> None:
    slurm.scontrol("update", "NodeName=n1", "Comment=rack 7")
    assert asyncio.run(entered(slurm, "n1"))["n1"] == ""
    assert "Comment=rack 7" in slurm.show("n1")
    assert "Extra=gpuwarden: test" in slurm.show("n1")
    slurm.scontrol("update", "NodeName=n2", "Comment=rack 8", "Extra=x")
    assert asyncio.run(entered(slurm, "n2"))["n2"] == ""
    assert marked(slurm) == ["n1"]


@pytest.mark.slow
def test_a_mark_that_a_killed_daemon_left_counts_until_its_end_and_its_node_may_go_on(slurm: Slurm) -> None:
    now = time.time()
    slurm.scontrol("update", "NodeName=n1", f"Comment={Mark(TEST, now - 30, now + 600)}")
    assert "test.at_once allows 1" in asyncio.run(entered(slurm, "n2", at_once=1))["n2"]
    assert asyncio.run(entered(slurm, "n1", at_once=1))["n1"] == ""


def test_a_daemon_that_ends_between_its_two_counts_takes_its_mark_back(slurm: Slurm) -> None:
    async def cancelled() -> None:
        client = SlurmClient(conf=slurm.conf, inherited=slurm.environment, node="n1")
        gate_mark = gate_turn(client, SlurmOptions(enabled=True), at_once=1, slurm_user="root", lasts=60.0, pause=300.0)
        entering = asyncio.create_task(gate_mark.enter())
        try:
            while not await asyncio.to_thread(marked, slurm):
                await asyncio.sleep(0.05)
            entering.cancel()
            await asyncio.wait((entering,))
        finally:
            await client.close()

    asyncio.run(cancelled())
    assert marked(slurm) == []


def test_a_mark_that_slurm_could_not_end_is_ended_once_it_answers(slurm: Slurm) -> None:
    """A mark without an end keeps all other nodes from a repair for an hour by default."""
    quick = slurm.folder / "quick.conf"  # a client that gives up after 3 s instead of 10
    quick.write_text(f"{slurm.conf.read_text()}\nMessageTimeout=3\n")

    async def refused(_: Commands, __: str) -> str:
        return ""

    async def left() -> None:
        client = SlurmClient(conf=quick, inherited=slurm.environment, node="n1", timeout=60.0)
        options = TurnOptions(what=REPAIR, done="repaired", lasts=3_600.0, pause=0.0, kept=86_400.0, again=(0.1, 0.2))
        turn = FleetTurn(client, SlurmOptions(enabled=True), options, refused)
        try:
            assert await turn.enter() == ""
            slurm.pause(CONTROLLER)
            leaving = asyncio.create_task(turn.leave())
            while client.calls < 6 and not leaving.done():  # three calls of `enter`, one that fails, and another try
                await asyncio.sleep(0.05)
            slurm.resume(CONTROLLER)
            await leaving
            (mark,) = (await read_marks(client.routine, REPAIR))["n1"]
            assert mark.until <= time.time() + 1.0  # a mark has whole seconds
        finally:
            await client.close()

    asyncio.run(left())


def test_a_node_whose_slurm_does_not_answer_waits(tmp_path: Path) -> None:
    async def asked() -> str:
        client = SlurmClient(conf=tmp_path / "slurm.conf", inherited={"PATH": str(tmp_path)}, node="n1")
        gate_mark = gate_turn(client, SlurmOptions(enabled=True), at_once=1, slurm_user="root", lasts=60.0, pause=3.0)
        try:
            return await gate_mark.enter()
        finally:
            await client.close()

    assert asyncio.run(asked()).startswith("cannot count the nodes that are tested: ")
