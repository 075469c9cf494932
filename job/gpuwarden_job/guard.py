"""Detects when to save and leave: after a signal or a notice of the daemon, on any rank.

    for step in …:
        train(step)
        if interruption := guard.check(step):
            store.save(…)
            guard.acknowledge(saved=True, step=step)
            leave(guard)

A signal handler only sets a flag, because a save inside a handler could interrupt another save, deadlock, or enter a
collective alone. All ranks check the flag at the same step, since a save is collective. Python runs handlers in the
main thread between two bytecodes: a rank inside a kernel or a collective handles the signal after it returns.
`PeerWatch` is for ranks that never return.

Forked processes of the training inherit the handlers. A signal to all processes of the job does not end them, so that
the rank can still save; after the guard is left, signals end them as usual. `keep_worker` does the same for processes
that set their own handlers or are not forked, such as the workers of PyTorch's DataLoader.

Nothing here raises into the training. Without a daemon only signals are handled, which is not an error.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from gpuwarden_job import acknowledge, notice, staging
from gpuwarden_job.agreement import agree
from gpuwarden_job.notice import Notice, Unknown, boottime
from gpuwarden_job.ranks import Ranks
from gpuwarden_job.workers import Flag, KeepWorker, end_by

_log = logging.getLogger("gpuwarden_job")
WAY_OUT = 5.0
"""Seconds reserved before the deadline to acknowledge and leave. Own choice: an acknowledgement takes at most three."""

RUN_DIR = "/run/gpuwarden"
SIGNALS = ("TERM", "INT", "USR1")
# The daemon writes its notice and signals at once, ranks read it at different times, and one failing switch affects
# many nodes: a notice first seen within this time after an answer belongs to the same event.
_SAME_EVENT = 30.0  # s


@dataclass(frozen=True)
class Interruption:
    """The reason for all ranks to save and leave. Without notice and signals, another rank was interrupted."""

    deadline: float | None
    """The soonest deadline of all ranks, seconds of CLOCK_BOOTTIME; None if no rank has one."""
    notice: str | None = None
    """Id of the notice, if this node has one."""
    reason: str = ""
    """Text of the notice."""
    signals: tuple[str, ...] = ()
    """Names of the signals that this rank received."""

    @property
    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - boottime())


class CheckpointGuard:
    """Decides when to save and leave, with the same result on all ranks.

    The ranks agree at each step that is a multiple of `every`. `poll` is the time in seconds between reads of the
    notice, on each rank. A second SIGINT interrupts as usual. The signal that the job declares to the daemon
    (GPUWARDEN_SIGNAL) is caught, too.
    """

    def __init__(
        self,
        *,
        ranks: Ranks | None = None,
        every: int = 1,
        poll: float = 1.0,
        signals: Iterable[str] = SIGNALS,
        environ: Mapping[str, str] = os.environ,
        boot_id: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if every < 1:
            raise ValueError(f"every is {every}: the ranks agree every 1, 2, 3 … steps")
        self.ranks = Ranks.detect(environ) if ranks is None else ranks
        self.run_dir = Path(environ.get("GPUWARDEN_RUN_DIR") or RUN_DIR)
        self.job = acknowledge.job_name(environ)
        self._spans_job = acknowledge.spans_job(environ, self.ranks.size)
        self.interruption: Interruption | None = None
        self.parked = False
        """True if this rank is done and waits for its end; it then waits for no peer."""
        self._every, self._poll, self._clock = every, poll, clock
        self._boot_id = staging.boot_id() if boot_id is None else boot_id
        declared = environ.get("GPUWARDEN_SIGNAL", "").upper()
        self._signals = _numbers((*signals, declared))
        self._before: dict[int, object] = {}
        self._came: list[int] = []
        self._owner = os.getpid()
        self._left = Flag.create()  # shared with processes that this one starts
        self._left.set(True)
        self.keep_worker = KeepWorker(self._signals, self._left)
        """For `worker_init_fn` of PyTorch's DataLoader: a signal to all processes of the job does not end its workers."""
        self._notice: Notice | None = None
        self._read_at: float | None = None
        self._complained = ""
        self._handled: set[str] = set()
        self._handled_signals = 0
        self._answered_at: float | None = None

    def __enter__(self) -> CheckpointGuard:  # noqa: PYI034 - Python 3.9 has no Self
        if threading.current_thread() is not threading.main_thread():
            _log.warning("signals are not caught, since this is not the main thread; the notice is still read")
            return self
        self._owner = os.getpid()
        self._left.set(False)
        for number in self._signals:
            with suppress(OSError, ValueError):
                self._before[number] = signal.signal(number, self._signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            with suppress(OSError, ValueError, TypeError):
                signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()
        if os.getpid() == self._owner:
            self._left.set(True)

    def _signal(self, number: int, _: FrameType | None) -> None:
        if self._left and os.getpid() != self._owner:  # otherwise a process that waits for its exit would hang
            end_by(number, self._before.get(number) or signal.SIG_DFL)
            return
        if number == signal.SIGINT and number in self._came:
            raise KeyboardInterrupt
        self._came.append(number)

    @property
    def signals(self) -> int:
        """Number of signals that this rank received."""
        return len(self._came)

    @property
    def pending(self) -> bool:
        """True if this rank has a notice or signal that is not yet answered.

        Not collective: for long periods between two checks.
        """
        try:
            self._read_notice()
            return self._news()
        except Exception:  # noqa: BLE001 - nothing here may end a training
            _log.exception("the notice could not be read")
            return len(self._came) > self._handled_signals

    def check(self, step: int) -> Interruption | None:
        """Returns why all ranks must save and leave, or None. The same on all ranks, once per notice.

        Collective at every `every`-th step.
        """
        if step % self._every:
            return None
        pending = self.pending
        deadline = agree(self.ranks, pending, self._notice.deadline if pending and self._notice else None)
        if deadline is None:
            return None
        self.interruption = self._answered(deadline.at)
        _log.warning("save and leave: %s", self.interruption)
        return self.interruption

    def time_for(self, seconds: float | None, margin: float = WAY_OUT) -> bool:
        """True if a save of `seconds` fits before the deadline on every rank. Collective. Unknown times fit."""
        remaining = None if self.interruption is None else self.interruption.remaining
        late = seconds is not None and remaining is not None and seconds + margin > remaining
        try:
            return not self.ranks.any(late)
        except Exception:  # noqa: BLE001 - nothing here may end a training
            _log.exception("agreement of the ranks failed")
            return not late

    def time_left(self, margin: float = WAY_OUT) -> float | None:
        """Returns the seconds until the deadline minus `margin`, the time to leave; None without a deadline."""
        remaining = None if self.interruption is None else self.interruption.remaining
        return None if remaining is None else max(0.0, remaining - margin)

    def acknowledge(self, *, saved: bool, step: int | None, all_ranks: bool | None = None) -> bool:
        """Acknowledges the notice. True if the daemon accepted it. Takes at most three seconds once all ranks call it.

        Collective: the ranks wait for each other, and then each acknowledges for all, so that a job of several nodes is
        requeued without waiting for the deadline. With `all_ranks` it is not collective: pass True if every rank of the
        job is known to be done, False to acknowledge only for this rank.
        """
        if self.interruption is None:
            return False
        if all_ranks is None:
            all_ranks = self.ranks.size > 1 and self._all_done()
        if (notice_id := self.interruption.notice) is None:
            return False
        return acknowledge.acknowledge(
            self.run_dir, self.job, notice_id, self.ranks.rank, saved=saved, step=step, all_ranks=all_ranks
        )

    def _all_done(self) -> bool:
        """Waits for the ranks. True if they are all ranks of the job. Collective."""
        try:
            return not self.ranks.any(not self._spans_job)
        except Exception:  # noqa: BLE001 - nothing here may end a training
            _log.exception("agreement of the ranks failed; this rank acknowledges only for itself")
            return False

    def _read_notice(self, *, at_once: bool = False) -> None:
        now = self._clock()
        fresh = self._read_at is not None and now - self._read_at < self._poll
        if fresh and not at_once and len(self._came) == self._handled_signals:
            return
        self._read_at = now
        try:
            latest = notice.read(self.run_dir / "notice.json", self._boot_id)
        except Unknown as error:
            if str(error) != self._complained:
                _log.warning("%s", error)
            self._complained = str(error)
            return
        if latest is not None and self._just_answered:
            self._handled.add(latest.id)
        if latest is None and self._notice is not None:
            self._handled.clear()  # withdrawn: the same notice counts as new if it returns
            self._answered_at = None
        self._notice = latest

    @property
    def _just_answered(self) -> bool:
        return self._answered_at is not None and self._clock() - self._answered_at < _SAME_EVENT

    def _news(self) -> bool:
        if self._notice is not None and self._notice.id not in self._handled:
            return True
        if self._notice is not None and self._just_answered:  # the signal repeats the notice
            self._handled_signals = len(self._came)
        return len(self._came) > self._handled_signals

    def _answered(self, deadline: float | None) -> Interruption:
        came = self._came[self._handled_signals :]
        self._handled_signals += len(came)
        self._answered_at = self._clock()
        if self._notice is None:  # it may have been written meanwhile
            with suppress(Exception):
                self._read_notice(at_once=True)
        current = self._notice
        if current is not None:
            self._handled.add(current.id)
        names = tuple(signal.Signals(number).name for number in came)
        return Interruption(deadline, current.id if current else None, current.reason if current else "", names)


def _numbers(names: Iterable[str]) -> list[int]:
    """Returns the signals with these names, with or without SIG; skips unknown names."""
    signals = (getattr(signal, f"SIG{name.strip().removeprefix('SIG')}", None) for name in names)
    return list(dict.fromkeys(int(number) for number in signals if isinstance(number, signal.Signals)))
