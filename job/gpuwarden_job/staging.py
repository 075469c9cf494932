"""Where a checkpoint is while it is written, and how the remains of a killed process are distinguished from what is being written.

The folder's name starts with a dot and ends in a token of that one attempt, so that no two attempts meet and no reader
takes it for a checkpoint. `owner` inside names the writer. A process of this boot and this PID namespace is checked by
its pid and start time; any other counts as gone after silence: nothing in the folder was touched for a quarter of an hour,
by the clock of the file system.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from gpuwarden_job import durable

PREFIX = ".saving-"
_DOOMED = ".removing-"
_OWNER = "owner"
_OWNER_MOST = 4096  # bytes
_UNTOUCHED_FOR = 15 * 60.0  # s


def folder_of(root: Path, token: int) -> Path:
    return root / f"{PREFIX}{token:016x}"


def claim(folder: Path) -> None:
    """Make the folder, and note that this process owns it. Raises OSError if it exists, or there is no room; then nothing is left of it."""
    folder.mkdir()
    try:
        durable.replace(folder / _OWNER, json.dumps(_self()).encode())
    except BaseException:
        discard(folder)
        raise


def discard(folder: Path) -> None:
    """Removes the folder from under its name at once, so that no process publishes or reads half of it.

    Raises nothing: what is left is removed later.
    """
    doomed = folder.with_name(f"{_DOOMED}{folder.name.lstrip('.')}")
    with suppress(OSError):
        folder.rename(doomed)
    for path in (doomed, folder):
        shutil.rmtree(path, ignore_errors=True)


def sweep(root: Path) -> None:
    """Discards what ended processes left. Takes no room on the disk."""
    with suppress(OSError):
        os.utime(root)
        now = root.stat().st_mtime
        for path in root.iterdir():
            if path.name.startswith(_DOOMED):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(PREFIX) and not _alive(path, now):
                discard(path)


def _alive(folder: Path, now: float) -> bool:
    try:
        with durable.opened(folder / _OWNER) as file:
            owner = json.loads(file.read(_OWNER_MOST))
    except (OSError, ValueError, RecursionError):
        owner = None
    mine = _self()
    if isinstance(owner, dict) and mine["boot"] and all(owner.get(key) == mine[key] for key in ("boot", "namespace")):
        pid = owner.get("pid")
        return isinstance(pid, int) and owner.get("started") == _started(pid)
    with suppress(OSError):
        newest = max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
        return now - newest < _UNTOUCHED_FOR
    return True


def _self() -> dict[str, object]:
    return {"boot": boot_id(), "namespace": _namespace(), "pid": os.getpid(), "started": _started(os.getpid())}


def boot_id() -> str:
    """Returns the id of this boot, or "" where none can be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Start of a process in clock ticks since the boot; None if there is no such process."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
        return after_name.split()[19].decode()
    except (OSError, IndexError):
        return None
