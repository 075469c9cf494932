"""A host on which no thread can be started, as at a limit on tasks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_BEYOND_ADDRESSES = 1 << 50
"""Bytes. What only exceeds the memory is granted where vm.overcommit_memory is 1, as kubelet sets it."""


@contextmanager
def no_thread_can_be_started() -> Iterator[None]:
    """The kernel refuses each one, for the size of its stack."""
    before = threading.stack_size(_BEYOND_ADDRESSES)
    try:
        yield
    finally:
        threading.stack_size(before)
