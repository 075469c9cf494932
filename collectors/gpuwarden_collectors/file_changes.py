"""Waits for changes of one file, by inotify(7)."""

from __future__ import annotations

import ctypes
import os
import select
import time
from contextlib import suppress
from pathlib import Path

_MODIFY, _CREATE, _MOVED_TO, _DELETE, _MOVED_FROM = 0x2, 0x100, 0x80, 0x200, 0x40  # linux/inotify.h
_COMES_OR_GOES = _CREATE | _MOVED_TO | _DELETE | _MOVED_FROM
_EVENTS = 65536  # bytes of one read: more events than a busy folder queues between two iterations of a loop
_LIBC = ctypes.CDLL(None, use_errno=True)


class FileChanges:
    """A watch on a file: `fd` becomes readable when the file at `path` is written, created, replaced or removed.

    False wake-ups are possible, and writes from other hosts to a network file system are missed: also poll the file.
    `fd` is None if no watch could be created: the folder is missing, or the kernel's limit is reached (sysctl
    fs.inotify.max_user_instances).
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
        """Discards the changes so far. Call it before reading the file, so that no later change is missed."""
        if self.fd is None:
            return
        watch = _LIBC.inotify_add_watch(self.fd, self._path, _MODIFY)
        if self._watch not in (-1, watch):  # the old file may live on under another name
            _LIBC.inotify_rm_watch(self.fd, self._watch)
        self._watch = watch
        with suppress(BlockingIOError):  # last, because removing a watch is an event, too
            while os.read(self.fd, _EVENTS):
                pass

    def wait(self, seconds: float) -> None:
        """Returns after a change or after `seconds`; always after `seconds` if no watch could be created."""
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
