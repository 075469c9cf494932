"""SIGTERM as a termination notice, if this daemon runs in a container or pod: some clouds give no other notice.

RunPod gives 5 s, Docker 10 s, Kubernetes 30 s; the time is configured, since no source reports it. Under systemd
SIGTERM means a restart or an upgrade and is no notice: this source then reports why it is not available.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import NONE, Answer, Kind, TerminationNotice, answer, identity
from gpuwarden_collectors.cloud.source import Question
from gpuwarden_collectors.facts import Stamp

NAME = "container"
HANG = 30.0
"""Most seconds that one answer waits for the signal."""
_SERVICE = "INVOCATION_ID"
"""Environment variable that systemd sets for each process of a service."""


class Container:
    """A container's SIGTERM as a notice; the handler of the signal calls `ends`.

    `window` is the time in seconds from the signal to the end.
    """

    name = NAME

    def __init__(self, window: float, clock: Clock, environment: Mapping[str, str] = os.environ) -> None:
        self.window = window
        self._clock = clock
        self._service = bool(environment.get(_SERVICE))
        self._came: Stamp | None = None
        self._signal = asyncio.Event()
        self.questions: Sequence[Question] = (
            Question(name="signal", kind=Kind.SHUTDOWN, ask=self._ask, interval=0.2, hangs=HANG, main=True),
        )

    def ends(self) -> bool:
        """Records that SIGTERM arrived. True if it is a notice."""
        if self._service:
            return False
        self._came = self._came or self._clock()
        self._signal.set()
        return True

    async def confirm(self) -> str:
        if not self._service:
            return ""
        return "this daemon is a service of systemd, which also stops it while the machine stays up: use the source shutdown instead"

    async def close(self) -> None:
        """No-op: this source keeps nothing open."""

    async def _ask(self) -> Answer:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANG):
                await self._signal.wait()
        if self._came is None:
            return NONE
        end = Stamp(self._came.boottime + self.window, self._came.wall + self.window)
        notice = TerminationNotice(
            source=NAME,
            kind=Kind.SHUTDOWN,
            id=identity("signal", f"{self._came.boottime:.0f}"),
            hard=True,
            deadline=end,
            reason="SIGTERM: this container ends",
        )
        return answer((notice,))
