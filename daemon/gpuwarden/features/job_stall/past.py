"""The past of a job: its own earlier busy minutes, with which a stall is compared.

It consists of medians over the means of busy minutes, and is kept in the ledger, so that it survives a restart of the
daemon. Minutes in which the job had fallen do not count, so that a stall never becomes normal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from gpuwarden.health.statistics import median
from gpuwarden_collectors.dataclass import dataclass

LEARNED_AFTER = 10
"""Least busy minutes of a past: a job that stalls earlier has none, and is not judged."""
MINUTES_KEPT = 30
"""Most busy minutes of a past: the newest."""
MOVED, MOVED_LEAST = 0.2, 2.0
"""Share of the stored value, and least amount, by which a median must change for the past to be stored again."""
PAUSE_MOST = 1200.0
"""Most seconds that count of a pause from which a job recovered."""


class Means(NamedTuple):
    """Means over all GPUs of a job, in one pass or over a minute. A value is None unless every GPU gave it."""

    power_w: float | None = None
    clock_mhz: float | None = None
    tensor_percent: float | None = None
    dram_percent: float | None = None
    nvlink_mib: float | None = None
    """Sent over NVLink, MiB/s per GPU."""
    rdma_mib: float | None = None
    """Sent over InfiniBand, RoCE or EFA by the node, MiB/s per GPU, if the job has all GPUs of the node."""


NOTHING_KNOWN = Means()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPast:
    """Medians per GPU over a job's busy minutes, as stored in HOST_LEARNED. A value is None if no source gave it."""

    slots: str
    """Its GPUs here, separated by spaces: with other GPUs a new past begins."""
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
    """Seconds of the longest fall from which it recovered by itself, such as a barrier behind which one rank saves."""


def learned(past: JobPast | None, slots: str, minutes: Sequence[Means], pause: float) -> JobPast | None:
    """Return the past by the newest busy minutes; None while there are too few, or if it has hardly changed.

    `past`: the stored one for the GPUs in `slots`. The first one uses the last ten minutes only, since a job may begin
    differently.
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
