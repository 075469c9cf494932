"""One test on a node at a time: two locks, which the kernel gives back with the process that holds them, however that ends.

One is a file in the run directory, for all who share that, in containers too. The other is a name of a socket (unix(7), abstract), for all
tests of this network namespace, whatever run directory they were given. Who has neither in common is not kept apart.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from gpuwarden.publish.sockets.unix_socket import peer_of
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.process_stat import process_stat

NAME = "test.lock"
"""In the run directory."""
GROUP = "gpuwarden"
"""Of the file: its members, as jobs of Slurm that run as that user, take the lock beside a daemon of root's."""
NODE = "gpuwarden-test"
"""The name of the socket. Any user may take it: who is none of those that may test is no test."""
_BACKLOG = 4096
_ATTEMPTS, _APART = 5, 0.1
"""To connect to the holder, and seconds between them. A test listens as soon as it has the name, and one that has ended has it no longer."""
_LOCKS_MOST = 4 << 20  # bytes
_TICKS = os.sysconf("SC_CLK_TCK")


class LockError(Exception):
    """The lock cannot be taken. The message names the file, the cause and what to do."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has the lock, from the kernel."""

    pid: int
    """0 where the kernel does not show it: it is in another PID namespace."""
    since: float | None
    """When that process started, seconds of CLOCK_BOOTTIME; None if not known."""


class Held(LockError):  # noqa: N818 - a state of the host
    """Another test runs."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"another test runs on this node (pid {holder.pid or 'in another PID namespace'})")
        self.holder = holder


def make(run_dir: Path) -> None:
    """For the group to find: in a folder of root's it cannot make the file. Raises LockError."""
    os.close(_opened(run_dir / NAME))


@contextmanager
def node_lock(run_dir: Path, proc: Path) -> Iterator[None]:
    """Held until the end of the block or of the process. Raises Held, or LockError if the file cannot be opened."""
    with file_lock(run_dir, proc), _name_lock(run_dir, proc):
        yield


@contextmanager
def _name_lock(run_dir: Path, proc: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as name:
        try:
            name.bind(f"\0{NODE}")
            name.listen(_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise LockError(f"cannot take the name {NODE} that keeps tests apart: {error.strerror}") from error
            if (holder := _named_holder(run_dir, proc)) is not None:
                raise Held(holder) from None
        yield


def _named_holder(run_dir: Path, proc: Path) -> Holder | None:
    """None for one that cannot be a test; also for one that nobody can connect to: it does not listen, or its queue is full, as
    that of a user who wants to keep tests away.
    """
    for _ in range(_ATTEMPTS):
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            try:
                client.connect(f"\0{NODE}")
            except OSError:
                time.sleep(_APART)
                continue
            holder = peer_of(client)
        testers = {0, os.geteuid(), run_dir.stat().st_uid}
        return Holder(holder.pid, _started(proc, holder.pid) if holder.pid else None) if holder.uid in testers else None
    return None


@contextmanager
def file_lock(run_dir: Path, proc: Path, name: str = NAME) -> Iterator[int]:
    """Held until the end of the block or of the process; gives the open file. Raises Held, or LockError if it cannot be opened."""
    file = _opened(run_dir / name)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = _holder(file, proc)
        os.close(file)
        raise Held(holder) from None
    try:
        yield file
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    """Its owner is that of the folder, so that root, the daemon's user and the group share it and no other user can hold it."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LockError(
            f"cannot take the lock {path} that keeps tests apart: {error.strerror}; run as root or as the daemon's user"
        ) from error
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:  # a second name may be that of a file of root's
        os.close(file)
        raise LockError(f"cannot take the lock {path}: it is no regular file with one name; remove it")
    if os.geteuid() == 0 and status.st_uid == 0:
        owner, group = path.parent.stat(), None
        with suppress(KeyError):
            group = grp.getgrnam(GROUP).gr_gid
        if group is not None:
            os.fchmod(file, 0o660)  # before it is given away: root in the unit of a test has no CAP_FOWNER
        os.fchown(file, owner.st_uid, owner.st_gid if group is None else group)
    return file


def _holder(file: int, proc: Path) -> Holder:
    """By the inode in /proc/locks (proc(5)). Not by the device: on an overlay stat(2) gives another one."""
    inode = os.fstat(file).st_ino
    found = re.search(
        rf"FLOCK\s+ADVISORY\s+WRITE\s+(\d+)\s+[0-9a-f]+:[0-9a-f]+:{inode}\s", read_text(proc / "locks", _LOCKS_MOST)
    )
    pid = int(found[1]) if found else 0
    return Holder(pid, _started(proc, pid) if pid else None)


def _started(proc: Path, pid: int) -> float | None:
    stat = process_stat(proc, pid)
    return None if stat is None else stat.started / _TICKS
