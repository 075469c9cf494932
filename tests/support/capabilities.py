"""A capability of this process put aside for a while, as where a pod was not given it. For root."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522  # linux/capability.h
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def without(*bits: int) -> Iterator[None]:
    """Drop these capabilities of this thread, and of those that it starts meanwhile."""
    data = (_Data * 2)()
    _checked(_LIBC.capget(ctypes.byref(_Header(_VERSION_3, 0)), data))
    before = [each.effective for each in data]
    for bit in bits:
        data[bit // 32].effective &= ~(1 << bit % 32)
    _checked(_LIBC.capset(ctypes.byref(_Header(_VERSION_3, 0)), data))
    try:
        yield
    finally:
        for each, effective in zip(data, before, strict=True):
            each.effective = effective
        _checked(_LIBC.capset(ctypes.byref(_Header(_VERSION_3, 0)), data))


def _checked(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "capset")
