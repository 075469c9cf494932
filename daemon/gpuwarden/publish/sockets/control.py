"""The Unix socket for operator verbs. The peer's credentials, which the kernel recorded at the connection, decide on
the permission: root, the user of this daemon, and members of the configured group. The protocol is in unix_socket.py.
"""

from __future__ import annotations

import asyncio
import grp
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gpuwarden.base.log import get_logger
from gpuwarden.base.peer import Peer, peer_of
from gpuwarden.base.threads import detached
from gpuwarden.publish.sockets.unix_socket import (
    INTERNAL,
    NOT_ALLOWED,
    TRY_AGAIN,
    USAGE,
    LineConnection,
    SocketError,
    SocketFile,
    SocketUnavailable,
    VerbError,
    Verbs,
    failed,
)
from gpuwarden_collectors.facts import Stamp

log = get_logger()

__all__ = (
    "INTERNAL",
    "LINE_LIMIT",
    "NOT_ALLOWED",
    "TRY_AGAIN",
    "USAGE",
    "Control",
    "ControlError",
    "Verb",
    "VerbError",
)

LINE_LIMIT = 256 * 1024
"""Bytes: the results of 16 GPUs, each with the maximum report of a test (12 KiB)."""
RETRY = 5.0
"""Seconds between two attempts to create the socket or to find its group."""
GROUP_WITHIN = 1.0
"""Seconds for which the start waits for the group, since a directory server may not respond."""
NAME = "control.sock"
NEW_NAME = "control.new"

ControlError = SocketError
Verb = Callable[[dict[str, Any], Peer], Awaitable[Any]]


class Control:
    """The control socket. `deadline`: seconds each for a line to arrive, a verb to finish, and the response to be
    taken.

    If the socket cannot be created in its folder, `error` reports it and the daemon retries; meanwhile it serves only
    over TCP. If the group cannot be found, it retries too; meanwhile only root is served.
    """

    def __init__(
        self,
        run_dir: Path,
        verbs: Mapping[str, Verb],
        *,
        group: str | None = None,
        connections: int = 32,
        deadline: float = 4.0,
    ) -> None:
        self._file = SocketFile(run_dir / NAME, NEW_NAME, 0o660)
        self.path = self._file.path
        self._verbs = Verbs(verbs, log, deadline)
        self._group = group
        self._gid: int | None = None
        self._looking: asyncio.Future[int] | None = None
        self._seeking: asyncio.Task[None] | None = None
        self._group_error = ""
        self._connections = connections
        self._deadline = deadline
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._retrying: asyncio.Task[None] | None = None
        self._error = ""

    # --- start and stop

    async def start(self) -> None:
        """Listen, if possible. Replaces a socket that no process listens on. Raises ControlError if one does."""
        if self._group is not None and not await self._is_found(self._group, GROUP_WITHIN):
            log.error("group of the control socket not found: only root is served", error=self._group_error)
            self._seeking = asyncio.create_task(self._seek(self._group))
        try:
            await self._serve(self._made())
        except SocketUnavailable as error:
            self._error = str(error)
            log.error("control socket not available: served over TCP only", error=self._error)  # noqa: TRY400 - the message suffices
            self._retrying = asyncio.create_task(self._retry())

    def error(self, _: Stamp) -> str:
        """Return why operators cannot use the socket; "" if they can."""
        return "; ".join(filter(None, (self._error, self._group_error)))

    async def _is_found(self, group: str, within: float) -> bool:
        """Look the group up in a thread, as it may need a directory server. Return True if found `within` seconds."""
        if self._looking is None:
            self._looking = detached("group", lambda: grp.getgrnam(group).gr_gid)
        await asyncio.wait((self._looking,), timeout=within)
        why = f"it has not been found within {within:g} s"
        if self._looking.done():
            looking, self._looking = self._looking, None
            try:
                self._gid = looking.result()
            except (KeyError, OSError, RuntimeError):
                why = f"there is no group {group!r} on this host"
            else:
                self._group_error = ""
                return True
        self._group_error = f"control.group: {why}: only root can use {self.path} until then"
        return False

    async def _seek(self, group: str) -> None:
        is_found = False
        while not is_found:
            await asyncio.sleep(RETRY)
            is_found = await self._is_found(group, RETRY)
        log.info("group of the control socket found", group=group)
        self._give()

    def _give(self) -> None:
        """Set the group of the socket once both exist. Without permission for that, only root is served."""
        if self._server is None or self._gid is None:
            return
        try:
            os.chown(self.path, -1, self._gid, follow_symlinks=False)
        except OSError as error:
            self._group_error = (
                f"control.group: {self.path} cannot be given to {self._group}: {error.strerror}; only root can use it. In the profiles "
                f"observe and jobs the unit needs SupplementaryGroups={self._group}"
            )

    def _made(self) -> socket.socket:
        """Create the folder and the listening socket. Blocks. Raises SocketError."""
        folder = self.path.parent
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as error:
            raise SocketUnavailable(f"cannot make the folder {folder}: {error}; check the run directory") from error
        return self._file.make(self._connections)

    async def _serve(self, listener: socket.socket) -> None:
        self._server = await asyncio.start_unix_server(self._converse, sock=listener, limit=LINE_LIMIT)
        self._give()

    async def _retry(self) -> None:
        while self._server is None:
            await asyncio.sleep(RETRY)
            try:
                await self._serve(await detached("control socket", self._made))
            except (ControlError, RuntimeError) as error:
                self._error = str(error)
        self._error = ""
        log.info("control socket available", path=str(self.path))

    async def stop(self) -> None:
        for task in filter(None, (self._retrying, self._seeking)):
            task.cancel()
        if self._server is None:
            return
        self._server.close()
        self._server = None
        talks = list(self._talks)
        for connection in talks:
            connection.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        self._file.remove()

    # --- connections

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a stream callback is always run as a task
        self._talks.add(task)
        connection = LineConnection(reader, writer, log, deadline=self._deadline, limit=LINE_LIMIT)
        try:
            if len(self._talks) > self._connections:
                await connection.send(failed(f"more than {self._connections} clients at once; try again", TRY_AGAIN))
                return
            peer = peer_of(writer.get_extra_info("socket"))
            refusal = self._refusal(peer)
            while (line := await connection.line()) is not None:
                await connection.send(refusal or await self._verbs.respond(line, peer))
        except (OSError, TimeoutError):
            pass  # the peer is gone or does not read: there is no client to answer
        finally:
            self._talks.discard(task)
            connection.close()

    def _refusal(self, peer: Peer) -> dict[str, Any] | None:
        if peer.uid in (0, os.geteuid()) or (self._gid is not None and self._gid in peer.groups):
            return None
        group = f" and members of group {self._group}" if self._group else ""
        log.warning("control client refused", uid=peer.uid, pid=peer.pid)
        return failed(f"uid {peer.uid} may not do this: only root, uid {os.geteuid()}{group} may", NOT_ALLOWED)
