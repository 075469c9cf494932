"""The early end of a run: by a signal or by the daemon, at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TypeVar

Value = TypeVar("Value")


class Ended(Exception):  # noqa: N818 - no error
    """The run is to end now."""


class Ending:
    """The early end of one run, and its reason."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        """Set once the run is to end."""
        self.why = ""
        """Who ends it, for people."""

    def end(self, why: str) -> None:
        """End the run; the first reason is kept."""
        self.why = self.why or why
        self.event.set()

    async def unless(self, work: Awaitable[Value]) -> Value:
        """Return the result of `work`. Raises Ended as soon as the run is to end, and cancels `work`."""
        task = asyncio.ensure_future(work)
        ended = asyncio.create_task(self.event.wait())
        await asyncio.wait((task, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if task.done():
            return task.result()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        raise Ended
