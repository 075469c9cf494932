"""Protects a rank's worker processes, such as those of PyTorch's DataLoader, from signals to the whole job.

A worker sets its own handler of SIGTERM, and with the start methods spawn and forkserver it inherits none. A signal to
all processes of the job then kills it, PyTorch raises an error in the training, and the rank dies before its save.
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.reduction import DupFd
from types import FrameType
from typing import Any


class Flag:
    """One bit shared with child processes, for any start method."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._byte = mmap.mmap(handle, 1)

    @classmethod
    def create(cls) -> Flag:
        """Returns an unset flag. Without memfd only forked processes share it."""
        handle = -1
        with suppress(OSError, AttributeError):  # macOS has no memfd
            handle = os.memfd_create("gpuwarden-job")
            os.ftruncate(handle, 1)
        return cls(handle)

    def __bool__(self) -> bool:
        return self._byte[0] != 0

    def set(self, value: bool) -> None:
        self._byte[0] = int(value)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._handle < 0:
            raise TypeError("it is shared with forked processes only: use the start method fork")
        return _received, (DupFd(self._handle),)


def _received(handle: Any) -> Flag:
    return Flag(handle.detach())


class KeepWorker:
    """A `worker_init_fn`: signals caught by the guard do not end the worker until the rank has left the guard."""

    def __init__(self, signals: Sequence[int], left: Flag) -> None:
        self._signals, self._left = signals, left

    def __call__(self, worker: object = None) -> None:  # noqa: ARG002 - its number, from the DataLoader
        """Installs the handlers. Raises nothing; call it in the main thread of the worker."""
        for number in self._signals:
            with suppress(OSError, ValueError):
                signal.signal(number, self._signal)

    def _signal(self, number: int, _: FrameType | None) -> None:
        if self._left:
            end_by(number)


def end_by(number: int, handler: Any = signal.SIG_DFL) -> None:
    """Sends a signal to this process with another handler, by default the kernel's, which ends the process."""
    signal.signal(number, handler)
    os.kill(os.getpid(), number)
