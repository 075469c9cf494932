"""Decides which control groups belong to a container or to Slurm: those at the usual paths, in folders of root."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_text

_TABLE_MOST = 4 << 20  # bytes; hosts with many containers have tens of thousands of mounts


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One line of /proc/PID/cgroup: `controllers` of version 1 (or `name=systemd`), empty for version 2."""

    controllers: str
    path: str


def lines(text: str) -> Iterator[GroupLine]:
    """Parses the content of /proc/PID/cgroup; skips lines of another form."""
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if number.isdecimal() and colon and path.startswith("/"):
            yield GroupLine(controllers, path)


@dataclass(frozen=True, slots=True)
class _Mount:
    """A mounted cgroup hierarchy, or a part of it. `root` is the mounted folder, as seen from this cgroup namespace."""

    point: str
    root: str
    controllers: frozenset[str] | None
    """Controllers and other mount options; None for version 2."""

    def has(self, line: GroupLine) -> bool:
        if self.controllers is None or not line.controllers:
            return self.controllers is None and not line.controllers
        return self.controllers.issuperset(line.controllers.split(","))


class RootFolders:
    """Checks whether folders of the cgroup file systems belong to root. Caches its answers: use one instance per scan.

    `proc`: its `self/mountinfo` lists the mounts. A folder outside all mounts of this process (a container often sees
    only its own) cannot be inspected: then its path alone decides.
    """

    def __init__(self, proc: Path) -> None:
        self._mounts = _mounts(proc)
        self._answers: dict[str, bool] = {}

    def are_roots(self, line: GroupLine, end: int) -> bool:
        """True if all folders in the first `end` characters of the path belong to root or cannot be inspected."""
        place = self._found(line, end)
        return place is None or self._are_roots(*place)

    def folder(self, line: GroupLine, end: int) -> str | None:
        """Returns the local path of the folder named by the first `end` characters.

        Returns None unless it can be inspected, and all folders on the way to it belong to root.
        """
        place = self._found(line, end)
        return "".join(place) if place is not None and self._are_roots(*place) else None

    def _found(self, line: GroupLine, end: int) -> tuple[str, str] | None:
        """Returns the mount that has this path, and the path below it."""
        for mount in self._mounts:
            below = _below(line.path[:end], mount.root) if mount.has(line) else None
            if below is not None:
                return mount.point, below
        return None

    def _are_roots(self, point: str, below: str) -> bool:
        folder = point
        for name in below.split("/")[1:]:
            folder = f"{folder}/{name}"
            if folder not in self._answers:
                self._answers[folder] = _is_roots(folder)
            if not self._answers[folder]:
                return False
        return True


def _is_roots(folder: str) -> bool:
    try:
        status = os.lstat(folder)
    except OSError:  # the folder is gone, with its processes
        return False
    others = stat.S_IWOTH if status.st_gid == 0 else stat.S_IWOTH | stat.S_IWGRP
    return status.st_uid == 0 and stat.S_ISDIR(status.st_mode) and not status.st_mode & others


def _below(path: str, root: str) -> str | None:
    """The part of `path` below `root`, or None. Both begin with the `/..` of this cgroup namespace, if any."""
    root = root.rstrip("/")
    if not path.startswith(root):
        return None
    below = path[len(root) :]
    elsewhere = below not in ("", "/") and (not below.startswith("/") or below.startswith("/../") or below == "/..")
    return None if elsewhere else below.rstrip("/")


def _mounts(proc: Path) -> tuple[_Mount, ...]:
    try:
        table = read_text(proc / "self/mountinfo", _TABLE_MOST)
    except OSError:
        return ()
    return tuple(mount for line in table.splitlines() if (mount := _mount(line)) is not None)


def _mount(line: str) -> _Mount | None:
    """Parses a line of mountinfo; returns None unless it is a cgroup file system that no other mount covers."""
    left, _, right = line.partition(" - ")
    fields, kind = left.split(), right.split()
    if len(fields) < 6 or len(kind) < 3 or kind[0] not in ("cgroup", "cgroup2"):
        return None
    try:
        device = Path(fields[4]).stat().st_dev
    except OSError:
        return None
    if f"{os.major(device)}:{os.minor(device)}" != fields[2]:
        return None
    return _Mount(fields[4], fields[3], frozenset(kind[2].split(",")) if kind[0] == "cgroup" else None)
