"""Whether a test of an idle node is wanted now: asked before its job is submitted, and again as it starts, since both may be late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuwarden.active_test.idle.due import not_due
from gpuwarden.active_test.lease import Call
from gpuwarden.active_test.run import Order
from gpuwarden.actuators.slurm.testers import read_testers
from gpuwarden.base.threads import detached
from gpuwarden.config.active_test import ActiveTestOptions
from gpuwarden.policy.at_once import refusal
from gpuwarden_collectors.active_test.facts import Level
from gpuwarden_collectors.slurm.errors import SlurmError


class NotNow(Exception):  # noqa: N818 - a state of the node or the fleet
    """No test is wanted now. The message says why."""


class CannotSubmit(Exception):  # noqa: N818 - of the set-up
    """A person has to change something first. The message says what."""


async def need_due(call: Call, level: Level, every: float, now: float) -> None:
    """Raises NotNow where the daemon has a result that is new enough, or what `call` raises: without a daemon no result would be kept."""
    status: Mapping[str, Any] = await detached("status", lambda: call("status"))
    try:
        why = not_due(status, level, every, now)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CannotSubmit("the daemon's status is of another version: restart it") from error
    if why:
        raise NotNow(why)


async def need_turn(order: Order, test: ActiveTestOptions) -> None:
    """Within the job, which every node sees by now. Raises NotNow where enough others began before, or Slurm does not answer, or none is
    due any more, as in the second of two jobs.
    """
    now = order.asked.now()
    await need_due(order.call, order.level, test.every, now)
    if (client := order.asked.slurm) is None:
        raise NotNow("there is no Slurm here")
    try:
        node = await client.routine.node_name()
        others = await read_testers(client.routine, now)
    except SlurmError as error:
        raise NotNow(str(error)) from error
    if why := refusal(test.at_once, others.held, node):
        raise NotNow(why)
