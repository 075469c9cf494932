"""Whether a test of an idle node is wanted now: asked before its job is submitted, and again as it starts, since both may be late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from gpuwarden.active_test.ended_job import EndedJob, NoEndedJob
from gpuwarden.active_test.idle.due import last_tested, not_due
from gpuwarden.active_test.lease import Call
from gpuwarden.active_test.occupancy import Memory
from gpuwarden.active_test.run import Order
from gpuwarden.actuators.slurm.testers import read_testers
from gpuwarden.base.threads import detached
from gpuwarden.config.active_test import ActiveTestOptions
from gpuwarden.policy.at_once import refusal
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.slurm.errors import SlurmError


class NotNow(Exception):  # noqa: N818 - a state of the node or the fleet
    """No test is wanted now. The message says why."""


class CannotSubmit(Exception):  # noqa: N818 - of the set-up
    """A person has to change something first. The message says what."""


async def need_due(call: Call, level: Level, every: float, now: float) -> None:
    """Raises NotNow where the daemon has a result that is new enough, or what `call` raises: without a daemon no result would be kept."""
    await _of_status(call, lambda status: not_due(status, level, every, now))


async def due_slots(call: Call, level: Level, every: float, now: float) -> frozenset[str]:
    """The GPUs that are due. Raises as `need_due`."""
    known: dict[str, float | None] = {}

    def why(status: Mapping[str, Any]) -> str:
        known.update(last_tested(status, level, every, now))
        return not_due(status, level, every, now)

    await _of_status(call, why)
    return frozenset(slot for slot, at in known.items() if at is None)


async def _of_status(call: Call, why: Callable[[Mapping[str, Any]], str]) -> None:
    status: Mapping[str, Any] = await detached("status", lambda: call("status"))
    try:
        found = why(status)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CannotSubmit("the daemon's status is of another version: restart it") from error
    if found:
        raise NotNow(found)


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
        others = await read_testers(client.routine, test.slurm_user, now)
    except SlurmError as error:
        raise NotNow(str(error)) from error
    if why := refusal(test.at_once, others.held, node):
        raise NotNow(why)


async def of_ended_job(order: Order, test: ActiveTestOptions, job: EndedJob) -> Order:
    """The same for the GPUs of a job in whose epilog this runs, those that are due.

    Raises NotNow, CannotSubmit, NoEndedJob, or what `call` raises.
    """
    if (found := await detached("notes of jobs", job.occupancy)).memory is Memory.NONE:
        raise NoEndedJob(found.why)
    due = await due_slots(order.call, order.level, test.every, order.asked.now())
    asked = replace(order.asked, ended_job=job.occupancy)
    return replace(order, asked=asked, choose=lambda gpus: job.among(gpus, due))
