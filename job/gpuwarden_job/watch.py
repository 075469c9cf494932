"""A rank that waits for a dead peer waits as long as the collective's timeout: 30 minutes of NCCL, longer than any notice.

This thread sees that the steps have stopped, and leaves with the code for "start me again" while there is time. It leaves
without saving: half a world cannot. The newest whole checkpoint is what the job resumes from.
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
from types import TracebackType

from gpuwarden_job import notice, staging
from gpuwarden_job.guard import CheckpointGuard
from gpuwarden_job.requeue import requeue_code
from gpuwarden_job.reschedule import mark

_log = logging.getLogger("gpuwarden_job")
_TICK = 0.2  # s
_STOPPED = (
    1.0  # s by which a tick is late where the whole process was stopped; chosen, a busy host makes it some tenths
)


class PeerWatch:
    """Leaves when the steps have stopped; call `beat` at each step.

    After `stall` seconds without a step the peers count as lost; before the first step, which connects and compiles, after `first`
    seconds: a job that left then would be started again, and leave again, for ever. With a notice whose deadline is less than `margin`
    seconds away, `margin` seconds are enough. A parked rank (requeue.py) waits for nobody. Time in which the whole process was
    stopped (scontrol suspend, a frozen container) does not count.
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def beat(self) -> None:
        self._beaten = time.monotonic()
        self._patience = self._stall

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspends the watch during work that takes long without steps and is no stall.

        Such work is a save, an evaluation, the first compilation.
        """
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
        # The main thread sits in a collective: an exception would never reach it.
        os._exit(requeue_code())
