"""Waiting for the changes of one file, by inotify(7)."""

from __future__ import annotations

import ctypes
import os
import select
import time
from contextlib import suppress
from pathlib import Path

_MODIFY, _CREATE, _MOVED_TO, _DELETE, _MOVED_FROM = 0x2, 0x100, 0x80, 0x200, 0x40  # linux/inotify.h
_COMES_OR_GOES = _CREATE | _MOVED_TO | _DELETE | _MOVED_FROM
_EVENTS = 65536  # bytes of events in one read: more than the kernel keeps of a busy folder between two turns of a loop
_LIBC = ctypes.CDLL(None, use_errno=True)


class FileChanges:
    """`fd` becomes readable when the file at `path` is written, made, replaced or removed.

    It may also become readable without that, and another host's writes to a network file system do not show: what
    must be seen is also read from time to time. None: nothing is reported, since the folder is missing, or the
    kernel has no place left (sysctl fs.inotify.max_user_instances).
    """

    def __init__(self, path: str | Path) -> None:
        self._path = os.fsencode(path)
        self._watch = -1
        self.fd: int | None = None
        with suppress(OSError):
            self.fd = self._opened()
        self.forget()

    def _opened(self) -> int:
        fd = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            folder = os.path.dirname(self._path) or b"."  # noqa: PTH120 - bytes
            _checked(_LIBC.inotify_add_watch(fd, folder, _COMES_OR_GOES))
        except OSError:
            os.close(fd)
            raise
        return fd

    def forget(self) -> None:
        """Takes the changes until now as seen. Call it before the file is read, so that a later change counts."""
        if self.fd is None:
            return
        watch = _LIBC.inotify_add_watch(self.fd, self._path, _MODIFY)
        if self._watch not in (-1, watch):  # the old file may live on under another name
            _LIBC.inotify_rm_watch(self.fd, self._watch)
        self._watch = watch
        with suppress(BlockingIOError):  # last: that a watch was removed is an event, too
            while os.read(self.fd, _EVENTS):
                pass

    def wait(self, seconds: float) -> None:
        """Returns after a change, or after `seconds`, which is always so where nothing is reported."""
        if self.fd is None:
            time.sleep(seconds)
            return
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll(seconds * 1000)

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
