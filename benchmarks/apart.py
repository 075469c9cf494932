"""A machine of its own for a script that acts for real: its own processes, its own loopback.

A daemon in mode enforce signals whoever it finds, and packets can only be counted where nobody else sends any.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import sys
from pathlib import Path

_APART = "GPUWARDEN_BENCH_APART"
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP: netdevice(7)
_PACKETS = 1  # column of /proc/net/dev


def apart() -> bool:
    """Runs the script anew in namespaces of its own, of which True is the answer. False, and a line why, if that cannot be."""
    if _APART in os.environ:
        _bring_up_loopback()
        return True
    if os.geteuid() or shutil.which("unshare") is None:
        print("Not measured: it takes root and unshare(1), since jobs on this machine would be signalled\n")
        return False
    own = ("unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child")
    os.execvpe(own[0], [*own, sys.executable, *sys.argv], {**os.environ, _APART: "1"})


def packets() -> int:
    """On the loopback so far, in either direction: what one end sends the other receives, and it is counted once."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[_PACKETS]) for line in lines if line.strip().startswith("lo:"))


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", asked)[1] | _UP
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags))
