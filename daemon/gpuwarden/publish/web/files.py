"""Reads the files named in a web-config file, up to a size limit, and detects changes of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

SIZE_MAX = 1 << 20  # bytes
Print = tuple[int, ...] | None
"""A value that changes with the file; None: it does not exist."""


class FileError(Exception):
    """A file cannot be read. The message has the reason."""


def fingerprint(path: Path) -> Print:
    """Return the identity of the file behind links, so that a new link target is a change; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Files:
    """Reader of the web-config file and the files it names.

    `seen`: the fingerprint of every file read, taken just before. `fault` is called with a key and a description of the
    fault.
    """

    def __init__(self, config: Path, fault: Callable[[str, str], None], warn: Callable[[str], None]) -> None:
        self.seen: dict[Path, Print] = {}
        self.holds_secrets = False
        self._config = config
        self._fault = fault
        self._warn = warn

    def config(self) -> str:
        """Read the web-config file. Raises FileError."""
        data, _ = self._read(self._config)
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise FileError("it is not text in UTF-8") from None

    def certificate(self, key: str, name: str) -> bytes:
        """Read a certificate. A relative name is relative to the folder of the web-config file. Empty after a fault."""
        return self._named(key, name)[0]

    def key(self, key: str, name: str) -> bytes:
        data, mode = self._named(key, name)
        if mode & stat.S_IROTH:
            self._warn(f"{key}: {self._config.parent / name} may be read by every user: chmod o-r")
        return data

    def warn_readable_secrets(self) -> None:
        mode = self._config.stat().st_mode
        if self.holds_secrets and mode & stat.S_IROTH:
            self._warn(f"{self._config} holds passwords or a key and may be read by every user: chmod o-r")

    def _named(self, key: str, name: str) -> tuple[bytes, int]:
        try:
            return self._read(self._config.parent / name)
        except FileError as error:
            self._fault(key, f"cannot read {self._config.parent / name}: {error}")
        except ValueError:  # a zero byte
            self._fault(key, "expected the name of a file")
        return b"", 0

    def _read(self, path: Path) -> tuple[bytes, int]:
        self.seen[path] = fingerprint(path)
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                mode = os.fstat(file).st_mode
                data = _whole(file) if stat.S_ISREG(mode) else None
            finally:
                os.close(file)
        except OSError as error:
            raise FileError(error.strerror or str(error)) from error
        if data is None:
            raise FileError("it is not a file")
        if len(data) > SIZE_MAX:
            raise FileError(f"it has more than {SIZE_MAX} bytes")
        return data, mode


def _whole(file: int) -> bytes:
    """Read the whole file, at most one byte more than SIZE_MAX."""
    data = b""
    while len(data) <= SIZE_MAX and (more := os.read(file, SIZE_MAX + 1 - len(data))):
        data += more
    return data
