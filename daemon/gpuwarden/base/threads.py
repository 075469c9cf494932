"""Runs work that may hang in a thread that nothing waits for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, cast

Result = TypeVar("Result")


def detached(name: str, work: Callable[[], Result]) -> asyncio.Future[Result]:
    """Run `work` in a new daemon thread; the future gets its result or exception, if it ever returns.

    The future gets RuntimeError if no thread can be started, as at a task limit (TasksMax, a pod's pids). Neither the
    loop nor the exit of the process waits for the thread, unlike for an executor's threads.
    """
    future, run = promised(work)
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        future.set_exception(error)
    return future


def promised(work: Callable[[], Result]) -> tuple[asyncio.Future[Result], Callable[[], None]]:
    """Return a future of this loop, and a function for a thread that runs `work` and sets the future."""
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
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, result, error)

    return future, run
