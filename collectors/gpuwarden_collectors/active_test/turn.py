"""A lock between the workers of a test, for measurements in which they would slow each other down."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_MOST = 60.0
"""Most seconds to wait for the turn. Eight GPUs that copy to and from the host, then from each other, take some 10."""
_PAUSE = 0.05


@contextmanager
def turn(folder: str | None, check: Callable[[], None]) -> Iterator[bool]:
    """Waits for the turn and holds it until the block ends; yields False if another worker kept it for too long.

    The turn is a lock on the folder that the workers share, which the kernel releases when a worker ends. Without a
    folder there is no other worker.
    """
    if folder is None or not Path(folder).is_dir():
        yield True
        return
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield _locked(descriptor, check)
    finally:
        os.close(descriptor)


def _locked(descriptor: int, check: Callable[[], None]) -> bool:
    until = time.monotonic() + WAIT_MOST
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            check()
            time.sleep(_PAUSE)
        else:
            return True
