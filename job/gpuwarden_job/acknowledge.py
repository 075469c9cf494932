"""Acknowledges a notice after the job has saved, through the daemon's socket or else a file. Optional; ignores errors.

Without an acknowledgement the daemon waits for the job's end or for the deadline. In a job of several nodes it covers
only its own rank, unless `all_ranks` is set, which means that every rank is done. A daemon that does not know the rank
yet, or has too many clients, answers "try again", and the rank retries.
"""

from __future__ import annotations

import json
import os
import random
import re
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_PATIENCE = 3.0  # s, for all attempts; the daemon takes at most 2 to identify the process
_PAUSES = (0.1, 0.2, 0.4, 0.8)  # s between attempts, varied by half: all ranks of a node connect at once
_LIMIT = 4096  # bytes of an answer
_TRY_AGAIN = 75  # EX_TEMPFAIL
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_JOB_VARIABLES = ("GPUWARDEN_JOB", "SLURM_JOB_ID", "DSTACK_JOB_ID")
_PARTS = 128  # most components of a heterogeneous job in Slurm
_NUMBER = re.compile(r"[0-9]{1,9}")


def job_name(environ: Mapping[str, str]) -> str | None:
    """Returns the daemon's name of this job from the environment, or None. It is safe as the name of a folder."""
    named = (environ.get(name, "") for name in _JOB_VARIABLES)
    return next((name for name in named if _JOB.fullmatch(name)), None)


def spans_job(environ: Mapping[str, str], size: int) -> bool:
    """True if `size` agreeing ranks are all ranks of the job, according to the environment.

    A Slurm step may have fewer nodes than its job, while other steps train something else.
    """
    parts = min(_number(environ, "SLURM_HET_SIZE"), _PARTS)
    nodes = sum(_number(environ, f"SLURM_JOB_NUM_NODES_HET_GROUP_{part}") for part in range(parts))
    nodes = nodes or _number(environ, "SLURM_JOB_NUM_NODES") or _number(environ, "DSTACK_NODES_NUM")
    ranks = max(_number(environ, name) for name in ("SLURM_STEP_NUM_TASKS", "WORLD_SIZE"))
    return size > 1 and size >= max(nodes, ranks) and _number(environ, "SLURM_STEP_NUM_NODES") in (0, nodes)


def _number(environ: Mapping[str, str], name: str) -> int:
    """Returns the variable's number, or 0 where it is not set."""
    text = environ.get(name, "").strip()
    return int(text) if _NUMBER.fullmatch(text) else 0


def acknowledge(
    run_dir: Path, job: str | None, notice: str, rank: int, *, saved: bool, step: int | None, all_ranks: bool = False
) -> bool:
    """Returns True if the daemon accepted the acknowledgement, or it was written to the file.

    Takes a few milliseconds, at most three seconds. Raises nothing.
    """
    document: dict[str, object] = {"notice": notice, "rank": rank, "saved": saved, "step": step}
    if all_ranks:
        document["all_ranks"] = True
    with suppress(Exception):
        if _by_socket(run_dir / "job.sock", {"verb": "acknowledge", **document}):
            return True
    with suppress(Exception):
        return job is not None and _by_file(run_dir / "ack" / job, rank, document)
    return False


def _by_socket(path: Path, message: Mapping[str, object]) -> bool:
    """Return True if the daemon accepted the message. Raises OSError or ValueError without a valid answer."""
    until = time.monotonic() + _PATIENCE
    chance = random.SystemRandom()  # not the module's generator, whose sequence belongs to the training
    for pause in _PAUSES:
        answer = _answer(path, message, until)
        if answer.get("code") != _TRY_AGAIN:
            return answer.get("ok") is True
        time.sleep(max(0.0, min(pause * chance.uniform(0.5, 1.5), until - time.monotonic())))
    return _answer(path, message, until).get("ok") is True


def _answer(path: Path, message: Mapping[str, object], until: float) -> Mapping[str, Any]:
    """Return the daemon's answer. Raises OSError if there is none by `until`, ValueError if it is not valid."""
    answer = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as talk:
        talk.settimeout(max(until - time.monotonic(), 0.001))
        # The listen queue is full, or the daemon closed this connection to make room for others.
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            talk.connect(str(path))
            talk.sendall(json.dumps(message).encode() + b"\n")
            while b"\n" not in answer and len(answer) < _LIMIT:
                talk.settimeout(max(until - time.monotonic(), 0.001))
                if not (more := talk.recv(_LIMIT)):
                    break
                answer += more
    if not answer:
        return {"code": _TRY_AGAIN}
    parsed = json.loads(answer.partition(b"\n")[0])
    return parsed if isinstance(parsed, dict) else {}


def _by_file(folder: Path, rank: int, document: Mapping[str, object]) -> bool:
    """Writes the acknowledgement to a file, without fsync, since it only matters until a reboot. Raises OSError."""
    with suppress(FileExistsError, FileNotFoundError):
        folder.mkdir(mode=0o755)
    temporary = folder / f".{rank}.{os.getpid()}"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(document, file)
    temporary.replace(folder / f"{rank}.json")
    return True
