"""Allows one test on a node at a time, by two locks that the kernel releases however the process that holds them ends.

One is a file in the run directory, for all that share it, including containers; a test with another run directory than
the configured one locks both files. The other is the name of an abstract socket (unix(7)), for all tests of this
network namespace. Any user can take that name, so it prevents no test: the report names the process that has it. Tests
that share no run directory see each other only as processes on the GPUs.
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
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gpuwarden.base.peer import Peer, peer_of
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.process_stat import process_stat

NAME = "test.lock"
"""File name in the run directory."""
GROUP = "gpuwarden"
"""Group of the file: its members, such as Slurm jobs of that user, can take the lock even if the daemon is root's."""
NODE = "gpuwarden-test"
"""The name of the socket."""
_BACKLOG = 4096
_ATTEMPTS, _APART = 5, 0.1
"""Attempts to connect to the name's owner, and seconds between them. A test listens as soon as it has the name."""
_LOCKS_MOST = 4 << 20  # bytes
_OWN_PROC = Path("/proc")
"""PIDs of socket peers are those of this process's own PID namespace, whatever `paths.proc` is."""
_TICKS = os.sysconf("SC_CLK_TCK")


class LockError(Exception):
    """The lock cannot be taken. The message names the file, the cause and what to do."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that has the lock, as the kernel shows it."""

    pid: int
    """0 if the kernel does not show it, because it is in another PID namespace."""
    since: float | None
    """When that process started, seconds of CLOCK_BOOTTIME; None if not known."""


class Held(LockError):  # noqa: N818 - a state of the host
    """The lock is held by another test."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(f"another test runs on this node (pid {holder.pid or 'in another PID namespace'})")
        self.holder = holder


def make(run_dir: Path) -> None:
    """Create the lock file for the group, which cannot create it in a folder of root's. Raises LockError."""
    os.close(_opened(run_dir / NAME))


@contextmanager
def node_lock(run_dir: Path, configured: Path, proc: Path) -> Iterator[str]:
    """Hold both locks until the end of the block or of the process. Yields who else has the socket's name; "" if
    nobody.

    `configured`: the run directory of this host's configuration, which may be the same. Raises Held, or LockError if
    the file in `run_dir` cannot be opened.
    """
    with file_lock(run_dir, proc), _configured_lock(configured, run_dir, proc), _name(run_dir, configured) as stranger:
        yield stranger


@contextmanager
def _configured_lock(configured: Path, run_dir: Path, proc: Path) -> Iterator[None]:
    """Hold the configured lock file if it can be opened. Raises Held also if the kernel shows that another has it."""
    with ExitStack() as stack:
        if _is_another(configured, run_dir):
            try:
                stack.enter_context(file_lock(configured, proc))
            except Held:
                raise
            except LockError:
                if (holder := _locked(configured / NAME, proc)) is not None:
                    raise Held(holder) from None
        yield


def _is_another(configured: Path, run_dir: Path) -> bool:
    try:
        return configured.is_dir() and not configured.samefile(run_dir)
    except OSError:  # this process may not look there
        return False


@contextmanager
def _name(run_dir: Path, configured: Path) -> Iterator[str]:
    stranger = ""
    with socket.socket(socket.AF_UNIX) as name:
        try:
            name.bind(f"\0{NODE}")
            name.listen(_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise LockError(f"cannot take the name {NODE} that keeps tests apart: {error.strerror}") from error
            stranger = _stranger(_named(), dict.fromkeys((run_dir, configured)))
        yield stranger


def _named() -> Peer | None:
    """Return who has the name. None if no connection succeeds: the process does not listen, or its queue is full, which
    a user may cause to block tests.
    """
    for _ in range(_ATTEMPTS):
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            try:
                client.connect(f"\0{NODE}")
            except OSError:
                time.sleep(_APART)
                continue
            return peer_of(client)
    return None


def _stranger(peer: Peer | None, run_dirs: Iterable[Path]) -> str:
    """Return a message about a process that has the socket's name without the lock of this host's run directories."""
    who = "a process"
    if peer is not None:
        who = (
            f"process {peer.pid} of uid {peer.uid}"
            if peer.pid
            else f"a process of uid {peer.uid} in another PID namespace"
        )
    if peer is not None and (stat := process_stat(_OWN_PROC, peer.pid)) is not None:
        name = "".join(filter(str.isprintable, stat.name.decode(errors="replace")))
        who = f"process {peer.pid} ({name}, uid {peer.uid})"
    return (
        f"{who} has taken the name of the socket that keeps tests apart (@{NODE}) without the lock of {' or '.join(map(str, run_dirs))},"
        " and was ignored: end it, unless it is a test with another run directory; such tests see each other only as processes on the GPUs"
    )


@contextmanager
def file_lock(run_dir: Path, proc: Path, name: str = NAME) -> Iterator[int]:
    """Hold the lock until the end of the block or of the process; yields the open file. Raises Held, or LockError if it
    cannot be opened.
    """
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
    """Open the lock file. If root creates it, it is given to the owner of the folder, so that root, the daemon's user
    and the group share it and no other user can hold it. An existing file keeps its owner: whoever can write to the
    folder may have put any file of root's there.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        file, made = _made_or_there(path)
    except OSError as error:
        raise LockError(
            f"cannot take the lock {path} that keeps tests apart: {error.strerror}; run as root or as the daemon's user,"
            " and remove the file if root made it for itself"
        ) from error
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(file)
        raise LockError(f"cannot take the lock {path}: it is no regular file with one name; remove it")
    if made and os.geteuid() == 0:
        owner, group = path.parent.stat(), None
        with suppress(KeyError):
            group = grp.getgrnam(GROUP).gr_gid
        if group is not None:
            os.fchmod(file, 0o660)  # before fchown: root has no CAP_FOWNER in the unit of a test
        os.fchown(file, owner.st_uid, owner.st_gid if group is None else group)
    return file


def _made_or_there(path: Path) -> tuple[int, bool]:
    """Open the file; also return whether this call created it. Raises OSError."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600), True
    except FileExistsError:
        return os.open(path, flags), False


def _holder(file: int, proc: Path) -> Holder:
    """Find the lock's holder by inode alone: on an overlay, stat(2) gives another device than /proc/locks."""
    pid = _locker(os.fstat(file).st_ino, "[0-9a-f]+:[0-9a-f]+", proc)
    return Holder(pid, _started(proc, pid) if pid else None)


def _locked(path: Path, proc: Path) -> Holder | None:
    """Find who holds the lock of a file that cannot be opened; None if nobody is shown to. The device must match, too:
    the same inode elsewhere would otherwise prevent every test.
    """
    try:
        status = path.lstat()
    except OSError:
        return None
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    pid = _locker(status.st_ino, device, proc)
    return Holder(pid, _started(proc, pid)) if pid else None


def _locker(inode: int, device: str, proc: Path) -> int:
    """Return the PID that holds a lock, from /proc/locks (proc(5)); 0 if none is shown. `device`: a pattern, in hex."""
    pattern = rf"FLOCK\s+ADVISORY\s+WRITE\s+(\d+)\s+{device}:{inode}\s"
    match = re.search(pattern, read_text(proc / "locks", _LOCKS_MOST))
    return int(match[1]) if match else 0


def _started(proc: Path, pid: int) -> float | None:
    stat = process_stat(proc, pid)
    return None if stat is None else stat.started / _TICKS
