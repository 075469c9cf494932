"""The shutdown of the operating system: on some clouds that is all the notice there is.

logind announces it (PrepareForShutdown) and waits for the holders of a delay inhibitor, InhibitDelayMaxSec at most: 5 s unless the
operator raised it. That a service is stopped, ours too, is announced by nobody, and is no notice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import NONE, Answer, Kind, TerminationNotice, answer, identity, unknown
from gpuwarden_collectors.cloud.source import Question
from gpuwarden_collectors.cloud.system_bus import SYSTEM_BUS, BusError
from gpuwarden_collectors.facts import Stamp

if TYPE_CHECKING:  # it loads jeepney
    from gpuwarden_collectors.cloud.logind import Logind

NAME = "shutdown"
DELAY_DEFAULT = 5.0
"""Seconds; logind.conf(5), InhibitDelayMaxSec."""
HANG = 30.0
"""Seconds that one answer waits for a signal."""
_READ_AGAIN = 3


class Shutdown:
    """A shutdown of this machine as logind announces it.

    A shutdown is delayed by `hold` seconds, within what logind allows, so that what must be done can be. `stop` is the
    time in seconds that systemd then waits for this daemon to stop, before it stops what jobs run in; 0 if it does not
    wait.
    """

    name = NAME

    def __init__(
        self, clock: Clock, *, path: str = SYSTEM_BUS, hold: float = 4.0, stop: float = 0.0, timeout: float = 5.0
    ) -> None:
        self._clock = clock
        self._path = path
        self._hold = hold
        self._stop = stop
        self._timeout = timeout
        self._logind: Logind | None = None
        self._inhibitor: int | None = None
        self._going_down = False
        self._plain = 0
        self._ends: float | None = None
        self.delay = DELAY_DEFAULT
        self._release: asyncio.TimerHandle | None = None
        self.questions: Sequence[Question] = (
            Question(name="logind", kind=Kind.SHUTDOWN, ask=self._ask, interval=0.5, hangs=HANG, main=True),
        )

    async def confirm(self) -> str:
        return ""

    async def close(self) -> None:
        self._let_go()
        if self._logind is not None:
            self._logind.close()
            self._logind = None

    async def _ask(self) -> Answer:
        try:
            if self._logind is None:
                await self._connect()
            elif self._plain:
                self._plain -= 1
            else:
                await self._wait(self._logind)
        except BusError as error:
            await self.close()
            return unknown(f"logind: {error}")
        if not self._going_down:
            self._ends = None
            return NONE
        now = self._clock()
        if self._ends is None:
            self._ends = now.boottime + min(self.delay, self._hold) + self._stop
        return going_down(now, self._ends - now.boottime)

    def ends_in(self) -> float:
        """Seconds that the daemon may take to stop because the machine goes down; 0 if it may not."""
        return 0.0 if self._ends is None or not self._stop else max(0.0, self._ends - self._clock().boottime)

    async def _connect(self) -> None:
        from gpuwarden_collectors.cloud.logind import Logind  # noqa: PLC0415 - only where shutdown is a source

        self._logind = logind = await Logind.connect(self._path, self._timeout)
        self._going_down = await logind.follow_shutdown()
        self.delay = await logind.delay()
        if not self._going_down:
            await self._inhibit(logind)

    async def _inhibit(self, logind: Logind) -> None:
        """Takes a delay inhibitor from logind. If logind refuses, the delay is lost, not the notice."""
        with contextlib.suppress(BusError):
            self._inhibitor = await logind.inhibit()

    async def _wait(self, logind: Logind) -> None:
        begins = await logind.shutdown(HANG)
        if begins is None:
            return
        before, self._going_down = self._going_down, begins
        if self._going_down and not before:
            self._release = asyncio.get_running_loop().call_later(self._hold, self._let_go)
        elif before and not self._going_down:  # it was called off
            self._plain = _READ_AGAIN
            self._let_go()
            await self._inhibit(logind)

    def _let_go(self) -> None:
        if self._release is not None:
            # That of a shutdown that was called off would let go of the inhibitor for the next one.
            self._release.cancel()
            self._release = None
        if self._inhibitor is not None:
            os.close(self._inhibitor)
            self._inhibitor = None


def going_down(at: Stamp, delay: float) -> Answer:
    notice = TerminationNotice(
        source=NAME,
        kind=Kind.SHUTDOWN,
        id=identity("logind", "PrepareForShutdown"),
        hard=True,
        deadline=Stamp(at.boottime + delay, at.wall + delay),
        estimated=True,
        reason="the operating system goes down",
    )
    return answer((notice,))
