"""What a job did in its own earlier busy minutes: the measure of its stall.

It is learned of the minute means of busy minutes, as their medians, and kept in the ledger, so that a restart of the daemon
forgets none of it. Minutes in which the job had fallen are not learned: a stall never becomes the custom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuwarden.health.statistics import median
from gpuwarden_collectors.dataclass import dataclass

LEARNED_AFTER = 10
"""Busy minutes that a past is made of at least: a job that stalls before has none, and is not judged."""
MINUTES_KEPT = 30
"""Newest busy minutes that a past is made of at most."""
MOVED, MOVED_LEAST = 0.2, 2.0
"""By which share of the known value, and by how much at least, a median must have changed for the past to be learned anew."""
PAUSE_MOST = 1200.0
"""Seconds of a pause that a job came back from that count at most."""


class Means(NamedTuple):
    """Means over all GPUs of a job, in one pass or over a minute. A value is None unless every GPU gave it."""

    power_w: float | None = None
    clock_mhz: float | None = None
    tensor_percent: float | None = None
    dram_percent: float | None = None
    nvlink_mib: float | None = None
    """Sent over NVLink, MiB/s of each GPU."""
    rdma_mib: float | None = None
    """Sent over InfiniBand, RoCE or EFA by the node, MiB/s of each GPU; of a job that has all GPUs of the node."""


NOTHING_KNOWN = Means()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPast:
    """Medians per GPU over a job's busy minutes, as stored in HOST_LEARNED. A value is None if no source gave it."""

    slots: str
    """Of its GPUs here, separated by spaces: with others it is learned anew."""
    power_w: float
    """Watts."""
    clock_mhz: float | None = None
    """SM clock."""
    tensor_percent: float | None = None
    """Time that tensor cores were active."""
    dram_percent: float | None = None
    """Time that memory transferred data."""
    nvlink_mib: float | None = None
    """Sent over NVLink, MiB/s."""
    rdma_mib: float | None = None
    """Sent over InfiniBand, RoCE or EFA, MiB/s."""
    pause: float = 0.0
    """Seconds of the longest fall that it came back from by itself, as out of a barrier behind which one rank saves."""


def learned(past: JobPast | None, slots: str, minutes: Sequence[Means], pause: float) -> JobPast | None:
    """The past by the newest busy minutes; None while there are too few, and where it is the known one but for a little.

    `past`: that of the job on the GPUs in `slots`. The first is that of the last ten minutes, since a job may begin with others.
    """
    newest = minutes[-LEARNED_AFTER:] if past is None else minutes
    medians = _medians(newest) if len(newest) >= LEARNED_AFTER else NOTHING_KNOWN
    if past is None:
        return None if medians.power_w is None else _made(medians, JobPast(slots=slots, power_w=medians.power_w), pause)
    made = _made(medians, past, pause)
    return made if _differ(past, made) else None


def _made(medians: Means, past: JobPast, pause: float) -> JobPast:
    """Return `past` with the given values replaced."""
    changes = {name: value for name, value in medians._asdict().items() if value is not None}
    return replace(past, **changes, pause=float(round(min(max(pause, past.pause), PAUSE_MOST))))


def _medians(minutes: Sequence[Means]) -> Means:
    columns = ([value for value in column if value is not None] for column in zip(*minutes, strict=True))
    return Means(*(round(median(numbers), 3) if len(numbers) >= LEARNED_AFTER else None for numbers in columns))


def _differ(old: JobPast, new: JobPast) -> bool:
    return any(_moved(getattr(old, name), getattr(new, name)) for name in (*Means._fields, "pause"))


def _moved(old: float | None, new: float | None) -> bool:
    change = abs((new or 0.0) - (old or 0.0))
    return (old is None) is not (new is None) or change > max(MOVED * abs(old or 0.0), MOVED_LEAST)
