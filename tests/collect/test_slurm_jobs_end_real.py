"""How jobs ended, by a real Slurm whose prolog and epilog are ours: each is asked for once, by its first node."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.jobs import JobsReader
from gpuwarden_collectors.slurm.jobs_facts import PROLOG_FAILED, Job
from support.slurm import SLURM_PARTS, Slurm, require_slurm, running
from support.slurm_rig_hooks import Rig
from support.whole_lines import whole_lines

pytestmark = [*SLURM_PARTS, pytest.mark.slow]
PASSES = 6
"""More than the questions about six jobs take, two in a pass, of one that was cancelled one."""
AGAIN = 99
"""Exit code for which Slurm puts a job back into the queue."""
PARTITIONS = (
    "PartitionName=low Nodes=n[1-3] Default=YES PriorityTier=1 PreemptMode=CANCEL GraceTime=60",
    "PartitionName=high Nodes=n[1-3] PriorityTier=2 PreemptMode=OFF",
)
LATER = 40.0
"""Seconds after the end: every job is due."""


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder:
        rig = Rig(Slurm(Path(folder), partitions=PARTITIONS))
        rig.slurm.more = f"{rig.prepare()}RequeueExit={AGAIN}\nPreemptType=preempt/partition_prio\nPreemptMode=CANCEL\n"
        with running(rig.slurm):
            yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    """Return the Slurm without the notes of jobs of tests before, each of which takes a question."""
    for name in module_rig.slurm.names:
        for note in module_rig.notes(name).iterdir():
            note.unlink()
    return module_rig


class Asking:
    """The jobs as each node reads them, and what was asked for that."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.asked: dict[str, list[str]] = {"scontrol": [], "sacct": []}
        self._readers = {name: self._of(name) for name in rig.slurm.names}

    def read(self) -> dict[str, dict[int, Job]]:
        """The jobs of each node, after as many passes as all questions take."""
        for reader in self._readers.values():
            for _ in range(PASSES):
                reader.read()
        return {name: {job.id: job for job in reader.read().jobs} for name, reader in self._readers.items()}

    def _of(self, name: str) -> JobsReader:
        return JobsReader(
            Path("/proc"),
            self._rig.notes(name),
            self._rig.slurm.conf,
            node=name,
            pids=tuple,
            ask=self._ask,
            clock=lambda: Stamp(time.clock_gettime(time.CLOCK_BOOTTIME) + LATER, time.time() + LATER),
        )

    def _ask(self, words: tuple[str, ...]) -> str:
        self.asked[words[0]].append(words[-1])
        try:
            return self._rig.slurm.command(*words, more={"SLURM_TIME_FORMAT": "%s"})
        except AssertionError as error:
            raise CollectorError(str(error)) from error


def begins(rig: Rig, job: int, *nodes: str) -> None:
    """Wait until it runs, and its prolog is done on these nodes: Slurm can call it running before."""
    notes = [rig.notes(name) / str(job) for name in nodes]
    rig.slurm.wait(lambda: all("started=" in whole_lines(note) for note in notes), f"the prologs of job {job}")
    rig.slurm.wait(lambda: rig.slurm.job_state(job) == "RUNNING", f"job {job} to run")


def ended(rig: Rig, job: int, *nodes: str) -> None:
    """Wait until the epilog has noted the end on these nodes, and Slurm has heard of it."""
    notes = [rig.notes(name) / str(job) for name in nodes]
    rig.slurm.wait(lambda: all("ended=" in whole_lines(note) for note in notes), f"the end of job {job}")
    rig.slurm.wait(lambda: rig.slurm.has_ended(job), f"job {job} to be complete")


