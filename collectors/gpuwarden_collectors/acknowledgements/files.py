"""Files in which ranks acknowledge a notice: `ack/<job>/<rank>.json` in the run directory.

The daemon owns the folder `ack`; each job's folder in it belongs to the job's user. Its content is untrusted: only
regular files of that user, with one hard link and at most 4 KiB, are read, and symbolic links are not followed. Every
call blocks: run it in a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from gpuwarden_collectors.acknowledgements.message import Acknowledgement, parse_acknowledgement
from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.dataclass import dataclass

FOLDER = "ack"
_JOB = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")  # as in the library of the job side
_FILE = re.compile(r"(0|[1-9][0-9]{0,5})\.json")
_SIZE = 4096  # bytes
_ENTRIES = 4096  # entries read from one folder
_ROUNDS = 256
"""Most passes that empty a folder: enough for a million files, which a hostile job may have left."""
_REFUSED = 16
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, because the path may be a FIFO.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRead:
    """The acknowledgement files that ranks have written so far."""

    acknowledgements: Mapping[str, tuple[Acknowledgement, ...]]
    """Valid files of each job, by its folder, in the order of ranks."""
    refused: tuple[str, ...] = ()
    """A sentence for each file that is not valid; at most 16."""


class AcknowledgementFiles:
    """Creates, reads and removes the folder of each job.

    `job` is the name of the job's folder, which the job knows too: SLURM_JOB_ID, DSTACK_JOB_ID or GPUWARDEN_JOB.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def make(self, job: str, uid: int) -> None:
        """Creates the folder of a job, writable by that user. An existing folder of this user is left unchanged.

        Raises CollectorError if the name is not a valid folder name, another user owns the folder, or the run directory
        is not writable.
        """
        if not _JOB.fullmatch(job):
            raise CollectorError(
                f"{job[:60]!r} cannot be the name of a folder; the job can acknowledge through the socket only"
            )
        try:
            with self._root(make=True) as root:
                self._make(root, job, uid)
        except OSError as error:
            raise CollectorError(
                f"cannot make {self._run_dir / FOLDER / job} for user {uid}: {error.strerror}; check the run directory"
            ) from error

    def read(self, jobs: Mapping[str, int]) -> FilesRead:
        """Reads the files of these jobs; `jobs` maps folder names to uids. A folder that does not exist has no files.

        Takes about 30 us for each file. Raises nothing.
        """
        by_job: dict[str, tuple[Acknowledgement, ...]] = {}
        refused: list[str] = []
        try:
            with self._root() as root:
                for job, uid in jobs.items():
                    by_job[job] = tuple(_folder(root, job, uid, refused))
        except FileNotFoundError:
            pass
        except OSError as error:
            refused.append(f"{self._run_dir / FOLDER}: {error.strerror or error}")
        return FilesRead(acknowledgements=by_job, refused=tuple(refused[:_REFUSED]))

    def remove_all(self) -> str:
        """Removes the folders of all jobs with their files. Returns a sentence on what is left, or ""."""
        try:
            with self._root() as root:
                left = [self._remove(root, name) for name in _names(root)]
        except OSError as error:
            return "" if isinstance(error, FileNotFoundError) else f"cannot open {self._run_dir / FOLDER}: {error}"
        return "; ".join([text for text in left if text][:_REFUSED])

    @contextmanager
    def _root(self, *, make: bool = False) -> Iterator[int]:
        """Opens the folder of all jobs, in which only this daemon creates or removes anything. Raises OSError."""
        path = self._run_dir / FOLDER
        if make:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o755)
        with _opened(path, _OPEN_FOLDER) as root:
            about = os.fstat(root)
            if about.st_uid != os.geteuid():
                raise PermissionError(0, f"it belongs to user {about.st_uid}; remove it")
            if stat.S_IMODE(about.st_mode) != 0o755:  # the umask of this process
                os.fchmod(root, 0o755)
            yield root

    def _make(self, root: int, job: str, uid: int) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(job, 0o700, dir_fd=root)
        with _opened(job, _OPEN_FOLDER, root) as folder:
            owner = os.fstat(folder).st_uid
            if owner not in (uid, os.geteuid()):
                raise PermissionError(0, f"user {owner} has a job of the same name here")
            if owner != uid:
                os.fchmod(folder, 0o700)
                os.fchown(folder, uid, -1)

    def _remove(self, root: int, job: str) -> str:
        try:
            with _opened(job, _OPEN_FOLDER, root) as folder:
                os.fchown(folder, os.geteuid(), -1)  # the job's user can no longer create files in it
                os.fchmod(folder, 0o700)
                for _ in range(_ROUNDS):
                    for name in (names := _names(folder)):
                        _remove_entry(folder, name)
                    if len(names) < _ENTRIES:
                        break
            os.rmdir(job, dir_fd=root)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"{self._run_dir / FOLDER / job} is left: {error.strerror}"
        return ""


def _folder(root: int, job: str, uid: int, refused: list[str]) -> Iterator[Acknowledgement]:
    try:
        with _opened(job, _OPEN_FOLDER, root) as folder:
            if os.fstat(folder).st_uid != uid:
                refused.append(f"{FOLDER}/{job}: it is not user {uid}'s")
                return
            ranks = sorted(int(name[:-5]) for name in _names(folder) if _FILE.fullmatch(name))
            for rank in ranks:
                try:
                    yield _file(folder, rank, uid)
                except (OSError, ValueError) as error:
                    why = error.strerror if isinstance(error, OSError) else str(error)
                    refused.append(f"{FOLDER}/{job}/{rank}.json: {why}")
    except FileNotFoundError:
        return
    except OSError as error:
        refused.append(f"{FOLDER}/{job}: {error.strerror}")


def _file(folder: int, rank: int, uid: int) -> Acknowledgement:
    """Return the acknowledgement in a rank's file. Raises OSError if it cannot be read, ValueError if it is invalid.

    A file of another user is invalid.
    """
    with _opened(f"{rank}.json", _OPEN_FILE, folder) as file:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise ValueError("it is not a file")
        if about.st_uid != uid or about.st_nlink != 1:
            raise ValueError(f"it belongs to user {about.st_uid} and has {about.st_nlink} names")
        text = os.read(file, _SIZE + 1)
    if len(text) > _SIZE:
        raise ValueError(f"it has more than {_SIZE} bytes")
    return _parsed(text, rank)


def _parsed(text: bytes, rank: int) -> Acknowledgement:
    """Return the acknowledgement in the text. Raises ValueError if it is not valid, or another rank's."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - of the file, not of an argument
    acknowledgement = parse_acknowledgement(document)
    if acknowledgement.rank != rank:
        raise ValueError(f"it is for rank {acknowledgement.rank}")
    return acknowledgement


def _remove_entry(folder: int, name: str) -> None:
    """Raises nothing: an entry that cannot be removed keeps its folder, which `remove_all` reports."""
    with contextlib.suppress(OSError):
        try:
            os.unlink(name, dir_fd=folder)
        except (IsADirectoryError, PermissionError):
            os.rmdir(name, dir_fd=folder)


def _names(folder: int) -> list[str]:
    """List the folder, up to a bound. Raises OSError if it cannot be read."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in islice(entries, _ENTRIES)]


@contextmanager
def _opened(path: Path | str, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open the path, and close it at the end. Raises OSError if it cannot be opened."""
    handle = os.open(path, flags, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)
