"""`gpuwarden test --submit` on a real Slurm: an idle node is tested once, and gives way to every other job."""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden.config.model import load
from gpuwarden.config.sources import Sources
from gpuwarden.doctor.row import Grade, Row
from gpuwarden.features.active_test.idle import job as idle_job
from gpuwarden.features.active_test.idle.doctor import idle_tests
from gpuwarden_collectors.active_test.level import Level
from support.active_test_hosts import PASSES, gone, wait
from support.daemons import PATIENCE, Json, RunningDaemon, children
from support.idle_nodes import IdleCudaNode, IdleNode, idle_slurm, jobs, make_idle, submit
from support.slurm import SLURM, Slurm, require_slurm, running

pytestmark = SLURM
HANGS = [{"write": {"phase": "int8"}}, {"sleep": 300}]


@pytest.fixture(scope="module")
def slurm_rig() -> Iterator[Slurm]:
    """Two nodes and a partition for tests, for the fixture `slurm`."""
    require_slurm()
    with (
        tempfile.TemporaryDirectory(prefix="gw-idle-", ignore_cleanup_errors=True) as folder,
        running(idle_slurm(Path(folder))) as slurm,
    ):
        yield slurm


@pytest.fixture
def node(tmp_path: Path, slurm: Slurm) -> Iterator[IdleNode]:
    node = IdleNode(tmp_path, slurm)
    yield node
    node.end()


@pytest.fixture
def daemon(node: IdleNode) -> Iterator[RunningDaemon]:
    with node.daemon() as daemon:
        daemon.wait_status("healthy")
        yield daemon


def results(daemon: RunningDaemon) -> list[Json]:
    rows: list[Json] = daemon.status()["tests"]["results"]
    return rows


def no_job(slurm: Slurm) -> None:
    slurm.wait(lambda: not jobs(slurm), "the test's job to end")


@pytest.mark.slow
def test_an_idle_node_is_tested_whole_and_then_not_before_it_is_due(
    slurm: Slurm, node: IdleNode, daemon: RunningDaemon
) -> None:
    code, answer = submit(node)
    assert code == 0, answer
    wait(lambda: len(results(daemon)) == 4, "the results of four GPUs")
    assert {(row["level"], row["result"]) for row in results(daemon)} == {("quick", "nothing_found")}
    assert [answer for _, answer, _ in node.note(0)["answers"]] == ["all"]
    no_job(slurm)
    code, answer = submit(node)
    assert (code, answer["job"]) == (3, None)
    assert "ago at level quick or higher; test.every is 1d" in answer["text"]


@pytest.mark.slow
def test_a_running_test_is_preempted_by_any_job_and_leaves_an_interrupted_result(tmp_path: Path, slurm: Slurm) -> None:
    node = IdleCudaNode(tmp_path, slurm)
    node.cuda.add("hang cuEventSynchronize")
    try:
        with node.daemon() as daemon:
            daemon.wait_status("healthy")
            code, answer = submit(node)
            assert code == 0, answer
            wait(lambda: daemon.status()["tests"]["running"], "the test to run")
            pid = daemon.status()["tests"]["running"]["pid"]
            wait(lambda: len(children(pid)) >= 4, "its workers")
            workers = children(pid)
            job = slurm.submit("sleep 60", "--nodelist=n1", "--gres=gpu:1")
            slurm.wait(lambda: slurm.job_state(job) == "RUNNING", "the user's job to run")
            assert slurm.job_state(answer["job"]) == "PREEMPTED"
            assert all(gone(worker) for worker in workers)
            wait(lambda: results(daemon), "its results")
            assert {row["result"] for row in results(daemon)} == {"no_verdict"}
            assert "ended by SIGTERM" in results(daemon)[0]["text"]
            assert daemon.is_now("healthy")
    finally:
        node.end()


