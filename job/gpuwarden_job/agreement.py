"""Lets all ranks agree whether to save and leave, and on the deadline, by the largest of one number per rank."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from gpuwarden_job.notice import boottime
from gpuwarden_job.ranks import Ranks

_log = logging.getLogger("gpuwarden_job")
_FAR = 1 << 40  # ms, some 35 years: an unknown deadline


@dataclass(frozen=True)
class Deadline:
    """The deadline of all ranks."""

    at: float | None
    """Seconds of this node's CLOCK_BOOTTIME; None if no rank has one."""


def agree(ranks: Ranks, interrupted: bool, deadline: float | None) -> Deadline | None:
    """Returns the soonest deadline of all ranks, or None if no rank was interrupted.

    Raises nothing: if the agreement fails, this rank decides alone. Each rank sends 0, or 1 + `_FAR` minus its
    remaining time, so that the largest number is the soonest deadline. Nodes do not share a clock, so the remaining
    time is sent.
    """
    left = _FAR if deadline is None else min(max(int((deadline - boottime()) * 1000), 0), _FAR)
    mine = 1 + _FAR - left if interrupted else 0
    try:
        largest = ranks.largest(mine)
    except Exception:  # noqa: BLE001 - nothing here may end a training
        _log.exception("agreement of the ranks failed; this rank decides alone")
        largest = mine
    if largest <= 0:
        return None
    return Deadline(None if largest == 1 else boottime() + (1 + _FAR - largest) / 1000)
