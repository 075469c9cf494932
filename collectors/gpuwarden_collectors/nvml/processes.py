"""NVML's lists of the processes on a GPU, also of a library whose records are longer than those of nvml.h, or that is older.

The first drivers of R535 (535.54, 535.86) gave the records of the functions `_v3` a fifth member, which later ones took back under
the same name (XuehaiPan/nvitop#79 and #88, gpuopenanalytics/pynvml#50). Read by the header, the first process is right, and of the
others one has a part of another's memory as its PID. Such a library has functions of confidential computing, as R535 introduced
them, and lacks the function to which the member was moved.

Drivers before R510 have the functions `_v2` alone, whose records are those of `_v3` (wookayin/gpustat#138).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

_OF_R535, _MOVED_TO = "nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetRunningProcessDetailList"
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7  # nvmlReturn_t
_SPARE = 16
"""Records for processes that begin between the two calls."""


class _LongRecord(ctypes.Structure):
    """nvmlProcessInfo_t of the first drivers of R535."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("usedGpuMemory", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
        ("usedGpuCcProtectedMemory", ctypes.c_ulonglong),
    )


def list_processes(nvml: Any, call: str, handle: Any) -> Sequence[Any]:
    """Return the records of `call`, one of the functions `_v3` for running processes. Raises NVMLError."""
    library = getattr(nvml, "nvmlLib", None)
    if library is not None and not hasattr(library, call):
        call = call.replace("_v3", "_v2")
    elif library is not None and _has_long_records(library):
        return _long_records(nvml, getattr(library, call), handle)
    records: Sequence[Any] = getattr(nvml, call)(handle)
    return records


def _has_long_records(library: Any) -> bool:
    return not hasattr(library, _MOVED_TO) and hasattr(library, _OF_R535)


def _long_records(nvml: Any, function: Any, handle: Any) -> Sequence[Any]:
    count = ctypes.c_uint(0)
    code = function(handle, ctypes.byref(count), None)
    if code == _SUCCESS:
        return ()
    if code == _INSUFFICIENT_SIZE:
        count.value += _SPARE
        records = (_LongRecord * count.value)()
        code = function(handle, ctypes.byref(count), records)
    if code != _SUCCESS:
        raise nvml.NVMLError(code)
    return records[: count.value]
