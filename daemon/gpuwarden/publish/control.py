"""The Unix socket for operator verbs: one JSON object a line in, one a line out.

    {"verb": "status", …arguments}  ->  {"ok": true, "result": …}
                                        {"ok": false, "error": "…", "code": 64}

Codes are those of sysexits.h: 64 bad usage, 70 internal error, 75 try again, 77 not allowed. Who may talk is asked of
the kernel, which knows the credentials with which the peer connected: root, the user of this daemon, and members of
the configured group.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import json
import os
import socket
import stat
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # structlog is for gpuwarden.log to import, which keeps it small
    from structlog.typing import FilteringBoundLogger

USAGE, INTERNAL, TRY_AGAIN, NOT_ALLOWED = 64, 70, 75, 77
LINE_LIMIT = 64 * 1024
NAME = "control.sock"
NEW_NAME = "control.new"
SO_PEERGROUPS = 59  # asm-generic/socket.h; Linux 4.13 and later
PEER = struct.Struct("=iII")  # struct ucred: pid, uid, gid


class ControlError(Exception):
    """The socket cannot be set up: configuration or another process is at fault. The message says what to do."""


class VerbError(Exception):
    """What a verb tells its caller. `code` becomes the exit code of the command line."""

    def __init__(self, message: str, code: int = USAGE) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end, as of its connect. `groups`: primary and supplementary."""

    pid: int
    uid: int
    groups: frozenset[int]


Verb = Callable[[dict[str, Any], Peer], Awaitable[Any]]


def peer_of(sock: socket.socket) -> Peer:
    pid, uid, gid = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
    except OSError:  # more than 256 groups, or an older kernel: the primary one must do
        raw = b""
    return Peer(pid, uid, frozenset((gid, *struct.unpack(f"={len(raw) // 4}I", raw))))


class Control:
    """`deadline` in seconds: for a line to arrive, for a verb to be done, for the answer to be taken."""

    def __init__(
        self,
        run_dir: Path,
        verbs: Mapping[str, Verb],
        log: FilteringBoundLogger,
        *,
        group: str | None = None,
        connections: int = 32,
        deadline: float = 4.0,
    ) -> None:
        self.path = run_dir / NAME
        self._new = run_dir / NEW_NAME
        self._verbs = verbs
        self._log = log
        self._group = group
        self._gid: int | None = None
        self._connections = connections
        self._deadline = deadline
        self._server: asyncio.Server | None = None
        self._talks: set[asyncio.Task[None]] = set()
        self._inode = 0

    # --- life

    async def start(self) -> None:
        """Listen. A socket that nobody answers on is replaced. Raises ControlError."""
        self._gid = _gid_of(self._group)
        await self._make_sure_nobody_answers()
        try:
            listener = self._bind()
        except OSError as error:
            raise ControlError(
                f"cannot make the control socket {self.path}: {error}; check the run directory"
            ) from error
        self._server = await asyncio.start_unix_server(self._talk, sock=listener, limit=LINE_LIMIT)

    async def _make_sure_nobody_answers(self) -> None:
        try:
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise ControlError(f"{self.path} exists and is no socket; move it away")
            async with asyncio.timeout(self._deadline):
                _, writer = await asyncio.open_unix_connection(self.path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except TimeoutError:
            pass
        except OSError as error:
            if error.errno != errno.EAGAIN:  # EAGAIN: its backlog is full, so somebody is there
                raise ControlError(f"cannot look at {self.path}: {error}; check the run directory") from error
        else:
            writer.close()
        raise ControlError(f"another gpuwarden answers on {self.path}; stop it, or give this one another --run-dir")

    def _bind(self) -> socket.socket:
        """Under another name first, so that nobody can connect before mode and owner are right."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            self._new.unlink(missing_ok=True)
            listener.bind(str(self._new))
            self._new.chmod(0o660)
            if self._gid is not None:
                os.chown(self._new, -1, self._gid)
            listener.listen(self._connections)
            self._inode = self._new.stat().st_ino
            self._new.replace(self.path)
        except OSError:
            listener.close()
            raise
        return listener

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        self._server = None
        talks = list(self._talks)
        for talk in talks:
            talk.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        with contextlib.suppress(OSError):
            if self.path.lstat().st_ino == self._inode:
                self.path.unlink()

    # --- talk

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.current_task()
        assert talk is not None  # noqa: S101 - a stream callback is always run as a task
        self._talks.add(talk)
        try:
            if len(self._talks) > self._connections:
                crowded = f"more than {self._connections} clients at once; try again"
                await self._send(writer, _failed(crowded, TRY_AGAIN))
                return
            peer = peer_of(writer.get_extra_info("socket"))
            refusal = self._refusal(peer)
            while (line := await self._line(reader, writer)) is not None:
                await self._send(writer, refusal or await self._answer(line, peer))
        except (OSError, TimeoutError):
            pass  # the peer went away or takes nothing: there is nobody to tell
        finally:
            self._talks.discard(talk)
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            else:
                writer.close()

    def _refusal(self, peer: Peer) -> dict[str, Any] | None:
        if peer.uid in (0, os.geteuid()) or (self._gid is not None and self._gid in peer.groups):
            return None
        group = f" and members of group {self._group}" if self._group else ""
        self._log.warning("control client refused", uid=peer.uid, pid=peer.pid)
        return _failed(f"uid {peer.uid} may not do this: only root, uid {os.geteuid()}{group} may", NOT_ALLOWED)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """The next line; None once there is no more, or it is too long or too late to be one."""
        try:
            async with asyncio.timeout(self._deadline):
                line = await reader.readline()
        except ValueError:
            await self._send(writer, _failed(f"a line has at most {LINE_LIMIT} bytes", USAGE))
            return None
        return line if line.endswith(b"\n") else None

    async def _answer(self, line: bytes, peer: Peer) -> dict[str, Any]:
        try:
            verb, arguments = self._parse(line)
            async with asyncio.timeout(self._deadline):
                return {"ok": True, "result": await verb(arguments, peer)}
        except VerbError as error:
            return _failed(str(error), error.code)
        except TimeoutError:
            return _failed(
                f"not done within {self._deadline:g} s; it may still happen: look before trying again", TRY_AGAIN
            )
        except Exception as error:  # noqa: BLE001 - a fault in one verb ends neither the talk nor the daemon
            self._log.exception("verb failed", error=str(error))
            return _failed("internal error; the daemon's log has it", INTERNAL)

    def _parse(self, line: bytes) -> tuple[Verb, dict[str, Any]]:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            raise VerbError("expected one JSON object on one line") from None
        name = request.pop("verb", None) if isinstance(request, dict) else None
        if not isinstance(name, str):
            raise VerbError('expected {"verb": "…", …}')
        if name not in self._verbs:
            raise VerbError(f"unknown verb {name[:40]!r}; there are {', '.join(sorted(self._verbs))}")
        return self._verbs[name], request

    async def _send(self, writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
        try:
            line = json.dumps(answer, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            self._log.exception("answer is no JSON", error=str(error))
            line = json.dumps(_failed("internal error; the daemon's log has it", INTERNAL)).encode()
        writer.write(line + b"\n")
        async with asyncio.timeout(self._deadline):
            await writer.drain()


def _failed(error: str, code: int) -> dict[str, Any]:
    return {"ok": False, "error": error, "code": code}


def _gid_of(group: str | None) -> int | None:
    if group is None:
        return None
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ControlError(f"there is no group {group!r} on this host, which is to use the control socket") from None
