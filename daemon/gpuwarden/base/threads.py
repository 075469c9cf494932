"""Work that may block or hang, in a thread that nothing waits for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, cast

Result = TypeVar("Result")


def detached(name: str, work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Run `work` in a daemon thread of its own; the future gets what it returns or raises, if it ever ends.

    It also gets RuntimeError where no thread can be started, as at a limit on tasks (TasksMax, a pod's pids). Neither the loop nor the end
    of the process waits for the thread (an executor's threads would be waited for).
    """
    future, run = promised(work)
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        future.set_exception(error)
    return future


def promised(work: Callable[[], Result]) -> tuple[asyncio.Future[Result], Callable[[], None]]:
    """A future of this loop, and what a thread must run so that it gets what `work` returns or raises."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast("Result", result))

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - all of it goes to the waiter of the future
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(settle, result, error)

    return future, run
