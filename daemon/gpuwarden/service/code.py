"""Finds all code that a service's Python interpreter runs, and who could replace it.

The service may run as root: whoever can write a module, a `.pth` file, a folder in `sys.path` or a parent of one can
become root. Editable installs are found by the search paths of their packages, libraries by the interpreter's mappings.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import stat
import struct
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass

ANSWERS_WITHIN = 60.0
FILES_MOST = 500_000
"""Limit of examined files. A Python with its libraries has about 10,000."""
_ACL = "system.posix_acl_access"
_ACL_ENTRY = struct.Struct("<HHI")  # tag, permissions, id: posix_acl_xattr.h
_ACL_USER, _ACL_GROUP, _ACL_WRITE = 0x02, 0x08, 0x02
_PROBE = """
import importlib.metadata, importlib.util, json, sys
paths = [*sys.path, sys.executable, sys.prefix + "/pyvenv.cfg"]
import gpuwarden.cli.main
for name in {*importlib.metadata.packages_distributions(), "gpuwarden", "gpuwarden_collectors"}:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        continue
    if spec is not None:
        paths += [spec.origin, *(spec.submodule_search_locations or ())]
paths += [getattr(module, "__file__", None) for module in list(sys.modules.values())]
with open("/proc/self/maps") as maps:
    paths += [line.split(None, 5)[5].strip() for line in maps if line.count(" /")]
print(json.dumps(sorted({path for path in paths if path and path.startswith("/")})))
"""


class CodeError(Exception):
    """The code that the service would run cannot be determined."""


@dataclass(frozen=True, slots=True)
class Writable:
    """A file or folder that `who` can change, although not root; `to_do`: the command that revokes the permission."""

    path: Path
    who: str
    to_do: str

    def __str__(self) -> str:
        return f"{self.path} can be changed by {self.who}: {self.to_do}"


def loaded(python: Path) -> list[Path]:
    """Return the paths of the code that `python` loads when started as the unit starts it. Raises CodeError."""
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter of this installation
            [python, "-c", _PROBE],
            env={"PATH": "/usr/bin:/bin", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ANSWERS_WITHIN,
            check=False,
        )
        return [Path(path) for path in json.loads(done.stdout)]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CodeError(f"cannot start {python} as the unit would: {error}") from error
    except ValueError as error:
        why = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise CodeError(f"{python} cannot load gpuwarden as the unit would start it: {why}") from error


def writable(paths: Iterable[Path], owner: int = 0) -> list[Writable]:
    """Return what users other than root and `owner` can change: the paths, all below them, and their parent folders.

    The contents of a listed folder are not listed.
    """
    return list(dict.fromkeys(_Search(owner).results(paths)))


class _Search:
    """One search. `_above`: folders examined only as parents. `_walked`: paths examined with all below them.

    Two sets, since most code folders are also parents of others, and examining a parent does not cover its files.
    """

    def __init__(self, owner: int) -> None:
        self._owner = owner
        self._above: set[Path] = set()
        self._walked: set[Path] = set()

    def results(self, paths: Iterable[Path]) -> Iterator[Writable]:
        todo = list(paths)
        while todo:
            path = Path(os.path.abspath(todo.pop()))  # noqa: PTH100 - must not follow links
            above = list(self._examined(reversed(path.parents)))
            yield from above
            if not above:
                yield from self._below(path, todo.append)

    def _below(self, path: Path, follow: Callable[[Path], None]) -> Iterator[Writable]:
        """Search a path and all below it. `follow` is called with the targets of links."""
        if path in self._walked:
            return
        self._walked.add(path)
        try:
            status = path.lstat()
        except FileNotFoundError:
            return
        if stat.S_ISLNK(status.st_mode):
            target = path.parent / path.readlink()
            follow(target)
            follow(target.resolve())
        elif not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            return  # a device or a socket is no code
        elif who := _others(path, status, self._owner):
            yield Writable(path, *who)
        elif stat.S_ISDIR(status.st_mode):
            for each in os.scandir(path):
                if len(self._walked) > FILES_MOST:
                    raise CodeError(f"more than {FILES_MOST} files lie in the folders of this Python, last {path}")
                yield from self._below(Path(each.path), follow)

    def _examined(self, folders: Iterable[Path]) -> Iterator[Writable]:
        """Yield the first of the parent `folders` that others can change.

        root's folders with the sticky bit are accepted as parents: others can add files to them but not replace root's.
        As code folders they are not.
        """
        for folder in folders:
            if folder in self._above:
                continue
            self._above.add(folder)
            try:
                status = folder.lstat()
            except FileNotFoundError:
                return
            sticky = status.st_mode & stat.S_ISVTX and status.st_uid in (0, self._owner)
            if stat.S_ISLNK(status.st_mode) or sticky:
                continue
            if who := _others(folder, status, self._owner):
                yield Writable(folder, *who)
                return


def _others(path: Path, status: os.stat_result, owner: int) -> tuple[str, str] | None:
    """Return who else can write the path, and the command that revokes the permission; None if no one can."""
    if status.st_uid not in (0, owner):
        return f"its owner {_user(status.st_uid)}", f"chown root: {path}"
    if status.st_mode & stat.S_IWOTH:
        return "everybody", f"chmod o-w {path}"
    if not status.st_mode & stat.S_IWGRP:
        return None
    if status.st_gid != 0:
        return f"group {_group(status.st_gid)}", f"chmod g-w {path}"
    if named := _acl(path):
        return named, f"setfacl -b {path}"
    return None


def _acl(path: Path) -> str:
    """Return a user or group with write permission by ACL, else "". With an ACL the mode's group bits are its mask."""
    try:
        data = os.getxattr(path, _ACL)[4:]
    except OSError:  # no list, or a file system without them
        return ""
    for tag, permissions, number in _ACL_ENTRY.iter_unpack(data[: len(data) // _ACL_ENTRY.size * _ACL_ENTRY.size]):
        if permissions & _ACL_WRITE and tag == _ACL_USER and number != 0:
            return f"{_user(number)}, by an access list"
        if permissions & _ACL_WRITE and tag == _ACL_GROUP and number != 0:
            return f"group {_group(number)}, by an access list"
    return ""


def _user(number: int) -> str:
    try:
        return f"{pwd.getpwuid(number).pw_name} (uid {number})"
    except KeyError:
        return f"uid {number}"


def _group(number: int) -> str:
    try:
        return f"{grp.getgrgid(number).gr_name} (gid {number})"
    except KeyError:
        return f"gid {number}"
