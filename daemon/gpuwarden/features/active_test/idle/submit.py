"""Submits the job that tests this node while it is idle, or reports why not. Checks without a request come first and
end most calls.

    test.enabled, partition, user · due? quiet hours? (the daemon here) · lock · node, configuration, partitions (Slurm)
    · a job for this node? at_once? (Slurm) · sbatch

Each node submits its own job: a node that is switched off is never woken, and no machine needs a list of all nodes. If
the
submitter is killed, the controller removes its job after two minutes, or the job finds that no test is due any more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.features.active_test.at_once import refusal
from gpuwarden.features.active_test.idle.job import IdleJob, minutes
from gpuwarden.features.active_test.idle.power_saving import read_suspend_time, suspended_after
from gpuwarden.features.active_test.idle.preemption import missing
from gpuwarden.features.active_test.idle.user import NoSuchSubmitter, no_access, submits_as
from gpuwarden.features.active_test.idle.wanted import CannotSubmit, NotNow, need_due
from gpuwarden.features.active_test.options import ActiveTestOptions
from gpuwarden.features.active_test.tester.lease import Call
from gpuwarden.features.active_test.tester.lock import Held, file_lock, make
from gpuwarden.features.active_test.testers import JOB_NAME, read_tester_jobs, read_testers
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.errors import OddAnswer
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.nodes import read_node, without_ended_jobs
from gpuwarden_collectors.slurm.settings import PartitionSettings, read_config, read_partition_settings

LOCK = "test-submit.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The requested test, and facts about this host."""

    config: Config
    file: Path | None
    """The configuration file named on the command line; None: the default file."""
    level: Level
    commands: Commands
    call: Call
    """Calls a verb of the daemon."""
    euid: int
    now: float
    """Unix time."""


async def submit(order: Submission) -> int:
    """Submit the job and return its number. Raises NotNow, CannotSubmit, SlurmError, LockError or errors of `call`."""
    test = order.config.of(ActiveTestOptions)
    identity = _wanted(order)
    _need_calm(test, order.now)
    await need_due(order.call, order.level, test.every, order.now)
    try:
        with file_lock(order.config.run.dir, order.config.paths.proc, LOCK) as lock:
            job = await _possible(order, identity)
            make(order.config.run.dir)
            answer = await order.commands.change(f"cannot submit a test of {job.node}", *job.command(), held=lock)
    except Held as held:
        raise NotNow(f"another submission runs (pid {held.holder.pid})") from held
    number = answer.strip().partition(";")[0]
    if not number.isdecimal():
        raise OddAnswer(f"sbatch reports {answer[:60]!r}; see squeue --name={JOB_NAME}")
    return int(number)


def _wanted(order: Submission) -> tuple[str, ...]:
    """Return sbatch's options for the user of the job. Raises CannotSubmit if such tests are not configured, or that
    user cannot reach the daemon.
    """
    config, test = order.config, order.config.of(ActiveTestOptions)
    if not test.enabled or not test.partition:
        raise CannotSubmit("idle nodes are tested only with test.enabled = true and test.partition set")
    try:
        identity = submits_as(test.slurm_user, order.euid)
    except NoSuchSubmitter as error:
        raise CannotSubmit(str(error)) from error
    if why := no_access(test.slurm_user, config.run.dir, config.control.group):
        raise CannotSubmit(f"the results of its jobs would be lost: {why}")
    return identity


def _need_calm(test: ActiveTestOptions, now: float) -> None:
    here = time.localtime(now)
    if test.quiet(here.tm_hour * 60 + here.tm_min):
        raise NotNow(
            f"it is {here.tm_hour:02}:{here.tm_min:02}, within test.quiet_hours ({', '.join(test.quiet_hours)})"
        )


async def _possible(order: Submission, identity: tuple[str, ...]) -> IdleJob:
    commands, test = order.commands, order.config.of(ActiveTestOptions)
    name = await commands.node_name()
    node = await without_ended_jobs(commands, await read_node(commands, name))
    keys, partitions = await read_config(commands), await read_partition_settings(commands)
    longest = minutes(order.level, node.gpus, test.parallel) * 60.0
    if lines := missing(keys, partitions, test.partition, name, longest):
        raise CannotSubmit("a job would wait for the end of a test; slurm.conf needs\n  " + "\n  ".join(lines))
    if why := unfit(node, {}, ()):  # before the request that reads all nodes
        raise NotNow(why)
    if why := unfit(node, keys, partitions, await read_suspend_time(commands, node, keys)):
        raise NotNow(why)
    for job in await read_tester_jobs(commands, test.slurm_user):
        if name in (job.wanted, job.node):
            raise NotNow(f"job {job.number} for {name} is in the queue")
    others = await read_testers(commands, test.slurm_user, order.now)
    if why := refusal(test.at_once - others.pending, others.held, name):
        raise NotNow(f"{why}; {others.pending} more wait" if others.pending else why)
    return IdleJob(
        node=name,
        gpus=node.gpus,
        partition=test.partition,
        level=order.level,
        parallel=test.parallel,
        config=order.file,
        run_dir=order.config.run.dir,
        account=test.account,
        qos=test.qos,
        identity=identity,
    )


_HARMLESS = frozenset({"dynamic_norm", "dynamic_future"})
"""Flags of an idle node that do not concern its use. With any other flag, known here or not, the node is not tested."""


def unfit(
    node: NodeFacts, keys: Mapping[str, str], partitions: Sequence[PartitionSettings], suspend_time: str = ""
) -> str:
    """Return why the node gets no test; empty if it is idle, stays on anyway, and nobody is about to use it.

    `suspend_time`: the controller's value, if it shows one.
    """
    return next(_reasons(node, suspended_after(node, keys, partitions, suspend_time)), "")


def _reasons(node: NodeFacts, limit: str) -> Iterator[str]:
    if "cloud" in node.flags:
        yield f"{node.name} is a node of a cloud, which a test would keep running"
    if node.base != "idle" or not node.flags <= _HARMLESS:
        yield f"{node.name} is {node.state}, not idle"
    if not node.gpus:
        yield f"Slurm has no GPU of {node.name}: add Gres=gpu:N to its line in slurm.conf, or to --conf of slurmd -Z"
    if limit:
        yield (
            f"power saving switches {node.name} off when it is idle ({limit}), and a test would keep it on: "
            "add it to SuspendExcNodes to have it tested"
        )
