"""A listening Unix socket that anybody may connect to: made, kept where its clients look for it, and let in through one by one.

The file is looked after by a thread, the socket by the loop. Clients are let in a millisecond apart, so that each is answered
before many more are there: what comes at once waits in the kernel.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuwarden.base.background import BackgroundWriter
from gpuwarden.publish.sockets.unix_socket import SocketError, SocketFile
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

if TYPE_CHECKING:  # structlog is for gpuwarden.base.log to import, which keeps it small
    from structlog.typing import FilteringBoundLogger

PACE = 0.001
"""Seconds between two clients, and between two questions of one."""
_EXHAUSTED = 1.0  # seconds until the next try, when this process has no descriptor left for a client
_STALLED = 5.0


class Door:
    """`welcome` is called in the loop with each client; what it raises ends that client. `backlog`: how many may
    wait in the kernel. Seconds: `look_every` between two looks at the file, `deadline` for the file system.
    """

    def __init__(
        self,
        file: SocketFile,
        welcome: Callable[[socket.socket], None],
        log: FilteringBoundLogger,
        *,
        clock: Clock,
        backlog: int,
        look_every: float,
        deadline: float,
    ) -> None:
        self._file = file
        self._welcome = welcome
        self._log = log
        self._backlog = backlog
        self._look_every = look_every
        self._deadline = deadline
        self._files = BackgroundWriter(file.path.name, 1, on_error=self._failed, clock=lambda: clock().boottime)
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._error = f"{file.path} is not made yet"
        self._logged = False
        self._closed = False

    async def run(self) -> None:
        """For ever: looks whether the socket is there, and makes it anew if somebody removed it."""
        while True:
            await asyncio.sleep(self._look_every)
            await self.look()

    async def look(self) -> None:
        """One look. Raises nothing; `trouble` says what it came to."""
        loop = asyncio.get_running_loop()
        self._files.submit(lambda: self._make(loop))
        await self._files.flush(self._deadline)
        await asyncio.sleep(0)  # what the thread has left for the loop

    def trouble(self, now: Stamp) -> str:
        stalled = self._files.stalled_for(now.boottime)
        if stalled > _STALLED:
            return f"cannot look at {self._file.path}: no answer for {stalled:.0f} s; is its filesystem frozen?"
        return self._error

    async def close(self) -> None:
        self._closed = True
        self._shut()
        self._files.submit(self._file.remove)
        await self._files.flush(self._deadline)
        self._files.close(0.0)

    # --- in the thread

    def _make(self, loop: asyncio.AbstractEventLoop) -> None:
        """Raises SocketError, OSError."""
        if not self._file.ours():
            listener = self._file.make(self._backlog)
            try:
                loop.call_soon_threadsafe(self._open, listener)
            except RuntimeError:  # the loop has ended
                listener.close()
        if self._logged:
            self._log.info("socket can be reached again", path=str(self._file.path))
        self._error, self._logged = "", False

    def _failed(self, error: Exception) -> None:
        told = str(error) if isinstance(error, SocketError) else f"cannot look at {self._file.path}: {error}"
        if told != self._error:
            self._log.warning("socket cannot be reached", error=told)
        self._error, self._logged = told, True

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
        asyncio.get_running_loop().remove_reader(self._listener)  # its number may be another file's at once
        self._listener.close()
        self._accepting = self._listener = None

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_EXHAUSTED)
                continue
            try:
                self._welcome(sock)
            except OSError:  # it has left already
                sock.close()
            except Exception as error:  # noqa: BLE001 - one client must not be the last
                self._log.exception("client could not be let in", error=str(error))
                sock.close()
            await asyncio.sleep(PACE)
