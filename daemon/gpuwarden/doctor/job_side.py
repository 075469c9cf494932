"""What jobs need of this host: a socket that they reach, and a kernel through which nobody else is signalled in their stead."""

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

ANSWERS_WITHIN = 5.0
"""Seconds; a talk that is silent is ended by the daemon after 4."""
_ANSWER_MOST = 64 * 1024  # bytes
_ASK = b'{"verb": "status"}\n'


def job_socket(config: Config) -> Iterator[Row]:
    """It answers, or it could be made. Nothing is made here."""
    path = config.run.dir / NAME
    try:
        health = _status(path)
    except (FileNotFoundError, ConnectionRefusedError):
        yield _to_be_made(path)
    except TimeoutError:
        found = f"{path} has not answered within {ANSWERS_WITHIN:g} s"
        yield fail(
            "host", "job socket", found, "see whether the daemon is stopped or very busy: jobs leave files instead"
        )
    except (OSError, ValueError) as error:
        to_do = "mend the path of run.dir, or set another: jobs are not told, and cannot say that they have saved"
        yield fail("host", "job socket", f"{path}: {error}", to_do)
    else:
        yield _reached(path, health)


def _status(path: Path) -> str:
    """What the daemon says of this node. Raises OSError, ValueError."""
    with socket.socket(socket.AF_UNIX) as talk:
        talk.settimeout(ANSWERS_WITHIN)
        talk.connect(os.fspath(path))
        talk.sendall(_ASK)
        line = b""
        while not line.endswith(b"\n") and len(line) < _ANSWER_MOST:
            more = talk.recv(_ANSWER_MOST)
            if not more:
                break
            line += more
    said = json.loads(line)
    if not isinstance(said, dict) or said.get("ok") is not True or not isinstance(said.get("result"), dict):
        raise ValueError(f"it answers {line[:80]!r}")
    return str(said["result"].get("status", "unknown"))


def _reached(path: Path, health: str) -> Row:
    """Root passes every folder; the users of jobs do not."""
    if not path.parent.stat().st_mode & stat.S_IXOTH:
        found = f"{path} answers, but users of jobs may not pass {path.parent}"
        return warn("host", "job socket", found, f"chmod o+x {path.parent}")
    return ok("host", "job socket", f"{path} answers: {health}")


def _to_be_made(path: Path) -> Row:
    if os.path.lexists(path) and not stat.S_ISSOCK(path.lstat().st_mode):
        return fail("host", "job socket", f"{path} exists and is no socket", f"move {path} away")
    folder = existing(path)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return fail(
            "host", "job socket", f"cannot be made: this user may not write {folder}", "mend it, or set run.dir"
        )
    return ok("host", "job socket", f"{path} is made when the daemon starts")


def job_signals(_: Config) -> Iterator[Row]:
    """By a handle of the process: its number alone could be another's by the time of the signal."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        found = f"pidfd_open: {error.strerror}, on Linux {os.uname().release}: no process of this host is signalled"
        to_do = "use Linux 5.3 or later, and let the container's seccomp profile pass it; jobs still have the notice"
        yield warn("host", "job signals", found, to_do)
    else:
        yield ok("host", "job signals", "processes can be told by a handle of theirs (pidfd)")
