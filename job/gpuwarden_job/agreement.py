"""Do all ranks save and leave now, and until when: one number of each rank, and the largest of them."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from gpuwarden_job.notice import boottime
from gpuwarden_job.ranks import Ranks

_log = logging.getLogger("gpuwarden_job")
_FAR = 1 << 40  # ms, some 35 years: an unknown deadline


@dataclass(frozen=True)
class Deadline:
    """The time until which all ranks save."""

    at: float | None
    """Seconds of this node's CLOCK_BOOTTIME; None if no rank knows."""


def agree(ranks: Ranks, interrupted: bool, deadline: float | None) -> Deadline | None:
    """Returns the soonest deadline of all ranks, or None if no rank was interrupted.

    Raises nothing: without an answer this rank decides alone. Each rank sends 0, or 1 + how much sooner than never its
    deadline is, so that the largest is the soonest. It sends the time that remains, since nodes do not share a clock.
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
