"""History of failures and repairs of each board, and the advice when the same failure recurs.

    reset the GPU -- it recurs --> reboot -- it recurs --> have the hardware inspected

Escalation is by board and kind of failure (`xid.95`, `row_remap_failed`), never by node: a reboot for GPU 0 has no
effect on GPU 5. A repair counts only if the failure was active at the time, so an epilog that resets every GPU after
every job does not count. It counts for `COUNTS_FOR`. A new board in the slot starts at the first step.

The third failure of one kind within `DAY` needs a person, regardless of repairs: the board fails again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwarden.health.model import Advice, Evidence
from gpuwarden_collectors.dataclass import dataclass, replace

COUNTS_FOR = 7 * 86_400.0
"""Seconds. Own choice: NVSentinel's analyser counts the remediations of a node in the same window."""
FORGOTTEN_AFTER = 4 * COUNTS_FOR
"""Seconds for which a repair counts for a failure that was active before it."""
TAKES_EFFECT = 60.0
"""Seconds after which a failure that is still observed was not repaired: passes and the driver need some time."""
DAY = 86_400.0
OFTEN = 3
"""Failures of one kind within a day. Own choice: a second one may be chance or an incomplete repair."""
OFTEN_KEY = "failures_within_a_day"
"""Evidence key for the number of failures within a day."""
KEPT = 1024  # (board, kind) pairs

Case = tuple[str, str]
"""The board (its UUID, or its slot if it never reported one), and the kind of failure."""


@dataclass(frozen=True, slots=True)
class Repairs:
    """Recent times of a failure, and the last repair of each kind."""

    reset: float = 0.0
    """Wall time of the last GPU reset; 0: never."""
    reboot: float = 0.0
    """Wall time of the last reboot; 0: never."""
    failed: tuple[float, ...] = ()
    """Wall times at which it was raised as a failure, the newest last, at most `OFTEN`."""


RepairHistory = Mapping[Case, Repairs]


def repaired(repairs: RepairHistory, cases: Iterable[Case], at: float, how: str) -> RepairHistory:
    """Return the history with a repair of these cases at `at`; `how`: "reset" or "reboot". Old repairs are dropped."""
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
    """Return the number of failures within a day, including the one first seen at `first_seen` (wall time)."""
    return 1 + sum(first_seen - DAY <= at < first_seen for at in done.failed)


def escalated(advice: Advice, done: Repairs | None, first_seen: float, now: float) -> tuple[Advice, Evidence]:
    """Return the advice for a failure first seen at `first_seen` (wall time), and the reason if it is not `advice`."""
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
    """Return True if the failure was repaired at `at`, but recurred or persisted after that."""
    came_back = at < first_seen <= at + COUNTS_FOR
    return at > 0.0 and (came_back or (first_seen <= at and now - at > TAKES_EFFECT))
