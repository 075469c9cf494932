"""Filesystems of our own: small, full, read-only or frozen. For disposable hosts, as root."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 60.0
THAWS = 300
"""Seconds: longer than what a test does on a frozen disk takes on a busy machine."""


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    _run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    try:
        yield folder
    finally:
        _run("umount", "--lazy", folder)


def fill(disk: Path) -> Path:
    """Up to the last page; the file that does it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return filler


def remount(mount: Path, options: str) -> None:
    """Remount between two writes of whoever writes there: meanwhile the kernel refuses to make it read-only."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return _run("mount", "-o", f"remount,{options}", mount)
        except subprocess.CalledProcessError as error:
            if b"busy" not in error.stderr or time.monotonic() > end:
                raise


@contextmanager
def ext4(folder: Path) -> Iterator[Path]:
    """A filesystem that can be frozen, in a file beside `folder`."""
    image = folder.with_name(f"{folder.name}.img")
    with image.open("wb") as file:
        file.truncate(16 << 20)
    _run("mkfs.ext4", "-q", image)
    folder.mkdir()
    _run("mount", "-o", "loop", image, folder)
    try:
        yield folder
    finally:
        _run("umount", "--lazy", folder)


@contextmanager
def frozen(mount: Path) -> Iterator[None]:
    """Any access below `mount` hangs meanwhile. It thaws also if the test is killed, or hangs itself."""
    script = f'timeout {THAWS} cat; fsfreeze -u "$0"'
    thaw = subprocess.Popen(["/bin/sh", "-c", script, mount], stdin=subprocess.PIPE)
    _run("fsfreeze", "-f", mount)
    try:
        yield
    finally:
        thaw.communicate()
