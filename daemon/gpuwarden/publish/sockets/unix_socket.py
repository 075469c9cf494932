"""Common parts of the daemon's Unix sockets: the file, the verbs, and one JSON object per line in and out.

    {"verb": "status", …arguments}  ->  {"ok": true, "result": …}
                                        {"ok": false, "error": "…", "code": 64}

Codes are those of sysexits.h: 64 bad usage, 70 internal error, 75 try again, 77 not allowed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from gpuwarden.base.peer import has_ended, peer_of

if TYPE_CHECKING:  # structlog is imported only by gpuwarden.base.log, which keeps it small
    from structlog.typing import FilteringBoundLogger

USAGE, INTERNAL, TRY_AGAIN, NOT_ALLOWED = 64, 70, 75, 77

Response = dict[str, Any]
Who = TypeVar("Who")


class SocketError(Exception):
    """The socket cannot be set up because of the configuration or another process. The message states the remedy."""


class VerbError(Exception):
    """An error for the caller of a verb. `code` becomes the exit code of the command line."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


class SocketUnavailable(SocketError):  # noqa: N818 - a state of the folder
    """The socket cannot be created in its folder (a read-only one, for example); a later attempt may succeed."""


class SocketFile:
    """The file of a listening socket. Its calls block only as long as the file system does.

    A link beside it, with the suffix `.pid`, names the process that listens, which the kernel shows only to clients that it
    lets connect. `new`: another name in the same folder, which no client uses. `passed`: a socket at `path` on which
    systemd listens, also while the daemon does not run. It is used while its file exists; systemd removes the file.
    """

    def __init__(self, path: Path, new: str, mode: int, passed: socket.socket | None = None) -> None:
        self.path = path
        self._passed = passed
        self._new = path.with_name(new)
        self._pid = path.with_suffix(".pid")
        self._mode = mode
        self._inode = 0
        self._systemds = False

    def make(self, backlog: int) -> socket.socket:
        """Return a listening socket. Replaces one that no process listens on. Raises SocketError, or SocketUnavailable
        if a retry may help.
        """
        passed, self._passed = self._passed, None
        try:
            if passed is not None and self._is_at_path(passed):
                return passed
            self._refuse_if_answered()
            return self._bind(backlog)
        except OSError as error:
            raise SocketUnavailable(f"cannot make the socket {self.path}: {error}; check the run directory") from error

    def is_current(self) -> bool:
        """Return True if the file at the path is this socket. Raises OSError."""
        try:
            return self.path.lstat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Remove the socket file, unless it is that of a daemon started later."""
        with contextlib.suppress(OSError):
            if self.is_current() and not self._systemds:
                self.path.unlink()
                self._pid.unlink(missing_ok=True)

    def _is_at_path(self, passed: socket.socket) -> bool:
        """Return True if clients that connect to `path` reach this socket. Raises OSError."""
        if passed.getsockname() != os.fspath(self.path) or not self.path.is_socket():
            passed.close()
            return False
        self._inode, self._systemds = self.path.lstat().st_ino, True
        return True

    def _refuse_if_answered(self) -> None:
        """Raise SocketError if another daemon listens here. One that has ended listens for as long as a thread of it sleeps
        in the kernel, for example at a frozen disk; it never answers, and clients of a new socket do not reach it.
        """
        try:
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise SocketError(f"{self.path} exists and is not a socket; move it away")
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as client:
                client.connect(os.fspath(self.path))
                if has_ended(peer_of(client).pid):
                    return
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError as error:
            if error.errno != errno.EAGAIN:  # EAGAIN: its backlog is full
                raise SocketUnavailable(f"cannot read {self.path}: {error}; check the run directory") from error
            if has_ended(self._recorded_pid()):
                return
        raise SocketError(f"another gpuwarden answers on {self.path}; stop it, or give this one another --run-dir")

    def _bind(self, backlog: int) -> socket.socket:
        """Bind under another name first, so that no client connects before the mode is set. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._new.unlink(missing_ok=True)
            self._record_pid()
            listener.bind(os.fspath(self._new))
            self._new.chmod(self._mode)
            listener.listen(backlog)
            self._inode, self._systemds = self._new.stat().st_ino, False
            self._new.replace(self.path)
        except OSError:
            listener.close()
            raise
        return listener

    def _record_pid(self) -> None:
        """Replace the link that names this process. Without one, a full backlog counts as that of a running daemon."""
        with contextlib.suppress(OSError):
            self._new.symlink_to(str(os.getpid()))
            self._new.replace(self._pid)

    def _recorded_pid(self) -> int:
        """Return the process that listens, as it recorded; 0 if unknown."""
        try:
            return int(self._pid.readlink().name)
        except (OSError, ValueError):
            return 0


