"""Packs files into one archive, which appears under its name whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuwarden.base.files import sync_folder
from gpuwarden.features.bundle.entry import Entry
from gpuwarden.features.bundle.programs import surroundings
from gpuwarden_collectors.plugin.run import run

WORK = ".gpuwarden-bundle-"
"""Prefix of temporary folders, which are in the folder of the archive."""
_LOCK, _UNLOCKED = "lock", "unlocked"
_LOCKED_WITHIN = 3_600.0
"""Seconds after which a folder without a lock belongs to a process that was killed right after creating it."""
_COMPRESSED_WITHIN = 120.0
_MODE = 0o600
NO_ZSTD = "zstd is not installed: the archive is compressed with gzip"


@contextmanager
def work_folder(beside: Path) -> Iterator[Path]:
    """Create a temporary folder for this user alone, in the folder of the archive, and remove it at the end. Raises
    OSError.

    Folders of killed processes, whose lock is free, are removed first. The path goes through the descriptor: otherwise
    the owner of `beside` could put a link in its place, and root would write to its target.
    """
    _remove_old(beside)
    folder = Path(tempfile.mkdtemp(prefix=WORK, dir=beside))
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    work, lock = Path(f"/proc/{os.getpid()}/fd/{opened}"), -1
    try:
        _check_own(opened)
        lock = os.open(work / _UNLOCKED, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, _MODE)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (work / _UNLOCKED).rename(work / _LOCK)  # a file of this name is locked as long as its process lives
        yield work
    finally:
        with contextlib.suppress(OSError):
            if os.path.samestat(folder.lstat(), os.fstat(opened)):
                shutil.rmtree(folder, ignore_errors=True)
        for descriptor in (lock, opened):
            if descriptor >= 0:
                os.close(descriptor)


def _check_own(folder: int) -> None:
    """Raise PermissionError if others may enter an open folder."""
    status = os.fstat(folder)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "another user replaces what is made there")


def _remove_old(beside: Path) -> None:
    for folder in beside.glob(f"{WORK}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    """Return True if no process works in the folder."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - folder.lstat().st_mtime > _LOCKED_WITHIN
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True


def manifest(entries: Iterable[Entry], about: dict[str, object]) -> bytes:
    """Return the list of files with their hashes, and of missing files with the reason."""
    files = [
        {
            "name": entry.name,
            "about": entry.about,
            "how": entry.how,
            "state": entry.state.value,
            "why": entry.why,
            "seconds": round(entry.seconds, 3),
            "bytes": len(entry.content) if entry.is_there else None,
            "sha256": hashlib.sha256(entry.content).hexdigest() if entry.is_there else None,
        }
        for entry in entries
    ]
    return (json.dumps({**about, "files": files}, indent=2) + "\n").encode()


async def written(entries: Iterable[Entry], top: str, work: Path) -> tuple[Path, str, str]:
    """Write the archive into the work folder. Returns its path, the end of its name, and a note. Raises OSError."""
    plain = work / "archive.tar"
    with tarfile.open(plain, "w", format=tarfile.PAX_FORMAT) as tar:
        for entry in entries:
            if entry.is_there:
                row = tarfile.TarInfo(f"{top}/{entry.name}")
                row.size, row.mode, row.mtime = len(entry.content), _MODE, int(time.time())
                tar.addfile(row, io.BytesIO(entry.content))
    environment = surroundings(os.environ)
    zstd, why = shutil.which("zstd", path=environment["PATH"]), ""
    if zstd is not None:
        packed = work / "archive.tar.zst"
        done = await run((zstd, "-q", "-f", "-o", str(packed), str(plain)), environment, _COMPRESSED_WITHIN)
        if done.exit_code == 0:
            return packed, ".tar.zst", ""
        packed.unlink(missing_ok=True)
        why = done.stderr.decode("utf-8", "replace").strip()[:200] or done.error
        if "No space left" in why:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    packed = work / "archive.tar.gz"
    with plain.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target)
    return packed, ".tar.gz", f"zstd failed ({why}): the archive is compressed with gzip" if why else NO_ZSTD


def published(packed: Path, name: Path) -> str:
    """Give the archive its name, for this user alone, and return its hash. Raises FileExistsError, OSError."""
    with packed.open("rb") as file:
        os.fchmod(file.fileno(), _MODE)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    try:
        os.link(packed, name)  # unlike a rename, a link never replaces a file
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS) or name.exists():
            raise
        packed.rename(name)  # the file system has no hard links
    sync_folder(name.parent)
    return digest