@pytest.mark.slow
def test_of_submissions_at_the_same_time_one_has_a_job(slurm: Slurm, node: IdleNode, daemon: RunningDaemon) -> None:
    node.script({"*": HANGS})
    begun = [node.begin("--submit") for _ in range(3)]
    codes = sorted(process.wait(PATIENCE) for process in begun)
    assert codes == [0, 3, 3]
    assert len(jobs(slurm)) == 1
    code, answer = submit(node)
    assert code == 3
    assert "is in the queue" in answer["text"] or "not idle" in answer["text"]


@pytest.mark.slow
def test_a_submitter_that_is_killed_leaves_one_job_at_most(
    tmp_path: Path, slurm: Slurm, node: IdleNode, daemon: RunningDaemon
) -> None:
    """Sbatch goes on for as long as the controller takes, and until then nobody else submits."""
    orphan = own_sbatch(tmp_path)
    make_idle(node, slurm, "n1", commands=tmp_path / "bin")
    node.script({"*": [{"write": {"phase": "int8"}}, *PASSES[1:]]})
    killed = node.begin("--submit")
    wait((tmp_path / "in-sbatch").exists, "sbatch")
    killed.send_signal(signal.SIGKILL)
    assert killed.wait(PATIENCE) == -signal.SIGKILL
    code, answer = submit(node)
    assert (code, answer["job"]) == (3, None), answer
    orphan.touch()
    wait(lambda: len(results(daemon)) == 4, "the results of its job")
    no_job(slurm)
    assert submit(node)[0] == 3
    assert len(node.workers) == 4


def own_sbatch(folder: Path) -> Path:
    """Slurm's commands with an sbatch that waits before its work; the file that lets it go on."""
    commands, go_on = folder / "bin", folder / "go-on"
    commands.mkdir()
    for name in ("sinfo", "squeue", "scontrol"):
        (commands / name).symlink_to(str(shutil.which(name)))
    waits = f"touch {folder}/in-sbatch; while [ ! -e {go_on} ]; do sleep 0.1; done"
    real = f'{shutil.which("sbatch")} "$@"'
    script = commands / "sbatch"
    script.write_text(f"#!/bin/sh\n{waits}\nexec {real}\n")
    script.chmod(0o755)
    return go_on


@pytest.mark.slow
def test_of_two_jobs_for_a_node_the_second_tests_nothing(slurm: Slurm, node: IdleNode, daemon: RunningDaemon) -> None:
    """A controller that hung may take a submission that was given up."""
    assert submit(node)[0] == 0
    wait(lambda: len(results(daemon)) == 4, "the results")
    twice = node.argv("--of-idle-job", "--level", "quick")
    script = (
        f"exec env {' '.join(f'{k}={v!r}' for k, v in node.variables.items() if k.isidentifier())} {' '.join(twice)}"
    )
    late = slurm.submit(
        script, "--job-name=gpuwarden-test", "--exclusive", "--nodelist=n1", "--gres=gpu:4", user="root"
    )
    slurm.wait(lambda: slurm.has_ended(late), "the second job to end")
    assert slurm.job(late)["ExitCode"] == "3:0", slurm.output(late)
    assert "not tested: its GPUs were tested" in slurm.output(late)
    assert len(node.workers) == 4


