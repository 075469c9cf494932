"""The shutdown of the operating system as a termination notice: some clouds give no other.

logind announces it (PrepareForShutdown) and waits for holders of a delay inhibitor, at most InhibitDelayMaxSec: 5 s
unless the operator raised it. Stopping a service, including this one, is not announced and is no notice.
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

if TYPE_CHECKING:  # loads jeepney
    from gpuwarden_collectors.cloud.logind import Logind

NAME = "shutdown"
DELAY_DEFAULT = 5.0
"""Seconds; logind.conf(5), InhibitDelayMaxSec."""
HANG = 30.0
"""Most seconds that one answer waits for a signal."""
_READ_AGAIN = 3


class Shutdown:
    """A shutdown of this machine as logind announces it.

    An inhibitor delays the shutdown by `hold` seconds, within logind's limit, so that jobs can save. `stop` is the time
    in seconds for which systemd then waits for this daemon to stop before it stops the jobs' units; 0 if it does not
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
        """Seconds left for the daemon to stop when the machine shuts down; 0 if systemd does not wait for it."""
        return 0.0 if self._ends is None or not self._stop else max(0.0, self._ends - self._clock().boottime)

    async def _connect(self) -> None:
        from gpuwarden_collectors.cloud.logind import Logind  # noqa: PLC0415 - only where shutdown is a source

        self._logind = logind = await Logind.connect(self._path, self._timeout)
        self._going_down = await logind.follow_shutdown()
        self.delay = await logind.delay()
        if not self._going_down:
            await self._inhibit(logind)

    async def _inhibit(self, logind: Logind) -> None:
        """Takes a delay inhibitor from logind. If logind refuses, a shutdown is not delayed but still announced."""
        with contextlib.suppress(BusError):
            self._inhibitor = await logind.inhibit()

    async def _wait(self, logind: Logind) -> None:
        begins = await logind.shutdown(HANG)
        if begins is None:
            return
        before, self._going_down = self._going_down, begins
        if self._going_down and not before:
            self._release = asyncio.get_running_loop().call_later(self._hold, self._let_go)
        elif before and not self._going_down:  # the shutdown was cancelled
            self._plain = _READ_AGAIN
            self._let_go()
            await self._inhibit(logind)

    def _let_go(self) -> None:
        if self._release is not None:
            # The timer of a cancelled shutdown would release the inhibitor for the next one.
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
