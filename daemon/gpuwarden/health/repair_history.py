"""Repairs of a board while a failure was active, and the advice when the same failure comes back.

    reset the GPU -- it comes back --> reboot -- it comes back --> have the hardware inspected

The ladder is climbed by one board and one kind of failure (`xid.95`, `row_remap_failed`), never by the node: a reboot for
GPU 0 means nothing for GPU 5. A repair counts only if the failure was active when it was done, so an epilog that resets every
GPU after every job repairs nothing; it counts for `COUNTS_FOR`. Another board in the slot starts at the foot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gpuwarden.health.model import Advice, Evidence

COUNTS_FOR = 7 * 86_400.0
"""Seconds. Own choice: the window in which NVSentinel's analyser counts the remediations of a node."""
FORGOTTEN_AFTER = 4 * COUNTS_FOR
"""Seconds. Until then a repair still counts for a failure that is active since before it."""
TAKES_EFFECT = 60.0
"""Seconds after which what is still seen was not cured: passes that were under way, and a driver that starts, need some."""
KEPT = 1024  # (board, kind) pairs

Case = tuple[str, str]
"""The board (its UUID, or its slot if it never gave one), and the kind of failure."""


@dataclass(frozen=True, slots=True)
class Repairs:
    """When the failure was last repaired in each way."""

    reset: float = 0.0
    """Wall time of the last GPU reset; 0: never."""
    reboot: float = 0.0
    """Wall time of the last reboot; 0: never."""


RepairHistory = Mapping[Case, Repairs]


def repaired(repairs: RepairHistory, cases: Iterable[Case], at: float, how: str) -> RepairHistory:
    """With a repair of these cases at `at`; `how` is "reset" or "reboot". Repairs of long ago are forgotten."""
    since = at - FORGOTTEN_AFTER
    result = {case: done for case, done in repairs.items() if max(done.reset, done.reboot) >= since}
    for case in cases:
        done = result.pop(case, Repairs())
        result[case] = replace(done, reset=at) if how == "reset" else replace(done, reboot=at)
    return dict(list(result.items())[-KEPT:])


def escalated(advice: Advice, done: Repairs | None, first_seen: float, now: float) -> tuple[Advice, Evidence]:
    """The advice for a failure that is seen now and first was at `first_seen` (wall time), and why it is not `advice`."""
    if done is None or advice not in (Advice.RESET_GPU, Advice.REBOOT):
        return advice, {}
    if _did_not_help(done.reboot, first_seen, now):
        return Advice.INSPECT_HARDWARE, {"came_back_after": "a reboot"}
    if advice is Advice.RESET_GPU and _did_not_help(done.reset, first_seen, now):
        return Advice.REBOOT, {"came_back_after": "a GPU reset"}
    return advice, {}


def _did_not_help(at: float, first_seen: float, now: float) -> bool:
    """It was repaired then, and came back after it or did not go away."""
    came_back = at < first_seen <= at + COUNTS_FOR
    return at > 0.0 and (came_back or (first_seen <= at and now - at > TAKES_EFFECT))
