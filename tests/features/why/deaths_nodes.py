"""Deaths on nodes of which the whole is touched: its driver, a mount, a port, a boot, its slurmd, a notice, its daemon."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid

from features.why.deaths import UNEXPLAINED, Death, Play, Played, Stage
from gpuwarden.features.why.model import Cause
from support.commands import environment
from support.daemons import slots
from support.death_rig import GPUS, DyingNode, Job
from support.disposable import kernel_log_kept
from support.evacuation_rig import catches_term
from support.slurm import step_daemons
from support.trees import plant

PORT = "class/infiniband/mlx5_0/ports/1"
UP = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)"}
DOWN = {"state": "1: DOWN", "phys_state": "2: Polling"}
HANGS = """
import sys
from pathlib import Path
from support.hung_mounts import hung_mount
with hung_mount(Path(sys.argv[1])):
    print("mounted", flush=True)
    sys.stdin.read()
"""
MOUNTS = 'mkdir "$1"; mount -t tmpfs none "$1"; shift; exec "$@"'
SAVES = (
    "exec /usr/bin/python3 -c 'import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(75)); "
    "[signal.pause() for _ in iter(int, 1)]'"
)
"""A rank that ends with the exit code for `start me again` once it is signalled."""
_LEFT = 30.0
"""Seconds from a notice to the end of the machine."""


def set_up(node: DyingNode, kind: str) -> None:
    """Make what the daemon of such a node reads."""
    match kind:
        case "hung":
            node.deadline = "10s"
        case "mount":
            node.reads = f'[collectors.storage]\ninterval = "1s"\npatience = "1s"\nexpected = ["{node.folder}/mount"]\n'
            node.more = '[checks.mount_hung]\nrise = "2s"\n'
            node.prefix = (
                "unshare",
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-ec",
                MOUNTS,
                "sh",
                f"{node.folder}/mount",
            )
        case "port":
            node.reads = '[collectors.infiniband]\ninterval = "1s"\n'
            node.more = '[checks.infiniband_down]\nrise = "2s"\n'
            plant(node.sysfs / PORT, UP)
        case "rebooted":
            node.seclude()
            node.boots(str(uuid.uuid4()))
        case "notice":
            node.seclude()
            node.mode = "enforce"
            node.more = "[jobs]\nrequeue = false\n"
    node.set_up()


# --- the driver hangs


def hung(stage: Stage, job: Job) -> Played:
    """The driver hangs in a call about its GPU; an administrator gives the job up."""
    stage.knows(job)
    stage.node.changes(lambda: stage.node.fake.hang(stage.at(job), "*"))
    stage.finds("gpu_unresponsive")
    stage.rig.slurm.command("scancel", str(job.id))
    return stage.of(stage.gone(job))


# --- a mount, a port


def mount_hangs(stage: Stage, job: Job) -> Played:
    stage.knows(job)
    inside = ("nsenter", f"--mount=/proc/{stage.node.its_daemon.process.pid}/ns/mnt")
    mount = stage.node.folder / "mount"
    holder = subprocess.Popen(
        [*inside, sys.executable, "-c", HANGS, str(mount)],
        env=environment(stage.node.folder), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"mounted\n"
        stage.finds("mount_hung")
        return stage.of(stage.ends(job))
    finally:
        holder.communicate()


def port_down(stage: Stage, job: Job) -> Played:
    stage.knows(job)
    plant(stage.node.sysfs / PORT, DOWN)
    stage.finds("infiniband_down")
    return stage.of(stage.ends(job, "kill -ABRT $$"))


def goes_on(code: str) -> Play:
    """Return how a job ends well on a node on which something else fails."""

    def play(stage: Stage, job: Job) -> Played:
        stage.finds(code)
        time.sleep(2.0)
        return stage.of(stage.ends(job, "exit 0"))

    return play


# --- a boot, slurmd, another node


def rebooted(stage: Stage, job: Job) -> Played:
    stage.node.admit(job.pid())
    stage.remembers(job)
    pid, node = job.pid(), stage.node
    stage.rig.slurm.stop(node.name, how=signal.SIGKILL)
    node.ends(signal.SIGKILL)
    kill_job(job, pid)
    for note in (stage.rig.folder / f"run-{node.name}-slurm/jobs").iterdir():
        note.unlink()
    (node.proc / "sys/kernel/random/boot_id").write_text(f"{uuid.uuid4()}\n")
    node.starts()
    node.serves()
    stage.rig.slurm.start(node.name, booted=True)
    return stage.of(job)


def kill_job(job: Job, pid: int) -> None:
    """End all of it on a node, its step's daemon first, so that nobody sees how."""
    for process in (*step_daemons(job.rig.slurm.folder, job.id), pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def slurmd_killed(stage: Stage, job: Job) -> Played:
    """Its slurmd dies, the controller gives the node up, and the next slurmd ends what is left of the job."""
    stage.knows(job)
    stage.together(lambda: _lose(stage))
    return stage.of(stage.gone(job))


def _lose(stage: Stage) -> None:
    stage.rig.slurm.stop(stage.node.name, how=signal.SIGKILL)
    stage.rig.slurm.drain(stage.node.name, "Not responding", state="DOWN")
    stage.rig.slurm.start(stage.node.name)


def other_node_failed(stage: Stage) -> Played:
    """A job of two nodes, whose other node fails."""
    node = stage.others["other"]
    job = stage.rig.job(node, stage.node, options=("--no-requeue",))
    node.its_daemon.wait(lambda: node.tells(job.name), f"it to know {job.name}")
    stage.together(lambda: _lose(stage))
    stage.gone(job)
    return Played(job.name, node)


# --- a notice


def announced(*, saves: bool) -> Play:
    """The machine was announced to end: the job saves and ends at the signal, or it is ended with all else."""

    def play(stage: Stage, job: Job) -> Played:
        stage.node.admit(job.pid())
        stage.knows(job)
        if saves:
            job.does(SAVES)
            stage.rig.wait(lambda: catches_term(job.pid()), "it to catch the signal")
        pid = job.pid()
        stage.together(lambda: stage.node.ask("notify-termination", within=_LEFT, reason="spot"))
        if not saves:
            os.kill(pid, signal.SIGTERM)
        return stage.of(stage.gone(job))

    return play


# --- the daemon


def daemon_killed(order: str, *xids: int) -> Play:
    """The daemon is killed at the moment of death, and started again."""

    def play(stage: Stage, job: Job) -> Played:
        stage.remembers(job)
        stage.together()
        stage.xid(job, *xids)
        job.does(order)
        stage.together(lambda: stage.node.ends(signal.SIGKILL))
        stage.gone(job)
        stage.together(lambda: _starts(stage.node))
        return stage.of(job)

    return play


def daemon_down(order: str, *xids: int) -> Play:
    """The daemon is down before the job dies, and started later."""

    def play(stage: Stage, job: Job) -> Played:
        stage.knows(job)
        stage.together(stage.node.ends)
        stage.xid(job, *xids)
        stage.ends(job, order)
        stage.together(lambda: _starts(stage.node))
        return stage.of(job)

    return play


def _starts(node: DyingNode) -> None:
    node.set_up()
    node.starts()
    node.serves()


# --- sessions and containers, on GPUs that no job of their node has


def session(gpu: int, how: signal.Signals, *xids: int, blamed: bool = False) -> Play:
    """A process that no scheduler placed has these Xids, and is ended by the signal."""

    def play(stage: Stage) -> Played:
        with stage.node.process(gpu) as pid:
            _knows(stage.node, f"session/{pid}")
            for number in xids:
                stage.node.xid_at(gpu, number, pid)
            os.kill(pid, how)
        return Played(f"session/{pid}", stage.node, slots(GPUS)[gpu] if blamed else "")

    return play


def instance(gpu: int, *, own: bool) -> Play:
    """Return how a process on an instance of a GPU ends: by its own page fault, or while one of another instance has it."""

    def play(stage: Stage) -> Played:
        node = stage.node
        node.changes(lambda: node.fake.mig(gpu, 1, 0, "1g.10gb", 9_728).mig(gpu, 2, 0, "1g.10gb", 9_728))
        with node.process(gpu, (1, 0)) as faulting, node.process(gpu, (2, 0)) as other:
            _knows(node, f"session/{faulting}")
            _knows(node, f"session/{other}")
            node.xid_at(gpu, 31, faulting)
            os.kill(faulting if own else other, signal.SIGABRT)
            name = f"session/{faulting if own else other}"
        return Played(name, node)

    return play


def container(gpu: int, order: str, *xids: int) -> Play:
    """Return how a container with a memory limit ends by this order."""

    def play(stage: Stage) -> Played:
        with stage.node.container(gpu, 40 << 20) as (ident, process):
            name = f"container/{ident[:12]}"
            _knows(stage.node, name)
            for number in xids:
                stage.node.xid_at(gpu, number, process.pid)
            process.communicate(f"{order}\n".encode())
        return Played(name, stage.node)

    return play


def container_beyond_limit(gpu: int) -> Play:
    """Return how a container takes more memory than it may, as `beyond_limit` of a job."""

    def play(stage: Stage) -> Played:
        with stage.node.container(gpu, 40 << 20) as (ident, process):
            name = f"container/{ident[:12]}"
            _knows(stage.node, name)
            with kernel_log_kept():
                process.communicate(b"exec tail /dev/zero\n")
                stage.rig.wait(lambda: stage.node.has_kill(ident), f"the kernel's line about {name}")
        return Played(name, stage.node)

    return play


def _knows(node: DyingNode, name: str) -> None:
    node.its_daemon.wait(lambda: node.tells(name), f"it to know {name}")


NODE_DEATHS = (
    Death("the driver hangs, and root cancels it", hung, Cause.HARDWARE, ("gpu_unresponsive",), node="hung"),
    Death("ended well beside a driver that hangs", goes_on("gpu_unresponsive"), Cause.NONE, node="hung", alike=True),
    Death("a mount hangs", mount_hangs, Cause.HOST, ("mount_hung",), node="mount"),
    Death("ended well while a mount hangs", goes_on("mount_hung"), Cause.NONE, node="mount", alike=True),
    Death("a port is down", port_down, Cause.FABRIC, ("infiniband_down",), node="port"),
    Death("ended well while a port is down", goes_on("infiniband_down"), Cause.NONE, node="port", alike=True),
    Death("the node is booted", rebooted, Cause.HOST, node="rebooted", options=("--no-requeue",)),
    Death("slurmd is killed", slurmd_killed, Cause.HOST, ("NODE_FAIL",), node="slurmd", meets=True, options=("--no-requeue",)),
    Death("its other node fails", other_node_failed, Cause.OTHER_NODE, jobs=(), node="slurmd", meets=True),
    Death("a notice, and it saves", announced(saves=True), Cause.NOTICE, node="notice", step=True, meets=True, options=("--no-requeue",)),
    Death("a notice, and it is ended", announced(saves=False), Cause.NOTICE, node="notice", step=True, meets=True, options=("--no-requeue",)),
    Death("Xid 95 as the daemon is killed", daemon_killed("exit 1", 95), Cause.HARDWARE, ("xid.95",), node="killed", meets=True),
    Death("Xid 31 as the daemon is killed", daemon_killed("exit 1", 31), Cause.JOB, ("xid.31",), node="killed", meets=True, alike=True),
    Death("ended well as the daemon is killed", daemon_killed("exit 0"), Cause.NONE, node="killed", meets=True, alike=True),
    Death("Xid 95 while the daemon is down", daemon_down("exit 1", 95), Cause.HARDWARE, ("xid.95",), node="down", meets=True, alike=True),
    Death("Xid 31 while the daemon is down", daemon_down("exit 1", 31), Cause.JOB, ("xid.31",), node="down", meets=True),
    Death("ended well while the daemon is down", daemon_down("exit 0"), Cause.NONE, node="down", meets=True, alike=True),
    Death("Xid 31 in a session", session(15, signal.SIGABRT, 31), Cause.JOB, ("xid.31",), jobs=(), node="other"),
    Death("Xid 94 in a session", session(14, signal.SIGABRT, 94, blamed=True), Cause.HARDWARE, ("xid.94",), jobs=(), node="other", alike=True),
    Death("SIGSEGV in a session", session(13, signal.SIGSEGV), UNEXPLAINED, jobs=(), node="other", alike=True),
    Death("Xid 31 in its instance of a GPU", instance(12, own=True), Cause.JOB, ("xid.31",), jobs=(), node="instances", alike=True),
    Death("Xid 31 in the other instance of its GPU", instance(11, own=False), UNEXPLAINED, jobs=(), node="instances"),
    Death("memory beyond the limit of its container", container_beyond_limit(10), Cause.JOB, ("oom_limit",), jobs=(), node="instances"),
    Death("Xid 31 in a container", container(9, "exit 1", 31), Cause.JOB, ("xid.31",), jobs=(), node="instances", alike=True),
)  # fmt: skip