def test_the_first_node_says_how_each_job_ended(rig: Rig) -> None:
    slurm = rig.slurm
    on = ("--gres=gpu:1", "-w", "n1")
    failed = slurm.submit("exit 3", *on)
    killed = slurm.submit("kill -9 $$", *on)
    step = slurm.submit('srun sh -c "exit 7"; exit 0', *on)
    cancelled = slurm.submit("sleep 300", *on)
    two = slurm.submit("sleep 300", "--gres=gpu:1", "-N2", "-w", "n2,n3")
    forged = slurm.submit("true", *on, "-J", "x\n   JobState=NODE_FAIL Reason=NodeDown FailedNode=n9 Dependency=(null)")
    begins(rig, cancelled, "n1")
    begins(rig, two, "n2", "n3")
    slurm.command("scancel", str(cancelled))
    slurm.command("scancel", str(two), user="nobody")
    for job in (failed, killed, step, cancelled, forged):
        ended(rig, job, "n1")
    ended(rig, two, "n2", "n3")
    asking = Asking(rig)
    by_node = asking.read()
    first, second = by_node["n2"][two], by_node["n3"][two]
    assert (first.state, first.nodes, first.batch) == ("CANCELLED", 2, True)
    assert (second.state, second.nodes, second.batch) == ("", 2, False)
    assert sorted(asking.asked["scontrol"]) == sorted(map(str, (failed, killed, step, cancelled, two, forged)))
    assert sorted(asking.asked["sacct"]) == sorted(map(str, (cancelled, two))), (
        "who cancelled it, which nobody knows here"
    )
    assert (first.cancelled_by, by_node["n1"][cancelled].cancelled_by) == (None, None)
    of_n1 = by_node["n1"]
    assert (of_n1[failed].state, of_n1[failed].exit_code, of_n1[failed].signal) == ("FAILED", 3, None)
    assert (of_n1[killed].state, of_n1[killed].exit_code, of_n1[killed].signal) == ("FAILED", None, 9)
    assert (of_n1[step].state, of_n1[step].exit_code, of_n1[step].step_exit_code) == ("COMPLETED", 0, 7)
    assert (of_n1[cancelled].state, of_n1[cancelled].exit_code) == ("CANCELLED", None)
    assert of_n1[forged].state == "", "it says twice how it ended"


@pytest.mark.parametrize(
    "words", [("requeuehold",), ("requeuehold", "State=SpecialExit")], ids=["held", "special exit"]
)
def test_a_job_that_was_put_back_and_is_held_does_not_count_as_one_that_runs_again(
    rig: Rig, words: tuple[str, ...]
) -> None:
    slurm = rig.slurm
    job = slurm.submit("sleep 300", "--gres=gpu:1", "-w", "n1")
    begins(rig, job, "n1")
    slurm.scontrol(*words, str(job))
    note = rig.notes("n1") / str(job)
    slurm.wait(lambda: "ended=" in whole_lines(note), f"the end of job {job}")
    slurm.wait(lambda: slurm.job_state(job) in ("PENDING", "SPECIAL_EXIT"), f"job {job} to be back in the queue")
    assert Asking(rig).read()["n1"][job].state == "REQUEUE_HOLD"
    slurm.command("scancel", str(job))


def test_only_a_run_that_ended_by_itself_is_put_back_with_an_exit_code(rig: Rig) -> None:
    """`gpuwarden why` shows by it who put a job back (`features/why/model.py`)."""
    slurm, on = rig.slurm, ("--gres=gpu:1", "-w", "n1")
    go = slurm.folder / "jobs/go"
    by_its_code = slurm.submit(f"until [ -e {go} ]; do sleep 0.1; done; exit {AGAIN}", *on)
    by_others = slurm.submit("trap 'exit 7' TERM; sleep 300 & wait", *on)
    for job in (by_its_code, by_others):
        begins(rig, job, "n1")
    slurm.drain("n1", "neither begins again here")
    go.touch()
    slurm.scontrol("requeue", str(by_others))
    for job in (by_its_code, by_others):
        note = rig.notes("n1") / str(job)
        slurm.wait(lambda note=note: "ended=" in whole_lines(note), f"the end of job {job}")  # type: ignore[misc]
        slurm.wait(lambda job=job: slurm.job_state(job) == "PENDING", f"job {job} to be back in the queue")  # type: ignore[misc]
    jobs = Asking(rig).read()["n1"]
    put_back = [(jobs[job].state, jobs[job].exit_code) for job in (by_its_code, by_others)]
    assert put_back == [("REQUEUED", AGAIN), ("REQUEUED", None)]
    slurm.clear()


