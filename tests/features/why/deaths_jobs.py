"""Deaths of jobs by themselves, by their limits, and by those who may end them."""

from __future__ import annotations

import subprocess
import time
from functools import partial

from features.why.deaths import UNEXPLAINED, Death, Play, Played, Stage
from gpuwarden.features.why.model import Cause
from support.daemons import alive
from support.death_rig import Job
from support.disposable import kernel_log_kept
from support.slurm import CONTROLLER

OOM = "tail /dev/zero"
"""Takes memory without end."""
LIMITED = ("--mem=40",)


def by_itself(order: str) -> Play:
    def play(stage: Stage, job: Job) -> Played:
        return stage.of(stage.ends(job, order))

    return play


def beyond_limit(order: str) -> Play:
    """Return how a job takes more memory than it may, while nobody fills the ring of this host's kernel, in which its end is reported.

    The daemon counts a line from when it reads it, and on this host the line is first copied to the log of the node: the job ends after that.
    """

    def play(stage: Stage, job: Job) -> Played:
        folder = job.group().partition("/step_")[0]
        stage.knows(job)
        with job.kept_from_its_end():
            with kernel_log_kept():
                job.does(order)
                stage.rig.wait(lambda: stage.node.has_kill(f"{folder}/"), f"the kernel's line about {job.name}")
            told = partial(stage.node.has_touch, job.name, "oom_limit")
            stage.node.its_daemon.wait(told, f"it to know what the kernel did to {job.name}", every=0.5)
        return stage.of(stage.gone(job))

    return play


def memory_of_node_full(stage: Stage, job: Job) -> Played:
    stage.node.kills_for_memory(job)
    return stage.of(stage.gone(job))


def memory_taken_from_another(stage: Stage, job: Job, other: Job) -> Played:
    """The kernel chooses the other job; this one ends by itself."""
    stage.node.kills_for_memory(other)
    stage.gone(other)
    return stage.of(stage.ends(job))


def cancelled(user: str, *xids: int) -> Play:
    """Someone cancels it, after which the driver reports these in its process."""

    def play(stage: Stage, job: Job) -> Played:
        pid, gpu = job.pid(), stage.at(job)
        stage.rig.slurm.command("scancel", str(job.id), user=user)
        stage.gone(job)
        for number in xids:
            stage.node.xid_at(gpu, number, pid)
        return stage.of(job)

    return play


def killed_by_root(stage: Stage, job: Job) -> Played:
    """An administrator kills it on the node, around the scheduler."""
    subprocess.run(["kill", "-KILL", str(job.pid())], check=True)
    return stage.of(stage.gone(job))


def timed_out(stage: Stage, job: Job) -> Played:
    return stage.of(stage.gone(job))


def preempted(stage: Stage, job: Job) -> Played:
    """A job of a higher tier wants more GPUs than there are without those of this one."""
    first = stage.job(9, "--partition=first")
    stage.gone(job)
    stage.ends(first, "exit 0")
    return stage.of(job)


def requeued(stage: Stage, job: Job) -> Played:
    """Its first run; the second ends well."""
    stage.knows(job)
    stage.rig.slurm.scontrol("requeue", str(job.id))
    again = Job(stage.rig, job.id, job.nodes, run=1)
    stage.rig.wait(again.runs, f"{job.name} to run again")
    stage.ends(again, "exit 0")
    return Played(job.name, stage.node, run=0)


def ran_again(stage: Stage, job: Job) -> Played:
    """The second run, after a first that was requeued with an Xid of its own."""
    stage.knows(job)
    stage.xid(job, 31)
    stage.rig.slurm.scontrol("requeue", str(job.id))
    again = Job(stage.rig, job.id, job.nodes, run=1)
    stage.rig.wait(again.runs, f"{job.name} to run again")
    stage.node.its_daemon.wait(lambda: stage.node.runs_before(job.name) == 1, "it to know the second run")
    stage.ends(again, "exit 0")
    return stage.of(again)


