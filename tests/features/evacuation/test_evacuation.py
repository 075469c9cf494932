"""What drives an evacuation, beside real processes: between what is written down and what is sent the world may change."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuwarden.base.capabilities import FOR_SIGNALS, KILL, SYS_PTRACE, Capability
from gpuwarden.features.evacuation.acknowledge import Acknowledged
from gpuwarden.features.evacuation.acknowledgements import Acknowledgements
from gpuwarden.features.evacuation.active_notices import ActiveNotices
from gpuwarden.features.evacuation.daemon import gpu_processes
from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.features.evacuation.policy.model import Sent
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden.health.model import EventKind
from gpuwarden.policy.model import Notice
from gpuwarden.policy.notices import id_of
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import CallError, GpuAnswer, GpuFacts, GpuProcess
from gpuwarden_collectors.receivers.facts import LocalJob
from gpuwarden_collectors.receivers.reader import ReceiversReader
from gpuwarden_collectors.slurm.client import SlurmClient
from support.capabilities import without
from support.evacuation_rig import BOOT, PATIENCE, Rig, running
from support.evacuations import announced
from support.ranks import Rank, rank, traced

SIGNALS = (EventKind.SIGNALLING, EventKind.SIGNALLED)


@pytest.fixture
def job_rank() -> Iterator[Rank]:
    with rank() as process:
        yield process


def ending() -> Notice:
    return announced(120.0, at=host_clock().boottime)


@pytest.mark.slow
async def test_containers_are_signalled_before_slurm_responds_and_others_after_it_was_waited_for(
    tmp_path: Path, job_rank: Rank
) -> None:
    """Slurm knows nothing of a container, but may know a process that merely holds a GPU."""
    never = tmp_path / "never"
    os.mkfifo(never)
    for name in ("squeue", "scontrol"):
        (tmp_path / name).write_text(f"#!/bin/sh\nread line <{never}\n")
        (tmp_path / name).chmod(0o755)
    client = SlurmClient(node="n1", folder=tmp_path, timeout=PATIENCE)
    with rank() as other:
        rig = Rig(tmp_path, job_rank, slurm=SlurmJobScan(client, tmp_path / "signals"))
        rig.contains(other)
        rig.committed.set()
        async with running(rig):
            rig.acts(ending())
            await rig.wait(lambda: rig.kinds().count(EventKind.SIGNALLED) == 2, "both")
            assert (other.received(), job_rank.received()) == ("TERM", "TERM")
    await client.close()
    signalled = [(str(e.kind), str(e.data["job"]).partition("/")[0]) for e in rig.written if e.kind in SIGNALS]
    assert signalled == [
        ("signalling", "container"), ("signalled", "container"), ("signalling", "process"), ("signalled", "process"),
    ]  # fmt: skip


@asynccontextmanager
async def without_an_answer(folder: Path) -> AsyncIterator[tuple[Rig, Rank]]:
    """A rank of a job of two nodes, whose controller never answers."""
    never = folder / "never"
    os.mkfifo(never)
    with rank(env={"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_JOB_NUM_NODES": "2"}) as target:
        listed = f"echo PID JOBID STEPID LOCALID GLOBALID; echo {target.pid} 7 0 0 0"
        (folder / "squeue").write_text(f"#!/bin/sh\nread line <{never}\n")
        (folder / "scontrol").write_text(f'#!/bin/sh\n[ "$1" = listpids ] || read line <{never}\n{listed}\n')
        for name in ("squeue", "scontrol"):
            (folder / name).chmod(0o755)
        client = SlurmClient(node="n1", folder=folder, timeout=PATIENCE)
        rig = Rig(folder, target, slurm=SlurmJobScan(client, folder / "signals"))
        rig.committed.set()
        yield rig, target
    await client.close()


@pytest.mark.slow
@pytest.mark.parametrize("in_time", [True, False])
async def test_a_job_with_ranks_elsewhere_is_not_settled_before_the_controller_had_its_time_and_is_signalled_when_the_daemon_ends(
    tmp_path: Path, in_time: bool
) -> None:
    async with without_an_answer(tmp_path) as (rig, target):
        async with running(rig):
            rig.acts(announced(7_200.0 if in_time else 30.0, at=host_clock().boottime))
            await rig.wait(lambda: rig.departing.shown().error, "the controller to be missed")
            assert rig.departing.settled() is False
            if not in_time:
                await rig.writes(EventKind.SIGNALLED)
        assert (await rig.writes(EventKind.SIGNALLED)).data["way"] == "local"
        assert target.received() == "TERM"


@pytest.mark.slow
async def test_a_daemon_that_ends_in_the_middle_of_a_turn_signals_what_that_turn_left_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with without_an_answer(tmp_path) as (rig, target):
        ended: list[asyncio.Task[None]] = []
        expect = rig.departing._expect

        async def end_first(jobs: Iterable[LocalJob]) -> None:
            if not ended and rig.departing.shown().error:
                ended.append(asyncio.create_task(rig.departing.stop()))
                await asyncio.sleep(0)
            await expect(jobs)

        monkeypatch.setattr(rig.departing, "_expect", end_first)
        rig.departing.run()
        rig.acts(announced(7_200.0, at=host_clock().boottime))
        await rig.wait(lambda: ended and ended[0].done(), "its end")
        assert (await rig.writes(EventKind.SIGNALLED)).data["way"] == "local"
        assert target.received() == "TERM"


async def test_jobs_on_a_failing_gpu_that_is_ignored_are_left_alone_and_not_looked_for(
    tmp_path: Path, job_rank: Rank
) -> None:
    rig = Rig(tmp_path, job_rank)
    rig.committed.set()
    async with running(rig):
        gpu = announced(None, source="gpu", kind=FAILING_GPU, at=host_clock().boottime)
        rig.active = ActiveNotices(ignored=(gpu,))
        rig.departing.follow()
        await rig.wait(lambda: rig.departing.shown().preview, "it to be shown")
        assert rig.departing.shown().preview == (
            "gpu/gpu-1, failing_gpu: no job is signalled: jobs.failing_gpu is ignore",
        )
        assert (rig.kinds(), list(rig.departing.current())) == ([], [])


async def test_nothing_is_sent_before_it_is_on_disk(tmp_path: Path, job_rank: Rank) -> None:
    async with running(Rig(tmp_path, job_rank)) as rig:
        rig.acts(ending())
        await rig.writes(EventKind.SIGNALLING)
        await asyncio.sleep(0.2)
        assert EventKind.SIGNALLED not in rig.kinds()
        rig.committed.set()
        assert (await rig.writes(EventKind.SIGNALLED)).data["result"] == "sent"
        assert job_rank.received() == "TERM"


async def test_a_notice_withdrawn_before_the_commit_signals_nobody(tmp_path: Path, job_rank: Rank) -> None:
    async with running(Rig(tmp_path, job_rank)) as rig:
        rig.acts(ending())
        await rig.writes(EventKind.SIGNALLING)
        rig.acts()
        rig.committed.set()
        written = await rig.writes(EventKind.SIGNALLED)
        assert (written.data["result"], "cancelled" in str(written.data["text"])) == ("unsent", True)
        assert job_rank.received_all() == []


async def test_a_process_that_was_not_signalled_since_the_end_was_called_off_is_once_it_is_announced_again(
    tmp_path: Path, job_rank: Rank
) -> None:
    notice = ending()
    async with running(Rig(tmp_path, job_rank)) as rig:
        rig.acts(notice)
        await rig.writes(EventKind.SIGNALLING)
        rig.acts()
        rig.committed.set()
        await rig.writes(EventKind.SIGNALLED)
        rig.acts(notice)
        await rig.wait(lambda: rig.kinds().count(EventKind.SIGNALLED) == 2, "it to be signalled")
        assert job_rank.received() == "TERM"


async def test_a_trial_that_was_called_off_keeps_no_rank_from_the_signal_of_the_real_notice(
    tmp_path: Path, job_rank: Rank
) -> None:
    """The trial is a `gpuwarden notify-termination` by hand, which the job acknowledged."""
    trial = announced(600.0, source="operator", at=host_clock().boottime)
    async with running(Rig(tmp_path, job_rank)) as rig:
        rig.committed.set()
        rig.acts(trial)
        await rig.writes(EventKind.SIGNALLED)
        assert job_rank.received() == "TERM"
        job = str((await rig.writes(EventKind.SIGNALLED)).data["job"])
        rig.departing.acknowledged(
            Acknowledged(
                job=job, pid=job_rank.pid, started=job_rank.started, uid=os.getuid(), notice=id_of(trial), rank=0, saved=True, step=None,
            )
        )  # fmt: skip
        rig.acts()
        rig.acts(ending())
        await rig.wait(lambda: rig.kinds().count(EventKind.SIGNALLED) == 2, "the second signal")
        assert job_rank.received() == "TERM"
        assert "1 job is signalled to save" in await rig.departing.signalled()


@pytest.mark.parametrize("again", [False, True])
async def test_a_process_over_which_a_daemon_was_killed_gets_a_signal_only_where_the_site_asks_for_it(
    tmp_path: Path, job_rank: Rank, again: bool
) -> None:
    """All that the next daemon has is that it was to be sent."""
    notice = ending()
    async with running(Rig(tmp_path, job_rank)) as killed:
        killed.acts(notice)
        await killed.writes(EventKind.SIGNALLING)
        left = list(killed.written)
        killed.acts()
    assert job_rank.process.poll() is None
    rig = Rig(_folder(tmp_path), job_rank, signal_again=again)
    with rig.departing.rebuilding():
        for event in left:
            rig.departing.fold(event)
    rig.committed.set()
    async with running(rig):
        rig.acts(notice)
        written = await rig.writes(EventKind.SIGNALLED)
        assert (written.data["result"], f"kill -TERM {job_rank.pid}" in str(written.data["text"])) == ("unknown", True)
        if again:
            await rig.wait(lambda: rig.kinds().count(EventKind.SIGNALLED) == 2, "it to be signalled")
            assert job_rank.received() == "TERM"
    assert job_rank.received_all() == []
    assert rig.kinds().count(EventKind.SIGNALLING) == again


async def test_a_rank_under_a_debugger_gets_its_signal_once_that_has_left_it(tmp_path: Path, job_rank: Rank) -> None:
    rig = Rig(tmp_path, job_rank)
    rig.committed.set()
    async with running(rig):
        with traced(job_rank.pid):
            rig.acts(ending())
            written = await rig.writes(EventKind.SIGNALLED)
            assert (written.data["result"], "traces it" in str(written.data["text"])) == ("unsent", True)
        await rig.wait(lambda: "sent" in rig.results(), "the next attempt")
        assert job_rank.received() == "TERM"
    (job,) = rig.departing.shown().evacuations[0].jobs.values()
    assert (job.signalled, job.result, job.count) == (frozenset({(job_rank.pid, job_rank.started)}), Sent.SENT, 1)
    assert job_rank.received_all() == []


async def test_a_rank_whose_handler_was_being_replaced_gets_its_signal_afterwards(tmp_path: Path) -> None:
    with rank("TERM,USR1,USR2", "swaps") as target, rank() as other:
        rig = Rig(tmp_path, target)
        rig.contains(other)
        async with running(rig):
            rig.acts(ending())
            await rig.wait(lambda: rig.kinds().count(EventKind.SIGNALLING) == 2, "both to be signalled")
            os.kill(target.pid, signal.SIGUSR1)
            assert target.received() == "USR1"
            rig.committed.set()
            await rig.wait(lambda: "unsent" in rig.results(), "it not to be signalled")
            os.kill(target.pid, signal.SIGUSR2)
            assert target.received() == "USR2"
            await rig.wait(lambda: rig.results().count("sent") == 2, "the next attempt")
            assert (target.received(), other.received()) == ("TERM", "TERM")
        assert (target.received_all(), other.received_all()) == ([], [])


async def test_an_end_that_another_source_still_announces_goes_on(tmp_path: Path, job_rank: Rank) -> None:
    first, second = ending(), announced(60.0, source="gcp", at=host_clock().boottime)
    async with running(Rig(tmp_path, job_rank)) as rig:
        rig.acts(first, later=[second])
        await rig.writes(EventKind.SIGNALLING)
        rig.acts(second)
        rig.committed.set()
        await rig.writes(EventKind.SIGNALLED)
        assert job_rank.received() == "TERM"
        await rig.wait(lambda: rig.kinds().count(EventKind.SIGNALLING) == 2, "the second one to be considered")
        assert job_rank.received_all() == []


async def test_a_signalled_process_missing_from_the_job_scan_is_awaited_as_long_as_it_lives(
    tmp_path: Path, job_rank: Rank
) -> None:
    rig = Rig(tmp_path, job_rank)
    rig.committed.set()
    async with running(rig):
        rig.acts(ending())
        await rig.writes(EventKind.SIGNALLED)
    answers = Acknowledgements(tmp_path / "run", rig.proc, boot_id=BOOT, clock=host_clock)
    assert answers.misses(rig.departing.state, ())
    assert not answers.misses(rig.departing.state, ReceiversReader(rig.proc).read(rig.holders))
    job_rank.received_all()
    assert not answers.misses(rig.departing.state, ())


async def test_what_has_been_begun_is_done_before_the_daemon_stops(tmp_path: Path, job_rank: Rank) -> None:
    rig = Rig(tmp_path, job_rank)
    rig.departing.run()
    rig.acts(ending())
    await rig.writes(EventKind.SIGNALLING)
    stopping = asyncio.create_task(rig.departing.stop())
    await asyncio.sleep(0)
    rig.committed.set()
    await stopping
    assert EventKind.SIGNALLED in rig.kinds()
    assert job_rank.received() == "TERM"


@pytest.mark.parametrize("source", ["aws", "operator"])
async def test_the_end_of_a_rank_signalled_for_a_withdrawn_notice_does_not_acknowledge_the_next_one(
    tmp_path: Path, source: str
) -> None:
    """A program on the first real GPU ran three trainings in a row: the program was their job."""
    twice = "import subprocess, sys; [subprocess.run(sys.argv[1:]) for _ in range(2)]"
    with rank(prefix=(sys.executable, "-I", "-c", twice)) as first:
        rig = Rig(tmp_path, first)
        rig.admits(first.process.pid)
        rig.committed.set()
        async with running(rig):
            rig.acts(ending())
            await rig.writes(EventKind.SIGNALLED)
            rig.acts()
            os.kill(first.pid, signal.SIGKILL)
            second = await rig.child_of(first.process, beside=first.pid)
            rig.holders = {second}
            rig.admits(second)
            rig.written.clear()
            rig.acts(announced(120.0, source=source, at=host_clock().boottime))
            written = await rig.writes(EventKind.SIGNALLING)
            await rig.writes(EventKind.SIGNALLED)
            os.kill(second, signal.SIGKILL)
            await rig.writes(EventKind.SAVED)
    job = f"process/{first.process.pid}"
    assert (written.data["job"], str(written.data["processes"]).partition(":")[0]) == (job, str(second))
    ended = [event.data["pid"] for event in rig.written if event.kind == EventKind.SAVED]
    assert ended == [second]


async def test_an_acknowledgement_of_a_notice_withdrawn_before_the_job_is_known_does_not_count_for_the_next(
    tmp_path: Path, job_rank: Rank
) -> None:
    rig, job, second = Rig(tmp_path, job_rank), f"process/{job_rank.pid}", ending()
    for rank_number, notice in enumerate(("aws/gone@1", id_of(second))):
        rig.departing.acknowledged(
            Acknowledged(
                job=job,
                pid=job_rank.pid,
                started=job_rank.started,
                uid=0,
                notice=notice,
                rank=rank_number,
                saved=True,
                step=7,
            )
        )
    rig.committed.set()
    async with running(rig):
        rig.acts(second)
        await rig.writes(EventKind.SAVED)
    assert [event.data["rank"] for event in rig.written if event.kind == EventKind.SAVED] == [1]


async def test_the_end_and_a_failing_gpu_at_once_are_one_signal(tmp_path: Path, job_rank: Rank) -> None:
    gpu = announced(None, source="gpu", kind=FAILING_GPU, at=host_clock().boottime)
    rig = Rig(tmp_path, job_rank)
    rig.committed.set()
    async with running(rig):
        rig.acts(ending(), gpu)
        await rig.wait(lambda: rig.kinds().count(EventKind.SIGNALLING) == 2, "both to be considered")
        await rig.writes(EventKind.SIGNALLED)
        assert job_rank.received() == "TERM"
        assert job_rank.received_all() == []
        assert rig.kinds().count(EventKind.SIGNALLED) == 1


async def test_in_mode_observe_what_was_begun_in_mode_enforce_is_over(tmp_path: Path, job_rank: Rank) -> None:
    rig = Rig(tmp_path, job_rank)
    rig.acts(ending())
    again = Rig(_folder(tmp_path), job_rank, enforce=False)
    with again.departing.rebuilding():
        for event in rig.written:
            again.departing.fold(event)
    assert again.departing.current()
    again.acts(ending())
    assert not again.departing.current()
    assert again.kinds() == [EventKind.DEPARTED]


def _folder(folder: Path) -> Path:
    folder = folder / "again"
    folder.mkdir()
    return folder


def test_a_gpu_that_is_lost_is_held_by_those_who_had_it_for_as_long_as_they_live(job_rank: Rank) -> None:
    mine = GpuFacts(slot="0000:1b:00.0", index=0, processes=(GpuProcess(pid=job_rank.pid),))
    before = gpu_processes({}, [mine])
    lost = GpuFacts(slot="0000:1b:00.0", index=0, answer=GpuAnswer.LOST)
    asked = GpuFacts(
        slot="0000:1b:00.0", index=0, errors=(CallError(call="nvmlDeviceGetComputeRunningProcesses_v3", code=999),)
    )
    for observed in ([lost], [asked], []):
        assert gpu_processes(before, observed) == {"0000:1b:00.0": frozenset({job_rank.pid})}
    assert gpu_processes(before, [GpuFacts(slot="0000:1b:00.0", index=0)]) == {"0000:1b:00.0": frozenset()}
    job_rank.received_all()
    assert gpu_processes(before, [lost]) == {"0000:1b:00.0": frozenset()}


# --- without the capabilities that it takes, as in a pod that was not given them

NOBODY = 65_534


@pytest.mark.needs("root")
@pytest.mark.parametrize("lost", FOR_SIGNALS, ids=lambda lost: str(lost.name))
async def test_that_processes_of_others_cannot_be_signalled_is_reported_with_what_is_missing(
    lost: Capability, tmp_path: Path
) -> None:
    with rank(uid=NOBODY) as other:
        with without(*(bit for bit in (lost.bit, lost.stronger) if bit is not None)):
            async with running(Rig(tmp_path, other)) as rig:
                rig.committed.set()
                rig.acts(ending())
                await rig.wait(lambda: rig.departing.shown().error, "the error")
                error = rig.departing.shown().error
                assert f"cannot signal processes of other users: no CAP_{lost.name}: give it to the service" in error
                assert "jobs.signal of the chart" in error
                if lost is KILL:
                    assert "may not signal it" in str((await rig.writes(EventKind.SIGNALLED)).data)
        if lost is KILL:
            assert other.received_all() == []


@pytest.mark.needs("root")
async def test_a_rank_of_another_user_is_signalled_with_no_other_rights_than_those_that_are_named(
    tmp_path: Path,
) -> None:
    named = {right.bit for right in FOR_SIGNALS}
    with rank(uid=NOBODY) as other:
        with without(*(bit for bit in range(41) if bit not in named)):  # root of a pod that drops ALL
            async with running(Rig(tmp_path, other)) as rig:
                rig.committed.set()
                rig.acts(ending())
                assert (await rig.writes(EventKind.SIGNALLED)).data["count"] == 1
        other.received_all()


@pytest.mark.needs("root")
async def test_its_own_users_processes_are_signalled_without_any_capability(tmp_path: Path, job_rank: Rank) -> None:
    with without(KILL.bit, SYS_PTRACE.bit):
        async with running(Rig(tmp_path, job_rank)) as rig:
            rig.committed.set()
            rig.acts(ending())
            assert (await rig.writes(EventKind.SIGNALLED)).data["count"] == 1
            assert rig.departing.shown().error == ""
