"""A listening Unix socket for any user. A thread creates and maintains the file; the loop accepts the clients.

Clients are accepted a millisecond apart, so that each gets its response before many more are connected.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from gpuwarden.base.accepting import accepted
from gpuwarden.base.background import BackgroundWriter
from gpuwarden.base.log import get_logger
from gpuwarden.publish.sockets.unix_socket import SocketError, SocketFile
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

log = get_logger()

PACE = 0.001
"""Seconds between accepting two clients, and between two requests of a client."""
_STALLED = 5.0


class SocketListener:
    """A socket that is kept at its path, and the acceptance of its clients.

    The loop calls `welcome` with each client; an exception from it disconnects that client. `backlog`: most clients
    that wait in the kernel. In seconds: `check_every` between two checks of the file, `deadline` for the file system.
    """

    def __init__(
        self,
        file: SocketFile,
        welcome: Callable[[socket.socket], None],
        *,
        clock: Clock,
        backlog: int,
        check_every: float,
        deadline: float,
    ) -> None:
        self._file = file
        self._welcome = welcome
        self._backlog = backlog
        self._check_every = check_every
        self._deadline = deadline
        self._files = BackgroundWriter(file.path.name, 1, on_error=self._failed, clock=lambda: clock().boottime)
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._error = f"{file.path} is not made yet"
        self._logged = False
        self._closed = False

    async def run(self) -> None:
        """Check repeatedly that the socket exists, and create it again if it was removed."""
        while True:
            await asyncio.sleep(self._check_every)
            await self.check()

    async def check(self) -> None:
        """Check once that the socket exists. Raises nothing; `error` returns the result."""
        loop = asyncio.get_running_loop()
        self._files.submit(lambda: self._make(loop))
        await self._files.flush(self._deadline)
        await asyncio.sleep(0)  # run the calls that the thread has passed to the loop

    def error(self, now: Stamp) -> str:
        stalled = self._files.stalled_for(now.boottime)
        if stalled > _STALLED:
            return f"cannot read {self._file.path}: no response for {stalled:.0f} s; is its filesystem frozen?"
        return self._error

    async def close(self) -> None:
        self._closed = True
        self._shut()
        self._files.submit(self._file.remove)
        await self._files.flush(self._deadline)
        self._files.close(0.0)

    # --- in the thread

    def _make(self, loop: asyncio.AbstractEventLoop) -> None:
        """Create the socket again if its file is no longer this daemon's. Raises SocketError or OSError on failure."""
        if not self._file.is_current():
            listener = self._file.make(self._backlog)
            try:
                loop.call_soon_threadsafe(self._open, listener)
            except RuntimeError:  # the loop has ended
                listener.close()
        if self._logged:
            log.info("socket available again", path=str(self._file.path))
        self._error, self._logged = "", False

    def _failed(self, error: Exception) -> None:
        text = str(error) if isinstance(error, SocketError) else f"cannot read {self._file.path}: {error}"
        if text != self._error:
            log.warning("socket not available", error=text)
        self._error, self._logged = text, True

    # --- in the loop

    def _open(self, listener: socket.socket) -> None:
        if self._closed:
            listener.close()
            return
        self._shut()
        self._listener = listener
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    def _shut(self) -> None:
        if self._accepting is None or self._listener is None:
            return
        self._accepting.cancel()
        asyncio.get_running_loop().remove_reader(self._listener)  # its descriptor may be reused at once
        self._listener.close()
        self._accepting = self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        async for sock, _ in accepted(listener):
            try:
                self._welcome(sock)
            except OSError:  # it has already disconnected
                sock.close()
            except Exception as error:  # one client must not end the listener
                log.exception("accepting a client failed", error=str(error))
                sock.close()
            await asyncio.sleep(PACE)