class Verbs(Generic[Who]):
    """The verbs of a socket. The time limit of a verb is `deadline` seconds, or its entry in `patience`."""

    def __init__(
        self,
        verbs: Mapping[str, Callable[[dict[str, Any], Who], Awaitable[Any]]],
        log: FilteringBoundLogger,
        deadline: float,
        patience: Mapping[str, float] | None = None,
    ) -> None:
        self._verbs = verbs
        self._log = log
        self._deadline = deadline
        self._patience = patience or {}

    async def respond(self, line: bytes, who: Who) -> Response:
        """Return the response to a line. A failed verb has a response too; only a cancellation is raised."""
        limit = self._deadline
        try:
            name, arguments = self._parse(line)
            limit = self._patience.get(name, limit)
            async with asyncio.timeout(limit):
                return {"ok": True, "result": await self._verbs[name](arguments, who)}
        except VerbError as error:
            return failed(str(error), error.code)
        except TimeoutError:
            return failed(f"not done within {limit:g} s; it may still be done: check before trying again", TRY_AGAIN)
        except Exception as error:  # noqa: BLE001 - a fault in one verb ends neither the connection nor the daemon
            self._log.exception("verb failed", error=str(error))
            return failed("internal error; the daemon's log has it", INTERNAL)

    def _parse(self, line: bytes) -> tuple[str, dict[str, Any]]:
        try:
            request = json.loads(line, parse_constant=_no_number)
        except (ValueError, RecursionError):
            raise VerbError("expected one JSON object on one line") from None
        name = request.pop("verb", None) if isinstance(request, dict) else None
        if not isinstance(name, str):
            raise VerbError('expected {"verb": "…", …}')
        if name not in self._verbs:
            raise VerbError(f"unknown verb {name[:40]!r}; there are {', '.join(sorted(self._verbs))}")
        return name, request


class LineConnection:
    """A connection that carries lines.

    `deadline`: seconds for a line to arrive, and for a response to be taken. `limit`: most bytes of a line.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        log: FilteringBoundLogger,
        *,
        deadline: float,
        limit: int,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._log = log
        self._deadline = deadline
        self._limit = limit

    async def line(self) -> bytes | None:
        """Return the next line; None at the end of input or if it exceeds `limit`. Raises OSError, TimeoutError."""
        try:
            async with asyncio.timeout(self._deadline):
                line = await self._reader.readline()
        except ValueError:
            await self.send(failed(f"a line has at most {self._limit} bytes", USAGE))
            return None
        return line if line.endswith(b"\n") else None

    async def send(self, response: Response) -> None:
        """Send the response as a line. Raises OSError if the peer is gone, TimeoutError if it does not read in time."""
        try:
            line = json.dumps(response, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            self._log.exception("response is not valid JSON", error=str(error))
            line = json.dumps(failed("internal error; the daemon's log has it", INTERNAL)).encode()
        self._writer.write(line + b"\n")
        async with asyncio.timeout(self._deadline):
            await self._writer.drain()

    def close(self) -> None:
        if self._writer.transport.get_write_buffer_size():
            self._writer.transport.abort()
        else:
            self._writer.close()


def failed(error: str, code: int) -> Response:
    return {"ok": False, "error": error, "code": code}


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
