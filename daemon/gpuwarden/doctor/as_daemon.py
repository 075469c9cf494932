"""Root's doctor judges as the daemon's user, with the capabilities that the daemon has: what root may says nothing about the daemon."""

from __future__ import annotations

import ctypes
import os
import pwd
import re
from pathlib import Path

_KEEP_CAPABILITIES = 8  # PR_SET_KEEPCAPS of prctl(2)
_DUMPABLE = 4  # PR_SET_DUMPABLE
_VERSION_3 = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]+)$", re.MULTILINE)


def become_daemon(pid: int, uid: int, proc: Path = Path("/proc")) -> None:
    """For the rest of this process. Does nothing unless this is root and the daemon is not. Raises OSError if it is not possible."""
    if os.geteuid() != 0 or uid == 0 or pid == 0:
        return
    status = (proc / str(pid) / "status").read_text()
    found = _EFFECTIVE.search(status)
    capabilities = int(found[1], 16) if found is not None else 0
    groups = [int(text) for text in _line(status, "Groups")]
    gid = int(_line(status, "Gid")[1])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    libc.prctl(_DUMPABLE, 1, 0, 0, 0)  # else its own files below /proc are root's
    _restrict(libc, capabilities)
    os.environ["HOME"] = _home(uid)


def _restrict(libc: ctypes.CDLL, capabilities: int) -> None:
    """Of the capabilities that were kept, only these stay. Raises OSError."""
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
