"""Exits so that the scheduler restarts the job on other machines.

Never with 0, which Slurm, dstack and OSMO interpret as "finished". One code, 75 (EX_TEMPFAIL of sysexits.h), means
"saved, start me again" to all of them:

    Slurm    RequeueExit=75 in slurm.conf, or a batch script that requeues itself (examples/slurm)
    dstack   any code but 0, with `error` among `retry.on_events`
    OSMO     exitActions: RESCHEDULE: 75, and max_retry_per_task above its default of 0

GPUWARDEN_REQUEUE_EXIT sets another code. With GPUWARDEN_AFTER_SAVE=park the process stays after the save until it is
killed or the machine ends: for schedulers that would place a new job on the freed GPU before the node is excluded, or
that only count the machine's end as an interruption (dstack's spot instances without `error`).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from gpuwarden_job.guard import CheckpointGuard, Interruption
from gpuwarden_job.notice import boottime
from gpuwarden_job.reschedule import mark

_log = logging.getLogger("gpuwarden_job")

REQUEUE = 75
_LARGEST = 125  # higher codes mean signals, or commands that a shell could not start
_AFTER = 60.0  # s after the deadline: the machine was not terminated
_WITHOUT_DEADLINE = 900.0  # s
_SETTLED = 3.0  # s within which the daemon has sent the signal of its notice
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

    `markers`: a folder for a mark, for launchers such as torchrun that lose the exit codes of their ranks. If torchrun
    would restart the ranks on a node that is about to end, it is ended, too.
    """
    if markers is not None:
        mark(Path(markers), guard.ranks.rank, str(guard.interruption))
    if environ.get("GPUWARDEN_AFTER_SAVE") == "park":
        park(guard)
    end_agent(guard.interruption, environ)
    raise SystemExit(requeue_code(environ))


def park(guard: CheckpointGuard, clock: Callable[[], float] = boottime) -> None:
    """Waits for a signal of another event, or until a minute after the deadline (without one: for 15 minutes)."""
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


_SENT_BY_IT = {"SIGTERM", "SIGINT"}  # the agent sends them before it restarts ranks, and when it exits
_NAMES = (b"torchrun", b"torch.distributed", b"torch/distributed", b"accelerate")
_PARENT = os.getppid()  # at import time: the later parent of an orphan must not be killed


def end_agent(interruption: Interruption | None, environ: Mapping[str, str] = os.environ) -> None:
    """Ends the torchrun agent that started this rank, if this node is affected and the agent would restart its ranks.

    An agent restarts exited ranks, up to --max-restarts times. On a node that is about to end it must exit, or it would
    restart the ranks there; the agents of the other nodes then form a smaller world. SIGTERM ends it. (In PyTorch 2.3
    to 2.7 that closes the rendezvous, and all nodes exit.) Raises nothing.
    """
    if interruption is None or environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return
    if interruption.notice is None and not set(interruption.signals) - _SENT_BY_IT:
        return
    with suppress(OSError):
        command = Path(f"/proc/{_PARENT}/cmdline").read_bytes()
        if os.getppid() == _PARENT and any(name in command for name in _NAMES):
            os.kill(_PARENT, signal.SIGTERM)
