"""Waiting for the changes of one file, by inotify(7)."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

_MODIFY, _CREATE, _MOVED_TO, _DELETE, _MOVED_FROM = 0x2, 0x100, 0x80, 0x200, 0x40  # linux/inotify.h
_COMES_OR_GOES = _CREATE | _MOVED_TO | _DELETE | _MOVED_FROM
_EVENTS = 65536  # bytes of events in one read: more than the kernel keeps of a busy folder between two turns of a loop
_LIBC = ctypes.CDLL(None, use_errno=True)


class FileChanges:
    """`fd` becomes readable when the file at `path` is written, made, replaced or removed.

    It may also become readable without that, and another host's writes to a network file system do not show: what
    must be seen is also looked at from time to time. Raises OSError if the folder is missing, or if the kernel has no
    place left (sysctl fs.inotify.max_user_instances).
    """

    def __init__(self, path: str | Path) -> None:
        self._path = os.fsencode(path)
        self._watch = -1
        self.fd = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            folder = os.path.dirname(self._path) or b"."  # noqa: PTH120 - bytes
            _checked(_LIBC.inotify_add_watch(self.fd, folder, _COMES_OR_GOES))
            self.forget()
        except OSError:
            self.close()
            raise

    def forget(self) -> None:
        """Takes the changes until now as seen. Call it before the file is read, so that a later change counts."""
        watch = _LIBC.inotify_add_watch(self.fd, self._path, _MODIFY)
        if self._watch not in (-1, watch):  # the old file may live on under another name
            _LIBC.inotify_rm_watch(self.fd, self._watch)
        self._watch = watch
        with suppress(BlockingIOError):  # last: that a watch was removed is an event, too
            while os.read(self.fd, _EVENTS):
                pass

    def wait(self, seconds: float) -> None:
        """Returns after a change, or after `seconds`."""
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll(seconds * 1000)

    def close(self) -> None:
        os.close(self.fd)


class _NoChanges:
    """Stands in for `FileChanges` where the kernel has none: it waits for the whole time."""

    def forget(self) -> None:
        """No-op: nothing was reported."""

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


@contextmanager
def changes_of(path: str | Path) -> Iterator[FileChanges | _NoChanges]:
    """Gives what waits for the changes of this file, for a thread that has nothing else to wait for."""
    try:
        changes = FileChanges(path)
    except OSError:
        yield _NoChanges()
        return
    with closing(changes):
        yield changes


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
