"""The folder of a checkpoint while it is written, and the removal of such folders left by killed processes.

The folder's name starts with a dot and ends with the token of one attempt, so attempts do not collide and readers do
not treat it as a checkpoint. `owner` in it identifies the writer. A writer in this boot and PID namespace is checked by
PID and start time; any other counts as dead if nothing in the folder changed for a quarter of an hour, by the file
system's clock.
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
    """Create the folder and record this process as its owner. Raises OSError if it exists or the disk is full."""
    folder.mkdir()
    try:
        durable.replace(folder / _OWNER, json.dumps(_self()).encode())
    except BaseException:
        discard(folder)
        raise


def discard(folder: Path) -> None:
    """Renames the folder, so that no process publishes or reads an incomplete one, then removes it.

    Raises nothing: remains are removed later.
    """
    doomed = folder.with_name(f"{_DOOMED}{folder.name.lstrip('.')}")
    with suppress(OSError):
        folder.rename(doomed)
    for path in (doomed, folder):
        shutil.rmtree(path, ignore_errors=True)


def sweep(root: Path) -> None:
    """Removes the folders of dead processes. Needs no disk space."""
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
    """Returns the id of this boot, or "" if it cannot be read."""
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
    """Start of a process in clock ticks since boot; None if it does not exist."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2]
        return after_name.split()[19].decode()
    except (OSError, IndexError):
        return None
