"""Checks whether a test of an idle node is still wanted: before its job is submitted and again when the job starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from gpuwarden.base.durations import format_duration
from gpuwarden.base.threads import detached
from gpuwarden.features.active_test.at_once import refusal
from gpuwarden.features.active_test.judging.outcome import ActiveVerdict
from gpuwarden.features.active_test.options import ActiveTestOptions
from gpuwarden.features.active_test.tester.ended_job import EndedJob, NoEndedJob
from gpuwarden.features.active_test.tester.lease import Call
from gpuwarden.features.active_test.tester.occupancy import Memory
from gpuwarden.features.active_test.tester.run import Order
from gpuwarden.features.active_test.testers import read_testers
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.slurm.errors import SlurmError


class NotNow(Exception):  # noqa: N818 - a state of the node or the fleet
    """No test is wanted now. The message says why."""


class CannotSubmit(Exception):  # noqa: N818 - of the set-up
    """An operator must change something first. The message says what."""


async def need_due(call: Call, level: Level, every: float, now: float) -> frozenset[str]:
    """Return the slots of the GPUs that are due. Raises NotNow if all results are recent enough, CannotSubmit if the
    status cannot be read, or what `call` raises: without a daemon no result would be kept.
    """
    status: Mapping[str, Any] = await detached("status", lambda: call("status"))
    try:
        times = last_tested(status, level, every, now)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise CannotSubmit("the daemon's status is of another version: restart it") from error
    if why := not_due(times, level, every, now):
        raise NotNow(why)
    return frozenset(slot for slot, at in times.items() if at is None)


async def need_turn(order: Order, test: ActiveTestOptions) -> None:
    """Check within the job, which every node sees by now, that it may test. Raises NotNow if enough others began
    earlier, if Slurm does not answer, or if no GPU is due any more, as in the second of two jobs.
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
    """Return the order to test those GPUs of an ended job that are due. Runs in the job's epilog.

    Raises NotNow, CannotSubmit, NoEndedJob, or what `call` raises.
    """
    if (occupancy := await detached("notes of jobs", job.occupancy)).memory is Memory.NONE:
        raise NoEndedJob(occupancy.why)
    due = await need_due(order.call, order.level, test.every, order.asked.now())
    asked = replace(order.asked, ended_job=job.occupancy)
    return replace(order, asked=asked, choose=lambda gpus: job.among(gpus, due))


UNJUDGED = 8
"""Divisor of `every` after a test without a verdict, which was preempted or cannot run here."""
_LEVELS = tuple(Level)


def not_due(times: Mapping[str, float | None], level: Level, every: float, now: float) -> str:
    """Return why no test is due; empty if one is. `times`: from `last_tested`. `now`: Unix time."""
    if not times:
        return "the daemon sees no GPU to test: see gpuwarden status"
    test_times = [at for at in times.values() if at is not None]
    if len(test_times) < len(times):
        return ""
    ago = format_duration(round(max(0.0, now - min(test_times))))
    return f"its GPUs were tested {ago} ago at level {level.value} or higher; test.every is {format_duration(every)}"


def last_tested(status: Mapping[str, Any], level: Level, every: float, now: float) -> dict[str, float | None]:
    """Return the time of the last test of each present GPU, by slot: Unix time, or None if a test is due. `status`: the
    daemon's.

    Raises KeyError, TypeError, AttributeError or ValueError if the status is of another version.
    """
    return {
        gpu["pci_bus_id"]: max(_counting(status, gpu["uuid"], level, every, now), default=None)
        for gpu in status["gpus"]
        if gpu["present"]
    }


def _counting(status: Mapping[str, Any], uuid: str, level: Level, every: float, now: float) -> Iterator[float]:
    """Yield the Unix times of this GPU's tests that still count."""
    for result in status["tests"]["results"]:
        if result["uuid"] != uuid or _LEVELS.index(Level(result["level"])) < _LEVELS.index(level):
            continue
        at = datetime.fromisoformat(result["at"]).timestamp()
        lasts = every / UNJUDGED if result["result"] == ActiveVerdict.NO_VERDICT.value else every
        if -every < now - at < lasts:  # ignores a test dated far ahead: the clock was set back
            yield at
