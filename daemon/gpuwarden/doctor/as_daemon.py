"""Switches a doctor run by root to the daemon's user and capabilities, since root's rights differ from the daemon's."""

from __future__ import annotations

import ctypes
import grp
import os
import pwd
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpuwarden.base.capabilities import USED

_KEEP_CAPABILITIES = 8  # PR_SET_KEEPCAPS of prctl(2)
_DUMPABLE = 4  # PR_SET_DUMPABLE
_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


def become_daemon(pid: int, uid: int, proc: Path = Path("/proc")) -> None:
    """Switch this process permanently to the daemon's user, groups and capabilities.

    Does nothing unless this process runs as root and the daemon does not. Raises OSError if the switch fails.
    """
    if os.geteuid() != 0 or uid == 0 or pid == 0:
        return
    status = (proc / str(pid) / "status").read_text()
    match = _EFFECTIVE.search(status)
    capabilities = int(match[1], 16) if match is not None else 0
    _become(uid, int(_line(status, "Gid")[1]), map(int, _line(status, "Groups")), capabilities)


def become_user_of_unit(properties: Mapping[str, str]) -> None:
    """Switch like `become_daemon` if no daemon runs, to the user of its unit. Raises KeyError if it does not exist."""
    name = properties.get("User", "")
    if os.geteuid() != 0 or name in ("", "root", "0"):
        return
    user = pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
    extra = [grp.getgrnam(each).gr_gid for each in properties.get("SupplementaryGroups", "").split()]
    ambient = properties.get("AmbientCapabilities", "").lower().split()
    capabilities = sum(1 << each.bit for each in USED if f"cap_{each.name.lower()}" in ambient)
    _become(user.pw_uid, user.pw_gid, {*os.getgrouplist(user.pw_name, user.pw_gid), *extra}, capabilities)


def let_read() -> str:
    """Return the advice that lets the group of this process read a file."""
    gid = os.getegid()
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return f"chgrp {group} and chmod g+r the file, g+rx its folder"


def _become(uid: int, gid: int, groups: Iterable[int], capabilities: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
    os.setgroups(list(groups))
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    libc.prctl(_DUMPABLE, 1, 0, 0, 0)  # otherwise root owns this process's files in /proc
    _restrict(libc, capabilities)
    os.environ["HOME"] = _home(uid)


def _restrict(libc: ctypes.CDLL, capabilities: int) -> None:
    """Drop every capability that is not in the bit mask `capabilities`. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    words = [word for shift in (0, 32) for word in (capabilities >> shift & 0xFFFFFFFF,) * 2 + (0,)]
    if libc.capset(header, (ctypes.c_uint32 * 6)(*words)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _line(status: str, name: str) -> list[str]:
    return next((line.split()[1:] for line in status.splitlines() if line.startswith(f"{name}:")), [])


def _home(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return "/"
