"""Check of the job socket, to which jobs on this host must be able to connect."""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.doctor.host import existing
from gpuwarden.doctor.row import Row, fail, ok, warn
from gpuwarden.publish.sockets.jobs import NAME

RESPONSE_WITHIN = 5.0
"""Seconds; the daemon closes an idle connection after 4."""
_RESPONSE_MOST = 64 * 1024  # bytes
_REQUEST = b'{"verb": "status"}\n'


def job_socket(config: Config) -> Iterator[Row]:
    """Check that the job socket answers, or that the daemon could create it. This check creates nothing."""
    path = config.run.dir / NAME
    try:
        health = _status(path)
    except (FileNotFoundError, ConnectionRefusedError):
        yield _to_be_made(path)
    except TimeoutError:
        state = f"{path} has not responded within {RESPONSE_WITHIN:g} s"
        yield fail(
            "job socket", state, "check whether the daemon is stopped or very busy; jobs can write files instead"
        )
    except (OSError, ValueError) as error:
        to_do = "correct run.dir, or set another folder: until then jobs get no notice and cannot acknowledge a save"
        yield fail("job socket", f"{path}: {error}", to_do)
    else:
        yield _reached(path, health)


def _status(path: Path) -> str:
    """Return the node's status, requested from the daemon through the job socket. Raises OSError, ValueError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(RESPONSE_WITHIN)
        connection.connect(os.fspath(path))
        connection.sendall(_REQUEST)
        line = b""
        while not line.endswith(b"\n") and len(line) < _RESPONSE_MOST:
            more = connection.recv(_RESPONSE_MOST)
            if not more:
                break
            line += more
    response = json.loads(line)
    if not isinstance(response, dict) or response.get("ok") is not True or not isinstance(response.get("result"), dict):
        raise ValueError(f"unexpected answer {line[:80]!r}")
    return str(response["result"].get("status", "unknown"))


def _reached(path: Path, health: str) -> Row:
    """Check that users of jobs may enter the folder of the socket, which a connection by root does not prove."""
    if not path.parent.stat().st_mode & stat.S_IXOTH:
        state = f"{path} answers, but users of jobs may not enter {path.parent}"
        return warn("job socket", state, f"chmod o+x {path.parent}")
    return ok("job socket", f"{path} answers: {health}")


def _to_be_made(path: Path) -> Row:
    if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
        return fail("job socket", f"{path} exists and is not a socket", f"move {path} away")
    folder = existing(path)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return fail(
            "job socket", f"cannot be created: this user may not write to {folder}", "correct its mode, or set run.dir"
        )
    return ok("job socket", f"{path} is created when the daemon starts")
