"""Whose process it is that speaks: found by real looks at real processes, beside a Slurm that answers, hangs or is slow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuwarden.evacuation.job_scan import JobScan, Scanned
from gpuwarden.evacuation.slurm_job_scan import SlurmJobScan
from gpuwarden.policy.evacuation.plan import Seen
from gpuwarden_collectors.receivers.reader import ReceiversReader
from gpuwarden_collectors.slurm.client import SlurmClient
from support.ranks import Rank, rank

PATIENCE = 60.0
COMMANDS = """#!/bin/sh
cd {folder}
case "$1" in
listpids)
    if [ -e silent ]; then echo asked >>asked; read line <door; else echo asked >>asked; fi
    [ -e fails ] && exit 1
    echo "PID JOBID STEPID LOCALID GLOBALID"
    cat list;;
*) read line <never;;
esac
"""


class Host:
    """Of all processes it sees those it was given. Its controller hangs; slurmd lists `lists`, unless it `is_silent`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "proc").mkdir()
        for name in ("never", "door"):
            os.mkfifo(folder / name)
        for name in ("squeue", "scontrol"):
            (folder / name).write_text(COMMANDS.format(folder=folder))
            (folder / name).chmod(0o755)
        self.lists()
        self.gpus: set[int] = set()
        self.client = SlurmClient(node="n1", folder=folder, timeout=PATIENCE)
        self.looks = JobScan(ReceiversReader(folder / "proc"), SlurmJobScan(self.client), lambda: self.gpus)

    def sees(self, one: Rank) -> tuple[int, int]:
        (self.folder / "proc" / str(one.pid)).symlink_to(f"/proc/{one.pid}")
        return one.pid, one.started

    def lists(self, *ranks: Rank) -> None:
        (self.folder / "list").write_text("".join(f"{one.pid} 71 0 {n} {n}\n" for n, one in enumerate(ranks)))

    def is_silent(self) -> None:
        (self.folder / "silent").touch()
        (self.folder / "asked").unlink(missing_ok=True)

    async def speaks(self) -> None:
        """Once it was asked: the question that hangs is answered, and so are those that follow."""
        async with asyncio.timeout(PATIENCE):
            while not self.asked:
                await asyncio.sleep(0.01)
            (self.folder / "silent").unlink()
            while not self._go_on():
                await asyncio.sleep(0.01)

    def _go_on(self) -> bool:
        """Whether somebody waits at the door. In a thread this would wait for ever where nobody comes."""
        try:
            door = os.open(self.folder / "door", os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            return False
        with os.fdopen(door, "w") as file:
            file.write("go\n")
        return True

    @property
    def asked(self) -> int:
        path = self.folder / "asked"
        return len(path.read_text().split()) if path.exists() else 0

    async def look(self) -> Scanned:
        async def early(_: Seen) -> None:
            pass

        return await self.looks.scan(early)

    async def looks_until(self, holds: Callable[[Scanned], object]) -> Scanned:
        async with asyncio.timeout(PATIENCE):
            while not holds(look := await self.look()):
                pass
        return look


@asynccontextmanager
async def on(folder: Path) -> AsyncIterator[Host]:
    host = Host(folder)
    try:
        yield host
    finally:
        await host.looks.close()
        await host.client.close()


@pytest.fixture
def one() -> Iterator[Rank]:
    with rank() as process:
        yield process


def jobs(look: Scanned) -> list[str]:
    return [] if look.seen is None else [f"{job.kind}/{job.id}" for job in look.seen.jobs]


async def test_a_rank_is_its_job_s_however_long_the_controller_hangs(tmp_path: Path, one: Rank) -> None:
    """What waits for the controller takes no turn from what asks slurmd."""
    async with on(tmp_path) as host:
        process = host.sees(one)
        host.lists(one)
        for _ in range(3):  # by the second one all that is asked of the controller hangs
            assert jobs(await host.looks_until(lambda look: look.listed)) == ["slurm/71"]
        with rank() as late:
            host.lists(one, late)
            assert await host.looks.key_of(host.sees(late)) == "slurm/71"
        assert await host.looks.key_of(process) == "slurm/71"


async def test_nobody_is_told_to_be_of_no_job_before_slurmd_has_said_so(tmp_path: Path, one: Rank) -> None:
    async with on(tmp_path) as host:
        host.lists(one)
        host.is_silent()
        asks = [asyncio.create_task(host.looks.key_of(host.sees(one)))]
        with rank() as stranger:
            asks += [asyncio.create_task(host.looks.key_of(host.sees(stranger)))]
            for _ in range(2):
                look = await host.look()
                assert (look.listed, jobs(look)) == (False, [])
                assert "slurmd does not list the processes of jobs here: no answer within" in look.error
            assert not any(ask.done() for ask in asks)
            await host.speaks()
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*asks) == ["slurm/71", None]


async def test_who_was_listed_is_of_that_job_while_slurmd_is_silent_until_it_ends(tmp_path: Path, one: Rank) -> None:
    """Else it would look as if the ranks had ended, and the job be requeued while they save."""
    async with on(tmp_path) as host:
        process = host.sees(one)
        host.lists(one)
        await host.looks_until(lambda look: look.listed)
        host.lists()
        host.is_silent()
        for _ in range(2):
            assert jobs(await host.look()) == ["slurm/71"]
            assert await host.looks.key_of(process) == "slurm/71"
        one.heard_all()
        assert jobs(await host.look()) == []
        await host.speaks()


async def test_a_list_that_fails_is_none(tmp_path: Path, one: Rank) -> None:
    async with on(tmp_path) as host:
        host.sees(one)
        host.lists(one)
        await host.looks_until(lambda look: look.listed)
        (host.folder / "fails").touch()
        asked = host.asked
        while host.asked < asked + 4:  # each list is tried twice
            assert jobs(await host.look()) == ["slurm/71"]


async def test_while_slurmd_is_silent_who_only_holds_a_gpu_is_told_but_not_known_by_it(
    tmp_path: Path, one: Rank
) -> None:
    """It may be a rank: its answer belongs to the job, and waits."""
    async with on(tmp_path) as host:
        process = host.sees(one)
        host.gpus = {one.pid}
        host.lists(one)
        host.is_silent()
        assert jobs(await host.look()) == [f"process/{one.pid}"]
        ask = asyncio.create_task(host.looks.key_of(process))
        await host.look()
        assert not ask.done()
        await host.speaks()
        async with asyncio.timeout(PATIENCE):
            assert await ask == "slurm/71"


async def test_of_many_who_are_not_known_all_wait_for_one_look(tmp_path: Path, one: Rank) -> None:
    async with on(tmp_path) as host:
        stranger = host.sees(one)
        host.is_silent()
        asks = [asyncio.create_task(host.looks.key_of((stranger[0], stranger[1] + n))) for n in range(200)]
        await host.speaks()
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.gather(*asks) == [None] * 200
        assert host.asked <= 2  # those who asked while it was being listed wait for the next one


async def test_who_gives_up_takes_nobody_s_look_away(tmp_path: Path, one: Rank) -> None:
    async with on(tmp_path) as host:
        process = host.sees(one)
        host.lists(one)
        host.is_silent()
        hasty, patient = (asyncio.create_task(host.looks.key_of(process)) for _ in range(2))
        await asyncio.sleep(0)
        hasty.cancel()
        await asyncio.wait((hasty,))
        await host.speaks()
        async with asyncio.timeout(PATIENCE):
            assert await patient == "slurm/71"
