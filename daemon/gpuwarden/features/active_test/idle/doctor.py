"""Checks whether Slurm can test this node while idle: the jobs' user, preemption, power saving, timer. Submits none."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.features.active_test.idle.job import IdleJob, minutes
from gpuwarden.features.active_test.idle.power_saving import read_suspend_time, suspended_after
from gpuwarden.features.active_test.idle.preemption import missing
from gpuwarden.features.active_test.idle.user import NoSuchSubmitter, no_access, submits_as
from gpuwarden.features.active_test.options import ActiveTestOptions
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.slurm.client import Commands, SlurmClient
from gpuwarden_collectors.slurm.errors import SlurmError
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.nodes import read_node
from gpuwarden_collectors.slurm.settings import read_config, read_partition_settings

RESPONSE_WITHIN = 12.0
TIMER = Path("/etc/systemd/system/timers.target.wants/gpuwarden-test.timer")
_NOT_NOW = ("not available", "currently unavailable", "Nodes required", "busy", "drained or reserved")
"""Phrases of sbatch about a node that is drained, down or reserved: they do not concern the user."""


async def idle_tests(config: Config, timer: Path = TIMER) -> list[Row]:
    """Return the rows about tests of idle nodes; empty if they are not configured."""
    test = config.of(ActiveTestOptions)
    if not test.enabled or not test.partition:
        return []
    slurm = config.slurm
    client = SlurmClient(conf=slurm.conf, folder=slurm.folder, timeout=RESPONSE_WITHIN, node=slurm.node)
    try:
        return [row async for row in _rows(config, client.routine)] + [_enabled(timer)]
    except SlurmError as error:
        return [fail("preemption", str(error), "see the row controller")]
    finally:
        await client.close()


async def _rows(config: Config, commands: Commands) -> AsyncIterator[Row]:
    node = await read_node(commands, await commands.node_name())
    keys, partitions = await read_config(commands), await read_partition_settings(commands)
    test = config.of(ActiveTestOptions)
    level = Level(test.level)
    lines = missing(keys, partitions, test.partition, node.name, minutes(level, node.gpus, test.parallel) * 60.0)
    if lines:
        to_do = "set these lines in slurm.conf, and restart slurmctld: until then no test is submitted"
        yield fail("preemption", "a job would wait for the end of a test; " + "; ".join(lines), to_do)
    else:
        above = sum(partition.has(node.name) for partition in partitions) - 1
        yield ok(
            "preemption",
            f"jobs of the other partitions of this node ({above}) preempt those of {test.partition} at once",
        )
    shown = await read_suspend_time(commands, node, keys)
    if limit := suspended_after(node, keys, partitions, shown):
        state = f"{node.name} is not tested while idle, because power saving switches it off ({limit})"
        yield warn("power saving", state, "to have it tested, add it to SuspendExcNodes")
    yield await _user(config, commands, node, preempted=not lines)


async def _user(config: Config, commands: Commands, node: NodeFacts, *, preempted: bool) -> Row:
    """Check whether Slurm accepts jobs of this user, and the daemon their results."""
    test = config.of(ActiveTestOptions)
    try:
        identity = submits_as(test.slurm_user, os.geteuid())
    except NoSuchSubmitter as error:
        return fail("slurm_user", str(error), "see test.slurm_user in docs/use/active-tests.md")
    if why := no_access(test.slurm_user, config.run.dir, config.control.group):
        return fail("slurm_user", f"results of its jobs would be lost: {why}", "correct that, and restart gpuwarden")
    if not preempted:
        return warn("slurm_user", f"{test.slurm_user}: not tried without preemption", "see the row preemption")
    job = IdleJob(
        node=node.name,
        gpus=node.gpus,
        partition=test.partition,
        level=Level(test.level),
        parallel=test.parallel,
        config=None,
        run_dir=config.run.dir,
        account=test.account,
        qos=test.qos,
        identity=identity,
    )
    try:
        await commands.ask("cannot try a submission", *job.trial())
    except SlurmError as error:
        if any(text in str(error) for text in _NOT_NOW):
            return ok("slurm_user", f"{test.slurm_user}; its jobs cannot be tried while the node is {node.state}")
        to_do = f"let {test.slurm_user} use {test.partition}: check that slurmctld knows user, account and association, and AllowGroups"
        return fail("slurm_user", f"Slurm accepts no job of {test.slurm_user}: {error}", to_do)
    return ok("slurm_user", f"Slurm accepts jobs of {test.slurm_user}, and the daemon accepts their results")


def _enabled(timer: Path) -> Row:
    if timer.exists():
        return ok("idle timer", "gpuwarden-test.timer is enabled")
    return warn(
        "idle timer",
        "nothing submits tests of this node",
        "systemctl enable --now gpuwarden-test.timer, or call gpuwarden test --submit",
    )
