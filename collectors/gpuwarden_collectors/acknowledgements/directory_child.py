"""The child that looks at a directory of checkpoints, under the job's user: `python -m …directory_child VARIABLE`, the
question in that variable of its environment, one line of JSON as its answer.

It looks through the root directory of one of the job's processes, which the kernel allows to its user as long as that
process has no more capabilities than the child, and that is none: a container's root is not looked through.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuwarden_collectors.host_files import read_bytes
from gpuwarden_collectors.process_stat import process_stat

_DEPTH = 4  # root/step/shard/file: what is known of frameworks fits
_ENTRIES = 20_000
_STALE = 15 * 60.0  # seconds after which what marks a save was left by a killed one, as on the job side
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38  # linux/prctl.h
_CAPABILITY_VERSION_3 = 0x20080522  # linux/capability.h

MARKERS = re.compile(
    r"incomplete"  # Hugging Face: checkpoint-is-incomplete.txt
    r"|orbax-checkpoint-tmp"
    r"|^\.(saving|removing)-"  # our own library
    r"|^[._]?tmp|\.(tmp|temp)(?![a-z])|\.(part|partial|writing|saving|inprogress)$",
    re.IGNORECASE,
)
"""Names of what is half written."""
OTHERS = re.compile(r"\.(log|out|err|lock|csv|jsonl|pid)$|tfevents", re.IGNORECASE)
"""Names of what is written beside a checkpoint, which shows nothing of it."""


@dataclass(slots=True)
class Sight:
    newest: float = 0.0
    marker: str = ""
    entries: int = 0
    digest: Any = field(default_factory=hashlib.sha256)


def look(folder: int, since: float, until: float) -> Sight:
    """All below the open `folder`, the newest first: what does not fit is oldest. Raises OSError. `until`: monotonic seconds."""
    sight = Sight()
    for name, about in _walk(folder, 1, until, sight):
        sight.digest.update(f"{name!r} {about.st_ino} {about.st_mtime_ns} {about.st_size}\n".encode("utf-8", "replace"))
        if MARKERS.search(name):
            if about.st_mtime > since - _STALE:
                sight.marker = name
        elif stat.S_ISREG(about.st_mode) and about.st_size > 0:
            sight.newest = max(sight.newest, about.st_mtime)
    return sight


def _walk(folder: int, depth: int, until: float, sight: Sight) -> Iterator[tuple[str, os.stat_result]]:
    """Links are not followed. Raises OSError."""
    found: list[tuple[str, os.stat_result]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if sight.entries >= _ENTRIES or time.monotonic() > until:
                break
            sight.entries += 1
            try:
                found.append((entry.name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:
                continue
    found.sort(key=lambda one: -one[1].st_mtime)
    yield from ((name, about) for name, about in found if not OTHERS.search(name))
    for name, about in found:
        if stat.S_ISDIR(about.st_mode) and depth < _DEPTH:
            yield from _below(folder, name, depth, until, sight)


def _below(folder: int, name: str, depth: int, until: float, sight: Sight) -> Iterator[tuple[str, os.stat_result]]:
    try:
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError:  # removed meanwhile, or not for this user
        return
    try:
        yield from _walk(inner, depth + 1, until, sight)
    finally:
        os.close(inner)


def main() -> None:
    question = json.loads(os.environ.pop(sys.argv[1]))
    until = time.monotonic() + question["seconds"]
    answer: dict[str, object] = {"trouble": "", "newest": 0.0, "imprint": "", "marker": ""}
    try:
        folder = _opened(question)
        sight = look(folder, question["since"], until)
        answer |= {"newest": sight.newest, "imprint": sight.digest.hexdigest(), "marker": sight.marker}
    except OSError as error:
        answer["trouble"] = f"{question['directory']}: {error.strerror or error}"
    sys.stdout.write(json.dumps(answer))


def _opened(question: dict[str, Any]) -> int:
    """The directory, opened as the job's user. Raises OSError."""
    pid, uid = question["pid"], question["uid"]
    process = os.open(f"/proc/{pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # Read after the folder was opened: from then on that is one process, or none.
    about = process_stat("/proc", pid)
    status = read_bytes(f"/proc/{pid}/status", 1 << 16).decode("utf-8", "replace").splitlines()
    fields = dict(line.split(":", 1) for line in status if ":" in line)
    if about is None or about.started != question["started"]:
        raise OSError(0, f"process {pid}, which has named it, has ended")
    if set(fields["Uid"].split()) != {str(uid)}:
        raise OSError(0, f"process {pid}, which has named it, is not user {uid}'s alone")
    become(uid, int(fields["Gid"].split()[1]), [int(group) for group in fields["Groups"].split()])
    path = "root" + os.path.normpath(question["directory"])
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)


def become(uid: int, gid: int, groups: list[int]) -> None:
    """Be this user for good, with no capabilities, and out of reach of its debuggers. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if set(os.getgroups()) != set(groups):
        os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    # Another user's are gone by now; those of user 0 are not.
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(header, nothing) != 0:
        raise OSError(ctypes.get_errno(), "capabilities cannot be given up")
    if os.getresuid() != (uid, uid, uid):
        raise OSError(0, f"this process cannot become user {uid}")


if __name__ == "__main__":
    main()
