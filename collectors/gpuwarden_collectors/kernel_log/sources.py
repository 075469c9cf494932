"""Sources of kernel log records: `/dev/kmsg`, a growing file with one record per line, or syslog(2) (`syslog.py`).

Each `read` returns a bounded number of records in the format of `/dev/kmsg`, without blocking unless `slow` is true. A
file should be on a local disk, because it is read on the event loop.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple, Protocol

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.file_changes import FileChanges

RECORD_MAX = 8192  # bytes; CONSOLE_EXT_LOG_MAX of Linux 4 to 6
RECORD_LIMIT = 1 << 20  # longer records are treated as an error
CHUNK = 8192  # bytes of a file for one turn of the loop
LINE_MAX = 65_536  # bytes kept of a line that has not ended
DEVICE = "/dev/kmsg"
FILE_POLL = 1.0  # seconds between reads without an inotify event: network file systems report few
_REFUSED = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENXIO, errno.ENODEV)
"""Errors that mean that the device can never be opened here. Others, such as too many open files, are transient."""


class Turn(NamedTuple):
    """The result of one bounded read.

    `drained`: no records are left. `restarted`: the records begin with the oldest one, of another log or of the same
    log again.
    """

    records: list[bytes]
    drained: bool = False
    restarted: bool = False


class RecordSource(Protocol):
    wait: int | None  # descriptor that becomes readable with new records; None: poll only
    poll: float | None  # most seconds between two reads; None: `wait` reports every record

    def read(self, limit: int) -> Turn:
        """Reads about `limit` records at most. Raises OSError when the source is broken."""

    def slow(self) -> bool:
        """True if the next `read` takes milliseconds and belongs in a thread."""

    def close(self) -> None: ...


def open_source(path: str) -> RecordSource:
    """Opens the log at `path`; if that is `/dev/kmsg` and access is denied, opens the same log by syslog(2).

    Raises SourceAbsent if the path does not exist, CollectorError if it cannot be read or is not a log.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path != DEVICE or error.errno not in _REFUSED:
            raise _unopened(path, error) from error
        from gpuwarden_collectors.kernel_log.syslog import open_syslog  # noqa: PLC0415 - in a pod only

        return open_syslog(instead_of=error)
    mode = os.fstat(fd).st_mode
    if stat.S_ISCHR(mode):
        return KmsgDevice(fd)
    if stat.S_ISREG(mode):
        return FollowedFile(path, fd)
    os.close(fd)
    raise CollectorError(f"cannot follow the kernel log {path}: it is neither a character device nor a regular file")


def _unopened(path: str, error: OSError) -> CollectorError:
    if isinstance(error, FileNotFoundError):
        return SourceAbsent(
            f"no kernel log at {path}: in a container pass /dev/kmsg of the host in, else correct paths.kmsg"
        )
    return CollectorError(
        f"cannot open the kernel log {path}: {error.strerror}; run as root or give the service CAP_SYSLOG "
        "(needed while kernel.dmesg_restrict is 1), and in a container access to the device"
    )


class KmsgDevice:
    """`/dev/kmsg`: an open starts at the oldest record, each read is one record."""

    poll: float | None = None

    def __init__(self, fd: int, size: int = RECORD_MAX) -> None:
        self.fd = fd
        self.wait: int | None = fd
        self._size = size

    def read(self, limit: int) -> Turn:
        records: list[bytes] = []
        while len(records) < limit:
            try:
                records.append(self._record())
            except BlockingIOError:
                return Turn(records, drained=True)
            except BrokenPipeError:  # the next records were overwritten: the next read returns the oldest remaining one
                return Turn(records)
            except OSError:
                if not records:
                    raise
                break  # deliver these records; a persistent error recurs
        return Turn(records)

    def _record(self) -> bytes:
        while True:
            try:
                record = os.read(self.fd, self._size)
            except OSError as error:
                if error.errno != errno.EINVAL or self._size >= RECORD_LIMIT:
                    raise
                # The buffer is too small. Linux 5.10 and later then skip the record, which becomes a gap.
                self._size *= 2
            else:
                if not record:
                    raise OSError(errno.ENODATA, "it has an end, so it is not a kernel log")
                return record

    def slow(self) -> bool:
        return False

    def close(self) -> None:
        os.close(self.fd)


class FollowedFile:
    """A file followed by name, like `tail -F`: it may be truncated, replaced or missing for a while."""

    poll: float | None = FILE_POLL

    def __init__(self, path: str, fd: int) -> None:
        self.fd = fd
        self._path = path
        self._changes = FileChanges(path)
        self.wait = self._changes.fd
        self._offset = 0
        self._partial = b""

    def read(self, limit: int) -> Turn:  # noqa: ARG002 - CHUNK is the limit here
        self._changes.forget()
        replaced = self._replaced()  # checked before the read, so that a following end of file is final
        truncated = os.fstat(self.fd).st_size < self._offset
        if truncated:
            os.lseek(self.fd, 0, os.SEEK_SET)
            self._begin()
        chunk = os.read(self.fd, CHUNK)
        self._offset += len(chunk)
        if not chunk and replaced:
            fresh = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.close(self.fd)
            self.fd = fresh
            self._begin()
            return Turn([], restarted=True)
        return Turn(self._lines(chunk), drained=not chunk, restarted=truncated)

    def _replaced(self) -> bool:
        try:
            named = Path(self._path).stat()
        except FileNotFoundError:
            return False  # renamed; the successor will have the same name
        if not stat.S_ISREG(named.st_mode):
            raise OSError(errno.EINVAL, "it is no longer a regular file")
        here = os.fstat(self.fd)
        return (named.st_dev, named.st_ino) != (here.st_dev, here.st_ino)

    def _begin(self) -> None:
        self._offset = 0
        self._partial = b""

    def _lines(self, chunk: bytes) -> list[bytes]:
        *lines, rest = (self._partial + chunk).split(b"\n")
        self._partial = rest[:LINE_MAX]  # only the beginning of a line is ever parsed
        return lines

    def slow(self) -> bool:
        return False

    def close(self) -> None:
        os.close(self.fd)
        self._changes.close()
