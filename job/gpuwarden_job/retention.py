"""Removes old checkpoints, except the last N, the best one, and those being read.

A reader holds a shared lock on the manifest, which the kernel releases when its process exits.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuwarden_job import durable, staging
from gpuwarden_job.manifest import NAME, Manifest

_NO_LOCKS_HERE = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
MODES = ("min", "max")


def best(saved: Sequence[Manifest], mode: str) -> Manifest | None:
    """Returns the checkpoint with the best metric, the newest of equals; None if no checkpoint has a metric."""
    sign = -1.0 if mode == "min" else 1.0
    ranked = [
        (sign * checkpoint.metric, checkpoint.sequence, checkpoint)
        for checkpoint in saved
        if checkpoint.metric is not None
    ]
    return max(ranked, key=lambda row: row[:2])[2] if ranked else None


def superfluous(saved: Sequence[Manifest], keep_last: int, keep_best: str | None) -> list[Manifest]:
    """Returns the checkpoints to remove: all but the last `keep_last` and the best one.

    `keep_best` is "min", "max" or None.
    """
    ordered = sorted(saved, key=lambda manifest: manifest.sequence)
    kept = {checkpoint.sequence for checkpoint in ordered[-keep_last:]}
    winner = None if keep_best is None else best(ordered, keep_best)
    if winner is not None:
        kept.add(winner.sequence)
    return [checkpoint for checkpoint in ordered if checkpoint.sequence not in kept]


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Prevents others from pruning the checkpoint during the block.

    Raises nothing if it cannot be locked: the hashes then show what is missing.
    """
    handle = None
    try:
        with suppress(OSError):
            handle = durable.handle_of(folder / NAME, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        if handle is not None:
            os.close(handle)


def prune(folder: Path) -> None:
    """Removes a checkpoint unless it is being read.

    Raises nothing: a failed removal is repeated after the next save.
    """
    with suppress(OSError):
        # For writing, since NFS grants an exclusive lock only on a file that is open for writing.
        handle = durable.handle_of(folder / NAME, os.O_RDWR)
        try:
            if _locked(handle):
                staging.discard(folder)
        finally:
            os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _NO_LOCKS_HERE
    return True
