"""Runs a script with real side effects in its own namespaces: own processes, own loopback.

A daemon in mode enforce signals every job it finds, and packets can only be counted where no other process sends any.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

_APART = "GPUWARDEN_BENCH_APART"
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP: netdevice(7)
_PACKETS = 1  # column of /proc/net/dev


def apart(*, network: bool = True) -> bool:
    """Run the script again in its own namespaces and return True; if that is impossible, print why and return False.

    Without `network` the script keeps the machine's: slurmd finds no address on a host with only a loopback.
    """
    if _APART not in os.environ:
        own = ["unshare", *(["--net"] if network else []), "--pid", "--mount-proc", "--fork", "--kill-child"]
        if os.geteuid() or shutil.which(own[0]) is None or subprocess.run([*own, "true"], check=False).returncode:
            print("Not measured: it takes root and unshare(1), since jobs on this machine would be signalled\n")
            return False
        _again(own)
    if network:
        _bring_up_loopback()
    return True


def _again(own: Sequence[str]) -> NoReturn:
    init = ("sh", "-c", '"$@"; exit $?', "sh")  # reaps orphaned processes
    os.execvpe(own[0], [*own, *init, sys.executable, *sys.argv], {**os.environ, _APART: "1"})


def packets() -> int:
    """Return the number of packets on the loopback so far. A packet counts once, at its receiver."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[_PACKETS]) for line in lines if line.strip().startswith("lo:"))


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", asked)[1] | _UP
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags))
