"""Reports a test to the daemon: that it runs, and its results. The daemon's answer may end a running test.

The lease is short, so that a killed test suppresses no findings for long; it is renewed each second. Without a daemon,
or if the daemon refuses the lease, the test runs on its own.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpuwarden.base.threads import detached
from gpuwarden_collectors.active_test.facts import GpuTest
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.codec import to_wire

Call = Callable[..., Any]
"""Calls a verb of the control socket with its arguments; blocks, within a deadline. Raises DaemonUnreached."""
RENEW_EVERY = 1.0
ANNOUNCED_WITHIN = 2.0
"""Seconds that a worker waits until the daemon has its process number. It then continues without an answer."""
END_WITHIN = 2.0
RESULT_WITHIN = 8.0
RESTART_WITHIN = 20.0
"""Seconds for which results are submitted again while the daemon stops or starts."""
ASK_AGAIN = 1.0


class DaemonUnreached(Exception):  # noqa: N818 - a state of the host
    """There is no daemon, or it refuses. The message says which and why."""


class DaemonAway(DaemonUnreached):
    """The daemon does not answer now, but may soon."""


class Lease:
    """The daemon's lease for one test. `end` is called once, with the reason, when the daemon ends the test."""

    def __init__(self, call: Call, end: Callable[[str], None]) -> None:
        self._call = call
        self._end = end
        self._name = ""
        self._away = False
        self._renewing: asyncio.Task[None] | None = None
        self._known = 0
        self._more = asyncio.Event()
        self._renewed = asyncio.Condition()
        self.workers: list[int] = []
        """Process numbers of the workers of this test: the daemon sets their own Xids aside."""
        self.error = ""
        """Why the daemon did not accept the last request; empty if it did."""
        self.unannounced = ""
        """Why the test could not be announced to the daemon; empty if it was."""

    async def begin(self, level: Level, uuids: Sequence[str], seconds: float) -> None:
        """Announce the test to the daemon and renew its lease. `seconds`: the longest that the test may take. Raises
        nothing.

        The announcement is repeated each second while the daemon does not answer, since the daemon may have to end the
        test once it runs.
        """
        request: Mapping[str, Any] = {"pid": os.getpid(), "level": level.value, "gpus": list(uuids), "seconds": seconds}
        answer = await self._asked("test-begin", request)
        if answer is None:
            self.unannounced = self.error
        if self._away or (answer is not None and not self._taken(answer)):
            self._renewing = asyncio.create_task(self._renew(request))

    async def announced(self) -> None:
        """Wait until the daemon has the process numbers of all workers so far, before they use a driver that may log an
        Xid of theirs. Raises nothing.
        """
        wanted = len(self.workers)
        if self._renewing is None or self._renewing.done():
            return
        self._more.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANNOUNCED_WITHIN), self._renewed:
                await self._renewed.wait_for(lambda: self._known >= wanted)

    async def result(self, tests: Sequence[GpuTest], within: float = RESULT_WITHIN) -> Mapping[str, Any] | None:
        """Return what the daemon concludes from the tests; None if it does not accept them (`error` says why).

        If the daemon granted a lease and does not answer, the results are submitted again until RESTART_WITHIN has
        passed, so that a restart loses none. With `within` shorter than RESULT_WITHIN they are submitted once.
        """
        request = {"lease": self._name, "workers": self.workers, "tests": [to_wire(test) for test in tests]}
        give_up = time.monotonic() + (RESTART_WITHIN if self._name and within >= RESULT_WITHIN else 0.0)
        while True:
            answer = await self._asked("test-result", request, within)
            if answer is not None or not self._away or time.monotonic() >= give_up:
                return answer
            await asyncio.sleep(ASK_AGAIN)

    async def over(self) -> None:
        """Report the end of the test. Raises nothing, and waits for END_WITHIN at most."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        if self._name:
            await self._asked("test-end", {"lease": self._name}, END_WITHIN)

    async def _renew(self, request: Mapping[str, Any]) -> None:
        """Renew the lease each second, and at once when a worker waits for it, until the daemon ends the test."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(RENEW_EVERY):
                    await self._more.wait()
            self._more.clear()
            workers = list(self.workers)
            lease = {"lease": self._name} if self._name else {}
            answer = await self._asked("test-begin", {**request, **lease, "workers": workers})
            async with self._renewed:
                self._known = len(workers)
                self._renewed.notify_all()
            if answer is not None and self._taken(answer):
                return

    def _taken(self, answer: Mapping[str, Any]) -> bool:
        """Keep the name of the lease. Returns True if the daemon ends the test."""
        self._name = self._name or str(answer.get("lease", ""))
        self.unannounced = ""
        return self._ended_by(answer)

    def _ended_by(self, answer: Mapping[str, Any]) -> bool:
        if reason := answer.get("end"):
            self._end(str(reason))
        return bool(reason)

    async def _asked(
        self, verb: str, arguments: Mapping[str, Any], within: float | None = None
    ) -> Mapping[str, Any] | None:
        asking = detached(verb, lambda: self._call(verb, **arguments))
        await asyncio.wait((asking,), timeout=within)
        if not asking.done():
            self.error = f"the daemon has not answered {verb} within {within:g} s"
            return None
        self._away = isinstance(asking.exception(), DaemonAway)
        with suppress(DaemonUnreached):
            answer = asking.result()
            if isinstance(answer, Mapping):
                self.error = ""
                return answer
            self.error = f"the daemon's answer to {verb} is of another version"
            return None
        self.error = str(asking.exception())
        return None
