"""Calls of Slurm's commands wait for each other in one order, and a signal to a job waits for none that hangs. They are shell scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden_collectors.plugin.run import Run
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.errors import CalledOff, Unreachable
from gpuwarden_collectors.slurm.turns import AT_ONCE, Precedence, Turn, Turns
from support.daemons import PATIENCE
from support.waiting import until

SCRIPT = """#!/bin/sh
cd {folder}
[ -e "hangs.$1" ] && hangs=yes  # before it is known that it was asked: from then on the test may let others answer
echo "$1" >>asked
[ -n "$hangs" ] && exec sleep 1000
echo "$1"
"""


class Programs:
    """`hang`: which commands do, named by their first argument. `asked`: those that were started, in their order."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "scontrol").write_text(SCRIPT.format(folder=folder))
        (folder / "scontrol").chmod(0o755)
        self.client = SlurmClient(folder=folder, timeout=PATIENCE, node="n1")
        self.tasks: list[asyncio.Task[str | None]] = []

    def hang(self, *names: str) -> None:
        for name in names:
            (self.folder / f"hangs.{name}").touch()

    def answer(self, *names: str) -> None:
        for name in names:
            (self.folder / f"hangs.{name}").unlink()

    @property
    def asked(self) -> list[str]:
        path = self.folder / "asked"
        return path.read_text().split() if path.exists() else []

    async def begin(self, call: Callable[..., object], name: str) -> asyncio.Task[str | None]:
        """Begin a call, and return once its program was started and hangs."""
        before = self.asked.count(name)
        task: asyncio.Task[str | None] = asyncio.create_task(call("cannot ask", "scontrol", name))  # type: ignore[arg-type]
        self.tasks.append(task)
        await until(lambda: self.asked.count(name) > before)
        return task


@pytest.fixture
async def programs(tmp_path: Path) -> AsyncIterator[Programs]:
    made = Programs(tmp_path)
    yield made
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)
    await made.client.close()


async def finishes(call: Callable[..., object], name: str) -> None:
    async with asyncio.timeout(PATIENCE / 2):  # a call that hangs lasts twice as long
        await call("cannot call", "scontrol", name)  # type: ignore[misc]


async def test_behind_two_hanging_calls_an_evacuation_has_a_turn_of_its_own_and_the_routine_has_none(
    programs: Programs,
) -> None:
    client = programs.client
    programs.hang("drain", "undrain")
    for name in ("drain", "undrain"):
        await programs.begin(client.routine.change, name)
    later = asyncio.create_task(client.routine.ask("x", "scontrol", "read"))
    programs.tasks.append(later)
    for _ in range(2):
        await finishes(client.evacuation.ask, "squeue")
        await finishes(client.evacuation.change, "mark")
        await finishes(client.signals.change, "signal")
        await finishes(client.listing.ask, "listpids")
    assert programs.asked == ["drain", "undrain", *["squeue", "mark", "signal", "listpids"] * 2]
    assert not later.done()


async def test_a_question_of_the_routine_gives_way_to_an_evacuation_and_is_asked_again(programs: Programs) -> None:
    client = programs.client
    programs.hang("node", "jobs", "mark")
    waiting = [await programs.begin(client.routine.ask, name) for name in ("node", "jobs")]
    await programs.begin(client.evacuation.change, "mark")
    programs.answer("node", "jobs")
    await finishes(client.evacuation.ask, "squeue")
    async with asyncio.timeout(PATIENCE / 2):
        assert await waiting[0] == "node\n"
    assert programs.asked.count("node") == 2
    assert not waiting[1].done(), "only as many are ended as room is needed for"
    await finishes(client.evacuation.ask, "steps")


async def test_a_change_is_never_ended_for_another_call(programs: Programs) -> None:
    client = programs.client
    programs.hang("drain", "undrain", "mark")
    changes = [
        await programs.begin(commands.change, name)
        for commands, name in ((client.routine, "drain"), (client.routine, "undrain"), (client.evacuation, "mark"))
    ]
    signal = asyncio.create_task(client.signals.change("x", "scontrol", "signal"))
    programs.tasks.append(signal)
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in (*changes, signal))
    assert programs.asked == ["drain", "undrain", "mark"]


@pytest.mark.parametrize("third", ["listpids", "steps"])
async def test_a_signal_waits_behind_no_question_neither_to_slurmd_nor_to_the_controller(
    programs: Programs, third: str
) -> None:
    client = programs.client
    asks = {
        "squeue": client.evacuation,
        "config": client.evacuation,
        "listpids": client.listing,
        "steps": client.evacuation,
    }
    programs.hang(*asks)
    for name in ("squeue", "config", third):
        await programs.begin(asks[name].ask, name)
    await finishes(client.signals.change, "signal")
    await until(lambda: programs.asked.count(third) == 2)
    assert programs.asked == ["squeue", "config", third, "signal", third]


async def test_slurmds_list_waits_behind_no_question_to_the_controller(programs: Programs) -> None:
    client = programs.client
    programs.hang("squeue", "config", "steps")
    for name in ("squeue", "config", "steps"):
        await programs.begin(client.evacuation.ask, name)
    await finishes(client.listing.ask, "listpids")


