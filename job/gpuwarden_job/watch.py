"""A watchdog for dead peers: a collective with one hangs until its timeout, 30 minutes for NCCL, which is too late.

This thread detects that steps have stopped, and exits with the code for "start me again" in time. It does not save,
because a save needs all ranks; the job resumes from the newest complete checkpoint.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuwarden_job import notice, staging
from gpuwarden_job.guard import CheckpointGuard
from gpuwarden_job.requeue import requeue_code
from gpuwarden_job.reschedule import mark

_log = logging.getLogger("gpuwarden_job")
_TICK = 0.2  # s
_STOPPED = (
    1.0  # s of delay of a tick that mean that the process was stopped; own choice, a busy host delays some tenths
)


class PeerWatch:
    """Exits the process when steps have stopped; call `beat` at each step.

    Peers count as lost after `stall` seconds without a step, or `first` seconds before the first step, which connects
    and compiles: with a shorter limit a slow job would be restarted for ever. If a notice's deadline is less than
    `margin` seconds away, `margin` seconds without a step are enough. A parked rank (requeue.py) is not watched. Time
    in which the process was stopped (scontrol suspend, a frozen container) does not count.
    """

    def __init__(
        self,
        guard: CheckpointGuard,
        *,
        stall: float = 300.0,
        first: float = 1800.0,
        margin: float = 10.0,
        markers: str | Path | None = None,
        lost: Callable[[], object] | None = None,
    ) -> None:
        self._guard, self._stall, self._margin = guard, stall, margin
        self._patience = max(first, stall)
        self._markers = None if markers is None else Path(markers)
        self._lost = lost or self._leave
        self._boot_id = staging.boot_id()
        self._beaten = time.monotonic()
        self._pauses = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuwarden-peers", daemon=True)

    def __enter__(self) -> PeerWatch:  # noqa: PYI034 - Python 3.9 has no Self
        self._beaten = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def beat(self) -> None:
        self._beaten = time.monotonic()
        self._patience = self._stall

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspends the watch during long work without steps, such as a save, an evaluation or the first compilation."""
        self._pauses += 1
        try:
            yield
        finally:
            self._beaten = time.monotonic()
            self._pauses -= 1

    def _run(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(_TICK):
            now = time.monotonic()
            if (stopped := now - before - _TICK) > _STOPPED:
                self._beaten = min(self._beaten + stopped, now)
            before = now
            if not self._pauses and not self._guard.parked and self._stalled(now - self._beaten):
                self._lost()
                return

    def _stalled(self, idle: float) -> bool:
        if idle >= self._patience:
            return True
        if idle < self._margin:
            return False
        with suppress(Exception):
            latest = notice.read(self._guard.run_dir / "notice.json", self._boot_id)
            return (
                latest is not None
                and latest.deadline is not None
                and latest.deadline - notice.boottime() < self._margin
            )
        return False

    def _leave(self) -> None:
        text = "no step for too long: a peer is taken for lost"
        _log.error(text)
        if self._markers is not None:
            mark(self._markers, self._guard.ranks.rank, text)
        with suppress(Exception):
            sys.stderr.flush()
        # The main thread is inside a collective, so an exception would not reach it.
        os._exit(requeue_code())
