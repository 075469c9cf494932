"""A mark that orders a restart on another node, for launchers that lose the exit codes of their ranks.

torchrun exits with 1 for any exit code of its workers. A rank that failed because of its node, or that saved and left,
writes a file; the script that started torchrun converts it to the scheduler's code:

    python -m gpuwarden_job clear /tmp/reschedule          # marks of an earlier attempt would reschedule for ever
    torchrun … && status=0 || status=$?                    # so that `set -e` does not end the script here
    exit "$(python -m gpuwarden_job exit-code /tmp/reschedule "$status")"
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuwarden_job import durable

_log = logging.getLogger("gpuwarden_job")

_PREFIX = "reschedule.rank-"
_TEXT = 2000  # characters

# By name, so that torch is not needed. ChildFailedError is missing, because torchrun raises it for every bug, too.
_CLASSES = ("DistBackendError", "DistNetworkError", "DistStoreError", "ConnectionError")
# cudaGetErrorString of hardware faults. An illegal access or a launch failure is mostly the program's.
_TEXTS = (
    "NCCL error",
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "hardware stack error",
    "busy or unavailable",
    "system not yet initialized",
    "gloo/transport/",  # a connection to a peer; the ranks also use Gloo for agreement when they train on GPUs
)


def transient(error: BaseException) -> bool:
    """True if, by class and text, the error may not occur on another node."""
    named = any(kind.__name__ in _CLASSES for kind in type(error).__mro__)
    return named or any(text in str(error) for text in _TEXTS)


@contextmanager
def reschedulable(folder: str | Path, rank: int = 0, errors: tuple[type[BaseException], ...] = ()) -> Iterator[None]:
    """Marks transient exceptions, and `errors`, when they leave the block.

    A rank that torchrun restarts removes its earlier mark.
    """
    with suppress(OSError):
        _mark_of(Path(folder), rank).unlink()
    try:
        yield
    except BaseException as error:
        if isinstance(error, errors) or (isinstance(error, Exception) and transient(error)):
            mark(Path(folder), rank, f"{type(error).__name__}: {error}")
        raise


def mark(folder: Path, rank: int, text: str) -> None:
    """Writes the mark. Raises nothing, in order not to hide the error in progress."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        durable.replace(_mark_of(folder, rank), f"{text[:_TEXT]}\n".encode(errors="replace"))
    except OSError as error:
        _log.warning("cannot write the mark for rescheduling: %s", error)


def _mark_of(folder: Path, rank: int) -> Path:
    return folder / f"{_PREFIX}{rank}"


def marks(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.startswith(_PREFIX))
    except OSError:
        return []


def clear(folder: Path) -> None:
    for path in marks(folder):
        with suppress(FileNotFoundError):
            path.unlink()


def exit_code(folder: Path, status: int, code: int) -> int:
    """Returns 0 for `status` 0, otherwise `code` if any rank left a mark, otherwise the launcher's `status`."""
    return code if status != 0 and marks(folder) else status
