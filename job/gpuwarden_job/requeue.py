"""Leaving so that the scheduler starts the job again, elsewhere.

Never with 0: Slurm, dstack and OSMO all take that for "finished". One code, 75 ("try again later" in sysexits.h), means
"saved, start me again" to all of them:

    Slurm    RequeueExit=75 in slurm.conf, or a batch script that requeues itself (examples/slurm)
    dstack   any code but 0, with `error` among `retry.on_events`
    OSMO     exitActions: RESCHEDULE: 75, and max_retry_per_task above its default of 0

GPUWARDEN_REQUEUE_EXIT sets another one. GPUWARDEN_AFTER_SAVE=park keeps the process, saved, until it is ended or the
machine is: where leaving early would free the GPU before the node is out of scheduling, or where only the machine's death
counts as an interruption (dstack's spot instances without `error`).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from gpuwarden_job.agent import end_agent
from gpuwarden_job.guard import CheckpointGuard
from gpuwarden_job.notice import boottime
from gpuwarden_job.reschedule import mark

_log = logging.getLogger("gpuwarden_job")

REQUEUE = 75
_LARGEST = 125  # above, shells mean signals and commands that they could not start
_AFTER = 60.0  # s past the deadline: the machine was spared
_WITHOUT_DEADLINE = 900.0  # s
_SETTLED = 3.0  # s within which the daemon has sent the signal that goes with its notice
_TICK = 0.2  # s


def requeue_code(environ: Mapping[str, str] = os.environ) -> int:
    configured = environ.get("GPUWARDEN_REQUEUE_EXIT", "")
    if configured.isascii() and configured.isdigit() and 1 <= int(configured) <= _LARGEST:
        return int(configured)
    if configured:
        _log.warning("GPUWARDEN_REQUEUE_EXIT is %r, not a number from 1 to %d; using %d", configured, _LARGEST, REQUEUE)
    return REQUEUE


def leave(
    guard: CheckpointGuard, *, markers: str | Path | None = None, environ: Mapping[str, str] = os.environ
) -> NoReturn:
    """Raises SystemExit with the code for "start me again", now or when parking ends.

    `markers`: a folder for a reschedulable-error marker, where a launcher such as torchrun swallows the codes of its ranks.
    Where torchrun would start the ranks again on a node that is taken away, it is ended too.
    """
    if markers is not None:
        mark(Path(markers), guard.ranks.rank, str(guard.interruption))
    if environ.get("GPUWARDEN_AFTER_SAVE") == "park":
        park(guard)
    end_agent(guard.interruption, environ)
    raise SystemExit(requeue_code(environ))


def park(guard: CheckpointGuard, clock: Callable[[], float] = boottime) -> None:
    """Waits for a signal of another event, or until a minute past the deadline (else 15 minutes from now)."""
    begun, before = clock(), guard.signals
    deadline = None if guard.interruption is None else guard.interruption.deadline
    until = begun + _WITHOUT_DEADLINE if deadline is None else deadline + _AFTER
    guard.parked = True
    while (now := clock()) < until:
        if now - begun < _SETTLED:
            before = guard.signals
        elif guard.signals != before:
            return
        time.sleep(_TICK)
