"""An event loop in a thread of its own, for servers beside tests that wait for other processes."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue


@contextmanager
def loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Run a loop in a thread. At its end every task is cancelled and awaited: a connection that was accepted in the last moment, and
    that no server knows yet, is closed with the others.
    """
    ready: SimpleQueue[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = SimpleQueue()

    async def live() -> None:
        stop = asyncio.Event()
        ready.put((asyncio.get_running_loop(), stop))
        await stop.wait()
        await asyncio.sleep(0.01)  # the next turns close the sockets of connections that were just ended

    thread = threading.Thread(target=lambda: asyncio.run(live()))
    thread.start()
    loop, stop = ready.get(timeout=60)
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)


def close_leftover_connections() -> None:
    """Make each loop, when it is closed, close the connections that it still has, and name the test on stderr.

    A client may connect in the moment in which a test ends. Else a garbage collection reports the socket, in whatever test runs then.
    What a protocol of the product left open is reported so.
    """
    close = BaseSelectorEventLoop.close

    def closed(loop: BaseSelectorEventLoop) -> None:
        open_ones = [transport for transport in tuple(loop._transports.values()) if transport._sock is not None]  # type: ignore[attr-defined]
        left = [transport for transport in open_ones if not _of_product(transport._protocol)]
        close(loop)
        for transport in left:
            sys.__stderr__.write(f"\nleft open by {os.environ.get('PYTEST_CURRENT_TEST')}: {transport!r}\n")  # type: ignore[union-attr]
            transport._sock.close()
            transport._sock, transport._closing = None, True

    BaseSelectorEventLoop.close = closed  # type: ignore[assignment, method-assign]


def _of_product(protocol: object) -> bool:
    """Return whether a protocol, or the function to which it gives a connection's streams, is the product's."""
    owner = getattr(protocol, "_client_connected_cb", None) or type(protocol)
    return str(getattr(owner, "__module__", "")).startswith("gpuwarden")
