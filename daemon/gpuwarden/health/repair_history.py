"""How often a board failed and was repaired, and the advice when the same failure comes back.

    reset the GPU -- it comes back --> reboot -- it comes back --> have the hardware inspected

The ladder is climbed by one board and one kind of failure (`xid.95`, `row_remap_failed`), never by the node: a reboot for
GPU 0 means nothing for GPU 5. A repair counts only if the failure was active when it was done, so an epilog that resets every
GPU after every job repairs nothing; it counts for `COUNTS_FOR`. Another board in the slot starts at the foot.

Whatever was done in between, the third failure of one kind within `DAY` is for a person: each repair helped, and the board fails all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuwarden.health.model import Advice, Evidence
from gpuwarden_collectors.dataclass import dataclass

COUNTS_FOR = 7 * 86_400.0
"""Seconds. Own choice: the window in which NVSentinel's analyser counts the remediations of a node."""
FORGOTTEN_AFTER = 4 * COUNTS_FOR
"""Seconds. Until then a repair still counts for a failure that is active since before it."""
TAKES_EFFECT = 60.0
"""Seconds after a repair from which a failure that is still observed was not repaired: passes and the driver need some
time."""
DAY = 86_400.0
OFTEN = 3
"""Failures of one kind within a day. Own choice: one that a reset cured stays cured, and a second may be chance or an incomplete repair."""
OFTEN_KEY = "failures_within_a_day"
"""The evidence key for the number of failures within a day."""
KEPT = 1024  # (board, kind) pairs

Case = tuple[str, str]
"""The board (its UUID, or its slot if it never gave one), and the kind of failure."""


@dataclass(frozen=True, slots=True)
class Repairs:
    """When the failure came lately, and was last repaired in each way."""

    reset: float = 0.0
    """Wall time of the last GPU reset; 0: never."""
    reboot: float = 0.0
    """Wall time of the last reboot; 0: never."""
    failed: tuple[float, ...] = ()
    """Wall times at which it was raised as a failure, the newest last, at most `OFTEN`."""


RepairHistory = Mapping[Case, Repairs]


def repaired(repairs: RepairHistory, cases: Iterable[Case], at: float, how: str) -> RepairHistory:
    """History with a repair of these cases at `at`; `how` is "reset" or "reboot". Repairs of long ago are forgotten."""
    result = _recent(repairs, at)
    for case in cases:
        done = result.pop(case, Repairs())
        result[case] = replace(done, reset=at) if how == "reset" else replace(done, reboot=at)
    return dict(list(result.items())[-KEPT:])


def failed_again(repairs: RepairHistory, case: Case, at: float) -> RepairHistory:
    """Return the history with a failure that was raised at `at` (wall time)."""
    result = _recent(repairs, at)
    done = result.pop(case, Repairs())
    result[case] = replace(done, failed=(*done.failed, at)[-OFTEN:])
    return dict(list(result.items())[-KEPT:])


def _recent(repairs: RepairHistory, at: float) -> dict[Case, Repairs]:
    since = at - FORGOTTEN_AFTER
    return {case: done for case, done in repairs.items() if max(done.reset, done.reboot, *done.failed) >= since}


def within_a_day(done: Repairs, first_seen: float) -> int:
    """Return how many failures of this kind came within a day, with the one that was first seen at `first_seen` (wall time)."""
    return 1 + sum(first_seen - DAY <= at < first_seen for at in done.failed)


def escalated(advice: Advice, done: Repairs | None, first_seen: float, now: float) -> tuple[Advice, Evidence]:
    """The advice for a failure that is seen now and first was at `first_seen` (wall time), and why it is not `advice`."""
    if done is None or advice in (Advice.INSPECT_HARDWARE, Advice.CONTACT_SUPPORT):
        return advice, {}
    treatable = advice in (Advice.RESET_GPU, Advice.REBOOT)
    if treatable and _did_not_help(done.reboot, first_seen, now):
        return Advice.INSPECT_HARDWARE, {"came_back_after": "a reboot"}
    if (often := within_a_day(done, first_seen)) >= OFTEN:
        return Advice.INSPECT_HARDWARE, {OFTEN_KEY: often}
    if advice is Advice.RESET_GPU and _did_not_help(done.reset, first_seen, now):
        return Advice.REBOOT, {"came_back_after": "a GPU reset"}
    return advice, {}


def _did_not_help(at: float, first_seen: float, now: float) -> bool:
    """True if the failure was repaired at `at`, and came back after that or did not go away."""
    came_back = at < first_seen <= at + COUNTS_FOR
    return at > 0.0 and (came_back or (first_seen <= at and now - at > TAKES_EFFECT))