async def test_an_evacuations_question_is_another_call_than_the_same_one_of_the_routine(programs: Programs) -> None:
    """The routine's call may hang already."""
    programs.hang("node")
    await programs.begin(programs.client.routine.ask, "node")
    programs.answer("node")
    await finishes(programs.client.evacuation.ask, "node")


async def test_programs_that_cannot_be_ended_leave_a_signal_its_try(
    programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, started = programs.client, list[str]()

    async def cannot_be_ended(
        command: tuple[str, ...], *_: object, left: Callable[[object], None], **__: object
    ) -> Run:
        started.append(command[1])
        left(Stuck())
        return Run(None, error="cannot be killed")

    monkeypatch.setattr("gpuwarden_collectors.slurm.client.run", cannot_be_ended)
    for name in ("node", "jobs", "partition"):
        with pytest.raises(Unreachable):
            await client.routine.ask("cannot ask", "scontrol", name)
    with pytest.raises(Unreachable, match="2 earlier commands of Slurm's hang in the kernel"):
        await client.evacuation.ask("cannot ask", "scontrol", "squeue")
    for name in ("signal", "another"):
        with pytest.raises(Unreachable):
            await client.signals.change("cannot signal", "scontrol", name)
    assert started == ["node", "jobs", "signal"]


class Stuck:
    pid = 1

    def gone(self) -> bool:
        return False


# --- the turns alone

ACTIONS = st.lists(
    st.tuples(st.sampled_from(["comes", "ends", "is cancelled"]), st.sampled_from(Precedence), st.integers(0, 9)),
    max_size=40,
)


class Call:
    """Holds its turn until it is ended. What may give way comes back at once, as the client's calls do."""

    def __init__(self, turns: Turns, precedence: Precedence, *, question: bool) -> None:
        self.precedence = precedence
        self.turn: Turn | None = None
        self.ends = asyncio.Event()
        self._question = question
        self.task = asyncio.create_task(self._go(turns))

    async def _go(self, turns: Turns) -> None:
        while not self.ends.is_set():
            ended = asyncio.Event()
            async with turns.turn(self.precedence, question=self._question) as turn:
                self.turn, turn.end = turn, ended.set
                if turn.gave_way:
                    ended.set()
                both = [asyncio.create_task(self.ends.wait()), asyncio.create_task(ended.wait())]
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for waiter in both:
                        waiter.cancel()
                    self.turn = None


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@given(ACTIONS)
def test_turns_are_bounded_none_is_lost_and_the_highest_precedence_waits_for_the_fewest(
    actions: list[tuple[str, Precedence, int]],
) -> None:
    async def work() -> None:
        turns, calls, over = Turns(), list[Call](), list[Call]()
        for action, precedence, which in actions:
            if action == "comes":
                calls.append(Call(turns, precedence, question=which % 2 == 0))
            elif calls:
                call = calls.pop(which % len(calls))
                call.ends.set() if action == "ends" else call.task.cancel()
                over.append(call)
            await settled()
            check(calls)
        for call in calls:
            call.ends.set()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(call.task for call in (*calls, *over)), return_exceptions=True)
        assert not turns._running

    asyncio.run(work())


def check(calls: list[Call]) -> None:
    running = [(call, call.turn) for call in calls if call.turn is not None]
    reserved = [call for call, turn in running if turn.reserved]
    common = len(running) - len(reserved)
    assert common <= AT_ONCE
    assert all(call.precedence < Precedence.ROUTINE for call in reserved)
    assert len(reserved) <= 1
    waiting = [call.precedence for call in calls if call.turn is None]
    if waiting:
        assert common == AT_ONCE
    if waiting and min(waiting) < Precedence.ROUTINE:
        assert reserved


async def test_a_call_that_is_cancelled_in_the_moment_in_which_it_gets_its_turn_gives_it_back() -> None:
    turns = Turns()
    held = [turns.turn(Precedence.ROUTINE, question=False) for _ in range(AT_ONCE)]
    for turn in held:
        await turn.__aenter__()
    waiting = Call(turns, Precedence.ROUTINE, question=True)
    await settled()
    await held[0].__aexit__(None, None, None)
    waiting.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting.task
    async with asyncio.timeout(PATIENCE), turns.turn(Precedence.ROUTINE, question=False):
        pass


@pytest.mark.parametrize("goes_on", [True, False])
async def test_whether_a_change_is_still_to_be_made_is_asked_once_it_is_its_turn(
    programs: Programs, goes_on: bool
) -> None:
    programs.hang("a", "b", "c")
    hanging = [await programs.begin(programs.client.evacuation.change, name) for name in "abc"]
    asked: list[int] = []

    def still() -> bool:
        asked.append(len(programs.asked))
        return goes_on

    change = asyncio.create_task(programs.client.evacuation.change("cannot change", "scontrol", "d", still=still))
    await settled()
    assert asked == []
    hanging[0].cancel()
    if goes_on:
        assert await change == "d\n"
    else:
        with pytest.raises(CalledOff, match="cannot change: it was cancelled"):
            await change
    assert (asked, "d" in programs.asked) == ([3], goes_on)


def test_the_precedences_of_a_client_are_those_of_its_commands() -> None:
    client = SlurmClient(node="n1")
    made: list[Commands] = [client.signals, client.listing, client.evacuation, client.routine]
    assert [commands.precedence for commands in made] == list(Precedence)