@pytest.mark.slow
def test_a_job_that_cannot_start_is_removed_by_the_controller(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    users = slurm.submit("sleep 300", "--nodelist=n1")
    slurm.wait(lambda: slurm.job_state(users) == "RUNNING", "the user's job to run")
    monkeypatch.setattr(idle_job, "STARTED_WITHIN", 10)
    late = idle_job.IdleJob(
        node="n1", gpus=4, partition="gwtest", level=Level.GATE, parallel=8, config=None, run_dir=Path("/run/gpuwarden")
    )
    number = int(slurm.command(*late.command()))
    slurm.wait(lambda: slurm.job_state(number) == "DEADLINE", "the test to be removed")
    assert slurm.job_state(users) == "RUNNING"


@pytest.mark.slow
def test_at_most_so_many_nodes_of_the_fleet_are_tested_at_once(
    slurm: Slurm, node: IdleNode, daemon: RunningDaemon
) -> None:
    make_idle(node, slurm, "n1", "at_once = 1\n")
    other = slurm.submit("sleep 300", "--job-name=gpuwarden-test", "--partition=gwtest", "--nodelist=n2", user="root")
    slurm.wait(lambda: slurm.job_state(other) == "RUNNING", "the other node's test")
    code, answer = submit(node)
    assert (code, answer["job"]) == (3, None)
    assert "1 nodes are tested now, and test.at_once allows 1" in answer["text"]


@pytest.mark.slow
def test_a_node_that_is_switched_off_or_taken_is_left_alone(
    slurm: Slurm, node: IdleNode, daemon: RunningDaemon
) -> None:
    slurm.drain("n1", "mine")
    assert "n1 is idle+drain, not idle" in submit(node)[1]["text"]
    slurm.scontrol("update", "NodeName=n1", "State=UNDRAIN")
    users = slurm.submit("sleep 300", "--nodelist=n1")
    slurm.wait(lambda: slurm.job_state(users) == "RUNNING", "the user's job to run")
    assert ", not idle" in submit(node)[1]["text"]
    make_idle(node, slurm, "f1")
    assert "f1" in submit(node)[1]["text"]
    slurm.scontrol("update", "NodeName=f1", "State=POWER_DOWN")
    slurm.wait(lambda: "POWERED_DOWN" in slurm.state("f1"), "f1 to be off")
    code, answer = submit(node)
    assert (code, answer["job"]) == (3, None)
    assert "powered_down" in answer["text"]
    assert not jobs(slurm)
    assert not (slurm.folder / "resumed").exists()


@pytest.mark.slow
def test_without_preemption_nothing_is_submitted_and_the_lines_are_named(
    slurm: Slurm, node: IdleNode, daemon: RunningDaemon
) -> None:
    more, partitions = slurm.more, slurm.partitions
    slurm.stop("slurmctld")
    try:
        slurm.partitions = ("PartitionName=gpu Nodes=ALL Default=YES PriorityTier=0",)
        slurm.configure("")
        slurm.start("slurmctld")
        code, answer = submit(node)
        rows = examined(node)
    finally:
        slurm.stop("slurmctld")
        slurm.partitions = partitions
        slurm.configure(more)
        slurm.start("slurmctld")
    assert (code, answer["job"]) == (64, None)
    for line in ("PreemptType=preempt/partition_prio", "PreemptMode=CANCEL", "PartitionName=gwtest Nodes=n1"):
        assert line in answer["text"]
    assert "PartitionName=gpu PriorityTier=1" in answer["text"]
    assert (rows["preemption"].grade, rows["slurm_user"].grade) == (Grade.FAIL, Grade.WARN)
    assert "PreemptType=preempt/partition_prio" in rows["preemption"].found


@pytest.mark.slow
def test_the_doctor_finds_what_a_submission_needs(slurm: Slurm, node: IdleNode, daemon: RunningDaemon) -> None:
    rows = examined(node)
    assert {name: row.grade for name, row in rows.items()} == {
        "preemption": Grade.OK, "slurm_user": Grade.OK, "idle timer": Grade.WARN,
    }  # fmt: skip
    assert "systemctl enable --now gpuwarden-test.timer" in rows["idle timer"].to_do
    make_idle(node, slurm, "n1", 'account = "nobodys"\n', user="daemon")
    assert "whose results the daemon does not accept" in examined(node)["slurm_user"].found


def examined(node: IdleNode) -> dict[str, Row]:
    config = load(Sources(file=node.config, required=True))
    return {row.check: row for row in asyncio.run(idle_tests(config, node.folder / "no-timer"))}
