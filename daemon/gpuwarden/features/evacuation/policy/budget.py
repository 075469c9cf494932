"""Which steps fit before the machine is gone, and until when each of them may wait. Pure.

    window   signal, exclude   whole job at once   wait for saving until   requeue       final state
    1 s      at once           no, this host       not at all              no            no
    4 s      at once           yes                 1.5 s                   at 1.5 s      no
    5 s      at once           yes                 2.5 s                   at 2.5 s      no
    30 s     at once           yes                 25 s                    at 25 s       at 28.5 s
    60 s     at once           yes, within 2 s     55 s                    at 55 s       at 58.5 s
    120 s    at once           yes, within 4 s     115 s                   at 115 s      at 118.5 s
    2 h      at once           yes, within 5 s     7,195 s                 at 7,195 s    at 7,198.5 s

The controller signals the whole job. Where a time is given, the signal waits that long for its answer; then the ranks here are signalled.

Steps that do not fit are dropped in this order: the final node state (below 10 s), waiting (2.5 s), requeueing (below
2.5 s), signalling a job as a whole (below 2 s; its ranks here are signalled instead). The signal is never dropped, nor
the exclusion: it begins in parallel with the signal, is waited for 3 s at most and then retried in the background. Only
the requeue needs it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden_collectors.dataclass import dataclass

MARK_TAKES = 2.0
"""Seconds for the mark, its pause (1 s at most) and the signal through the controller."""
CONTROLLER_SHARE, CONTROLLER_MOST = 1 / 30, 5.0
"""Share of the window, and most seconds, for which the signal of a job with ranks on other nodes waits for the
controller: without it those ranks get none. Chosen, not measured: a scan itself waits one second, and a busy slurmctld
may take several."""
REQUEUE_TAKES = 2.5
"""Seconds: 0.1 for the requeue, then 2 until its start may be set to now (Slurm 22.05 kills a job that starts within 1
s: its credential is revoked), 0.1 for that, and to read it back. The requeue ends the job: unsaved work is lost."""
FINAL_STATE_TAKES = 1.5
"""Seconds: one write and one read, in twice the time that a loaded controller needs."""
FINAL_STATE_FROM = 10.0
"""Seconds of the shortest window with a final node state: in a shorter one the job gets all the time."""
MARGIN = 5.0
"""Seconds before the end at which waiting is over if a final node state follows: file systems are flushed, unmounted.
"""

INTERRUPTION, SHUTDOWN, FAILING_GPU = "interruption", "shutdown", "failing_gpu"
WINDOW = 30.0
"""Seconds assumed for a notice without a deadline: the shortest lead that a cloud documents for a machine it takes back
(GCP, Azure, IBM, Yandex)."""
OVERDUE = 5.0
"""Seconds assumed if the end had passed when its notice was first received (an event that Azure has started, a machine
that was not taken after all): time for a short save, and for the requeue while it can still be requested."""
WINDOWS: Mapping[str, float] = {
    SHUTDOWN: 4.0,  # logind lets services delay it by 5 s
    FAILING_GPU: 120.0,  # nothing ends: a job that does not acknowledge gets as long as AWS gives
}
"""Seconds assumed for kinds of notices that differ from WINDOW."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The times of one evacuation. `window` is the seconds from its beginning until the end; the rest are seconds of
    CLOCK_BOOTTIME, None if a step does not fit.

    `end` is `assumed` where the notice has no deadline. With `wide`, there is time to signal a job as a whole; the
    controller has `controller_within` seconds to answer for that. A job may save until `wait_until`; it is requeued
    then, or earlier if it acknowledges.
    """

    window: float
    end: float
    assumed: bool
    wide: bool
    controller_within: float
    wait_until: float
    requeue: bool
    final_state_at: float | None


def budget(kind: str, began: float, deadline: float | None) -> Budget:
    """Return the times of an evacuation. `began`: when the notice was first acted on, `deadline`: when the machine
    ends, both in seconds of CLOCK_BOOTTIME.

    If the deadline had passed when the evacuation began, the end is assumed to be OVERDUE later.
    """
    if deadline is None:
        end, assumed = began + WINDOWS.get(kind, WINDOW), True
    elif deadline <= began:
        end, assumed = began + OVERDUE, True
    else:
        end, assumed = deadline, False
    window = end - began
    final_state = window >= FINAL_STATE_FROM and not assumed and kind not in (SHUTDOWN, FAILING_GPU)
    requeue = window >= REQUEUE_TAKES
    margin = MARGIN if window >= FINAL_STATE_FROM else REQUEUE_TAKES
    return Budget(
        window=window,
        end=end,
        assumed=assumed,
        wide=window >= MARK_TAKES,
        controller_within=min(window * CONTROLLER_SHARE, CONTROLLER_MOST),
        wait_until=max(began, end - margin),
        requeue=requeue,
        final_state_at=end - FINAL_STATE_TAKES if final_state else None,
    )