def task_of_array(order: str, *xids: int) -> Play:
    """The first of the two tasks of an array has these Xids, and ends by the order; the second ends well."""

    def play(stage: Stage) -> Played:
        first = stage.rig.submit(stage.node, options=("--array=0-1",))
        tasks = stage.rig.tasks(first, stage.node)
        stage.knows(tasks[0])
        stage.xid(tasks[0], *xids)
        stage.ends(tasks[0], order)
        stage.ends(tasks[1], "exit 0")
        return stage.of(tasks[0])

    return play


def drained_afterwards(stage: Stage, job: Job) -> Played:
    stage.ends(job)
    stage.rig.slurm.drain(stage.node.name, "new fan")
    time.sleep(2.0)
    return stage.of(job)


def away(order: str, *xids: int) -> Play:
    """The controller is away when it dies, and comes back."""

    def play(stage: Stage, job: Job) -> Played:
        stage.knows(job)
        stage.together(lambda: stage.rig.slurm.stop(CONTROLLER))
        stage.xid(job, *xids)
        pid = job.pid()
        job.does(order)
        stage.rig.wait(lambda: not alive(pid), f"{job.name} to end")
        stage.together(lambda: stage.rig.slurm.start(CONTROLLER))
        return stage.of(stage.gone(job), 0 if xids else None)

    return play


JOB_DEATHS = (
    Death("exit code 1 without a sign", by_itself("exit 1"), UNEXPLAINED),
    Death("SIGSEGV", by_itself("kill -SEGV $$"), UNEXPLAINED, alike=True),
    Death("SIGABRT", by_itself("kill -ABRT $$"), UNEXPLAINED, alike=True),
    Death("exit code 127", by_itself("no-such-command; exit $?"), UNEXPLAINED, alike=True),
    Death("ended well", by_itself("exit 0"), Cause.NONE),
    Death("memory beyond its limit", beyond_limit(f"exec {OOM}"), Cause.JOB, ("oom_limit",), options=LIMITED),
    Death("memory of a child beyond its limit", beyond_limit(f"{OOM} | cat >/dev/null; exit 1"), Cause.JOB, ("oom_limit",), options=LIMITED, alike=True),
    Death("memory of the node is full", memory_of_node_full, Cause.HOST, ("oom_node",)),
    Death("memory of the node is full, another is killed", memory_taken_from_another, UNEXPLAINED, jobs=(1, 1)),
    Death("cancelled by its owner", cancelled("nobody"), Cause.SCHEDULER),
    Death("cancelled by its owner, then Xid 45", cancelled("nobody", 45), Cause.SCHEDULER),
    Death("cancelled by root, then Xid 43", cancelled("root", 43), Cause.SCHEDULER, alike=True),
    Death("killed by root around the scheduler", killed_by_root, UNEXPLAINED),
    Death("time limit", timed_out, Cause.SCHEDULER, options=("--time=1",)),
    Death("preempted", preempted, Cause.SCHEDULER, jobs=(8,), node="other"),
    Death("exit code 1, and the node is drained", drained_afterwards, UNEXPLAINED, node="other", turn=2, alike=True),
    Death("exit code 1 while slurmctld is away", away("exit 1"), UNEXPLAINED, node="other", meets=True, turn=1, alike=True),
    Death("Xid 94 while slurmctld is away", away("exit 1", 94), Cause.HARDWARE, ("xid.94",), node="other", meets=True, turn=1),
    Death("ended well while slurmctld is away", away("exit 0"), Cause.NONE, node="other", meets=True, turn=1),
    Death("requeued", requeued, Cause.SCHEDULER),
    Death("ended well in its second run", ran_again, Cause.NONE),
    Death("task of an array, Xid 31", task_of_array("exit 1", 31), Cause.JOB, ("xid.31",), jobs=(), later=2),
)  # fmt: skip