def test_a_job_that_the_prolog_refused_was_not_cancelled_by_anybody(rig: Rig) -> None:
    """Slurm cancels it, and reports why from 24.11 on only; `gpuwarden why` names the prolog by this number (`features/why/causes.py`)."""
    rig.verdict("n1")
    job = rig.slurm.submit("true", "--gres=gpu:1", "-w", "n1", "--no-requeue")
    ended(rig, job, "n1")
    refused = Asking(rig).read()["n1"][job]
    assert (refused.state, refused.exit_code, refused.signal) == ("CANCELLED", None, PROLOG_FAILED)
    (rig.folder / "run-n1/verdict").unlink()
    rig.slurm.clear()


def test_a_job_that_saves_and_ends_when_it_is_preempted_is_not_one_that_failed(rig: Rig) -> None:
    """The step ends by SIGTERM with an exit code of its own, long before the time that it has."""
    slurm, whole = rig.slurm, ("--gres=gpu:4", "--exclusive", "-w", "n1")
    begun = slurm.folder / "jobs/begun"
    step = f"trap 'exit 3' TERM; : >{begun}; while :; do sleep 0.2; done"
    low = slurm.submit(f'srun --input none bash -c "{step}"', *whole)
    slurm.wait(begun.exists, f"the step of job {low}")
    high = slurm.submit("sleep 300", *whole, "--partition=high")
    ended(rig, low, "n1")
    preempted = Asking(rig).read()["n1"][low]
    assert (preempted.state, preempted.exit_code) == ("PREEMPTED", None)
    slurm.command("scancel", str(high))
    slurm.clear()


@pytest.mark.parametrize("folder", ["/missing", "/etc"])
def test_a_job_whose_output_cannot_be_opened_has_slurms_error_in_place_of_a_signal(rig: Rig, folder: str) -> None:
    """`gpuwarden why` says so by this number (`features/why/causes.py`)."""
    words = ("sbatch", "--parsable", "--chdir=/tmp", "-w", "n1", "--gres=gpu:1", f"--output={folder}/%j.out", "--wrap")
    job = int(rig.slurm.command(*words, "true", user="nobody"))
    ended(rig, job, "n1")
    by_slurm = Asking(rig).read()["n1"][job]
    assert (by_slurm.state, by_slurm.exit_code, by_slurm.signal) == ("FAILED", None, 53)


def test_a_part_of_a_heterogeneous_job_is_known_to_have_other_nodes(rig: Rig) -> None:
    """Slurm ends each part as one that lost its node, and only from 24.11 on names the node."""
    slurm = rig.slurm
    parts = ("-w", "n1", "--gres=gpu:1", ":", "-w", "n2", "--gres=gpu:1")
    words = (
        "sbatch",
        "--parsable",
        "--chdir=/tmp",
        "--output=/dev/null",
        "--no-requeue",
        *parts,
        "--wrap",
        "sleep 300",
    )
    job = int(slurm.command(*words, user="nobody").split()[-1])
    begins(rig, job, "n1")
    begins(rig, job + 1, "n2")
    slurm.drain("n2", "broken", state="DOWN")
    ended(rig, job, "n1")
    ended(rig, job + 1, "n2")
    by_node = Asking(rig).read()
    first, second = by_node["n1"][job], by_node["n2"][job + 1]
    assert (first.state, first.nodes, first.failed_here) == ("NODE_FAIL", 2, False)
    assert (second.state, second.nodes) == ("NODE_FAIL", 2)
    assert second.failed_here == (first.failed_node == "n2")
    slurm.clear()
