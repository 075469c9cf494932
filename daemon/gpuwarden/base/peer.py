"""Reads the credentials of a Unix socket's peer from the kernel, and whether it has ended."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import NamedTuple

SO_PEERGROUPS = 59  # asm-generic/socket.h; Linux 4.13 and later
PEER = struct.Struct("=iII")  # struct ucred: pid, uid, gid


class Peer(NamedTuple):
    """The peer process, as of its connect."""

    pid: int
    """Process number."""
    uid: int
    """Its user."""
    groups: frozenset[int]
    """Its groups, primary and supplementary."""


def peer_of(sock: socket.socket) -> Peer:
    """Return the peer. Raises OSError for a socket of another kind."""
    pid, uid, gid = PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
    try:
        raw = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 1024)
    except OSError:  # more than 256 groups, or an older kernel: only the primary group is known
        raw = b""
    return Peer(pid, uid, frozenset((gid, *struct.unpack(f"={len(raw) // 4}I", raw))))


def has_ended(pid: int) -> bool:
    """Return True if the first thread of the process has ended. Other threads may still sleep in the kernel.

    Without an import of the collectors, since the small services use it too.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return line.rpartition(b") ")[2][:1] in (b"X", b"x", b"Z")
