"""Calls the daemon through its Unix socket: one line of JSON as request, one as response, within a deadline."""

from __future__ import annotations

import argparse
import errno
import json
import os
import socket
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuwarden.base.paths import run_dir, simulation_home
from gpuwarden.base.peer import peer_of
from gpuwarden.cli.parser import NOT_ALLOWED, TRY_AGAIN, UNAVAILABLE, CommandError
from gpuwarden.cli.text import clean

CONTROL, JOB = "control.sock", "job.sock"
"""The sockets: for operators, and for jobs."""
DEADLINE = 5.0  # seconds, for the whole call
RESPONSE_MAX = 16 << 20  # bytes


class NoDaemon(CommandError):  # noqa: N818 - a state of the host
    """No daemon listens at the path."""


class NoAnswer(CommandError):  # noqa: N818 - a state of the daemon
    """The request was sent, and its outcome is unknown."""


class Daemon:
    """The daemon of `directory`. Errors mention a daemon with simulated GPUs in `simulated` if only that one runs."""

    def __init__(self, directory: Path, simulated: Path, *, deadline: float = DEADLINE, socket: str = CONTROL) -> None:
        self.path = directory / socket
        self._simulated = simulated / socket
        self._deadline = deadline

    @classmethod
    def chosen(
        cls,
        folder: Path | None,
        environment: Mapping[str, str] = os.environ,
        *,
        deadline: float = DEADLINE,
        socket: str = CONTROL,
    ) -> Daemon:
        """The daemon named by the command line or the environment, otherwise that of the real GPUs."""
        simulated = simulation_home(environment) / "run"
        return cls(folder or run_dir(environment), simulated, deadline=deadline, socket=socket)

    def call(self, verb: str, **arguments: object) -> Any:
        """Call a verb. Raises NoDaemon, or CommandError if the daemon refuses or does not respond."""
        request = json.dumps({"verb": verb, **arguments}).encode() + b"\n"
        until = time.monotonic() + self._deadline
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(self._deadline)
                _connect(connection, self.path)
                connection.sendall(request)
                line = self._line(connection, until)
        except (FileNotFoundError, ConnectionRefusedError):
            raise NoDaemon(
                f"no daemon answers at {self.path}{self._elsewhere() or self._unwritable()}", UNAVAILABLE
            ) from None
        except PermissionError:
            raise CommandError(
                f"no permission to connect to the daemon at {self.path}: be root or a member of its [control] group",
                NOT_ALLOWED,
            ) from None
        except TimeoutError:
            raise NoAnswer(
                f"the daemon at {self.path} has not responded within {self._deadline:g} s: is it stopped or very busy?",
                TRY_AGAIN,
            ) from None
        except OSError as error:
            raise CommandError(f"cannot reach the daemon at {self.path}: {error}", UNAVAILABLE) from error
        return self._result(line)

    def peer(self) -> tuple[int, int]:
        """PID and uid of the listening process, from the kernel; (0, 0) if none listens."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(self._deadline)
            try:
                _connect(connection, self.path)
            except OSError:
                return 0, 0
            peer = peer_of(connection)
            return peer.pid, peer.uid

    def _elsewhere(self) -> str:
        if not listens(self._simulated):
            return ""
        return f"; one with simulated GPUs answers elsewhere: add --run-dir {self._simulated.parent}"

    def _unwritable(self) -> str:
        """Describe a folder in which the daemon, which may run, cannot create its socket."""
        folder = self.path.parent
        try:
            read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
        except OSError:
            return ""
        return (
            f"; {folder} is read-only: a daemon may serve over TCP alone (curl -s localhost:9839/v1/status)"
            if read_only
            else ""
        )

    def _line(self, connection: socket.socket, until: float) -> bytes:
        received = bytearray()
        while not received.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            connection.settimeout(left)
            chunk = connection.recv(1 << 16)
            if not chunk:
                raise NoAnswer(f"the daemon at {self.path} closed the connection before it responded", TRY_AGAIN)
            received += chunk
            if len(received) > RESPONSE_MAX:
                raise self._nonsense(f"more than {RESPONSE_MAX} bytes")
        return bytes(received)

    def _result(self, line: bytes) -> Any:
        try:
            response = json.loads(line)
        except (ValueError, RecursionError):
            raise self._nonsense("not JSON") from None
        match response:
            case {"ok": True, "result": result}:
                return result
            case {"ok": False, "error": str(error), "code": int(code)} if 0 < code < 256:
                raise CommandError(error, code)
        raise self._nonsense("neither a result nor an error")

    def _nonsense(self, fault: str) -> CommandError:
        return CommandError(
            f"the process that answers at {self.path} is not gpuwarden of this version: {fault}", UNAVAILABLE
        )


def order(options: argparse.Namespace, verb: str, **arguments: object) -> int:
    """Call a verb and print the response; return the exit code. Raises as `Daemon.call`."""
    try:
        response = Daemon.chosen(options.run_dir).call(verb, **arguments)
    except NoAnswer as error:  # a stopped daemon reads the request when it continues
        raise NoAnswer(
            f"{error}\n  The daemon may still carry this out: see gpuwarden status before trying again", error.code
        ) from error
    lines = response.splitlines() if isinstance(response, str) else [response]
    print("\n".join(map(clean, lines)))
    return 0


def listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        try:
            _connect(connection, path)
        except OSError:
            return False
        return True


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect, but refuse a symbolic link: the daemon's user may own the folder, and must not redirect root."""
    file = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISLNK(os.fstat(file).st_mode):
            raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
        connection.connect(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
