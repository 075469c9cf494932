"""Whose process acknowledges: found by real scans of real processes, beside a Slurm that responds, hangs or is slow."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuwarden.features.evacuation.job_scan import JobScan, Scanned
from gpuwarden.features.evacuation.policy.plan import Seen
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
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
    """A host that sees those processes it was given. Its controller hangs; slurmd lists `lists`, unless it `is_silent`."""

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
        self.job_scan = JobScan(
            ReceiversReader(folder / "proc"), SlurmJobScan(self.client, folder / "signals"), lambda: self.gpus
        )

    def sees(self, rank: Rank) -> tuple[int, int]:
        (self.folder / "proc" / str(rank.pid)).symlink_to(f"/proc/{rank.pid}")
        return rank.pid, rank.started

    def lists(self, *ranks: Rank) -> None:
        (self.folder / "list").write_text("".join(f"{rank.pid} 71 0 {n} {n}\n" for n, rank in enumerate(ranks)))

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
        """Return True if somebody waits at the door, and let them in. In a thread this would wait for ever where nobody comes."""
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

    async def scan(self) -> Scanned:
        async def early(_: Seen) -> None:
            pass

        return await self.job_scan.scan(early)

    async def job_of(self, process: tuple[int, int]) -> str | None:
        membership = await self.job_scan.membership_of(process)
        return None if membership is None else membership.job

    async def scan_until(self, holds: Callable[[Scanned], object]) -> Scanned:
        async with asyncio.timeout(PATIENCE):
            while not holds(scan := await self.scan()):
                pass
        return scan


@asynccontextmanager
async def on(folder: Path) -> AsyncIterator[Host]:
    host = Host(folder)
    try:
        yield host
    finally:
        await host.job_scan.close()
        await host.client.close()


@pytest.fixture
def job_rank() -> Iterator[Rank]:
    with rank() as process:
        yield process


def jobs(scan: Scanned) -> list[str]:
    return [] if scan.seen is None else [f"{job.kind}/{job.id}" for job in scan.seen.jobs]


@pytest.mark.slow
async def test_a_rank_is_its_job_s_however_long_the_controller_hangs(tmp_path: Path, job_rank: Rank) -> None:
    """A question that waits for the controller takes no turn from those to slurmd."""
    async with on(tmp_path) as host:
        process = host.sees(job_rank)
        host.lists(job_rank)
        for _ in range(3):  # by the second one all that is asked of the controller hangs
            assert jobs(await host.scan_until(lambda scan: scan.listed)) == ["slurm/71"]
        with rank() as late:
            host.lists(job_rank, late)
            assert await host.job_of(host.sees(late)) == "slurm/71"
        assert await host.job_of(process) == "slurm/71"


@pytest.mark.slow
async def test_no_process_is_reported_as_without_a_job_before_slurmd_responds(tmp_path: Path, job_rank: Rank) -> None:
    async with on(tmp_path) as host:
        host.lists(job_rank)
        host.is_silent()
        asks = [asyncio.create_task(host.job_of(host.sees(job_rank)))]
        with rank() as stranger:
            asks += [asyncio.create_task(host.job_of(host.sees(stranger)))]
            for _ in range(2):
                scan = await host.scan()
                assert (scan.listed, jobs(scan)) == (False, [])
                assert "slurmd does not list the processes of jobs here: no answer within" in scan.error
            assert not any(ask.done() for ask in asks)
            await host.speaks()
            async with asyncio.timeout(PATIENCE):
                assert await asyncio.gather(*asks) == ["slurm/71", None]


@pytest.mark.slow
async def test_who_was_listed_is_of_that_job_while_slurmd_is_silent_until_it_ends(
    tmp_path: Path, job_rank: Rank
) -> None:
    """Otherwise it would appear as if the ranks had ended, and the job be requeued while they save."""
    async with on(tmp_path) as host:
        process = host.sees(job_rank)
        host.lists(job_rank)
        await host.scan_until(lambda scan: scan.listed)
        host.lists()
        host.is_silent()
        for _ in range(2):
            assert jobs(await host.scan()) == ["slurm/71"]
            assert await host.job_of(process) == "slurm/71"
        job_rank.received_all()
        assert jobs(await host.scan()) == []
        await host.speaks()


@pytest.mark.slow
async def test_a_list_that_fails_is_none(tmp_path: Path, job_rank: Rank) -> None:
    async with on(tmp_path) as host:
        host.sees(job_rank)
        host.lists(job_rank)
        await host.scan_until(lambda scan: scan.listed)
        (host.folder / "fails").touch()
        asked = host.asked
        while host.asked < asked + 4:  # each list is tried twice
            assert jobs(await host.scan()) == ["slurm/71"]


@pytest.mark.slow
async def test_while_slurmd_does_not_respond_a_process_that_only_holds_a_gpu_is_signalled_but_has_no_known_job(
    tmp_path: Path, job_rank: Rank
) -> None:
    """The process may be a rank: its answer belongs to the job, and waits."""
    async with on(tmp_path) as host:
        process = host.sees(job_rank)
        host.gpus = {job_rank.pid}
        host.lists(job_rank)
        host.is_silent()
        assert jobs(await host.scan()) == [f"process/{job_rank.pid}"]
        ask = asyncio.create_task(host.job_of(process))
        await host.scan()
        assert not ask.done()
        await host.speaks()
        async with asyncio.timeout(PATIENCE):
            assert await ask == "slurm/71"


async def test_many_unknown_processes_share_one_job_scan(tmp_path: Path, job_rank: Rank) -> None:
    async with on(tmp_path) as host:
        stranger = host.sees(job_rank)
        host.is_silent()
        asks = [asyncio.create_task(host.job_of((stranger[0], stranger[1] + n))) for n in range(200)]
        await host.speaks()
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.gather(*asks) == [None] * 200
        assert host.asked <= 2  # those who asked while it was being listed wait for the next one


async def test_a_cancelled_request_does_not_cancel_the_scan_of_another(tmp_path: Path, job_rank: Rank) -> None:
    async with on(tmp_path) as host:
        process = host.sees(job_rank)
        host.lists(job_rank)
        host.is_silent()
        hasty, patient = (asyncio.create_task(host.job_of(process)) for _ in range(2))
        await asyncio.sleep(0)
        hasty.cancel()
        await asyncio.wait((hasty,))
        await host.speaks()
        async with asyncio.timeout(PATIENCE):
            assert await patient == "slurm/71"
