"""Reads NVML's lists of processes on a GPU, including those of libraries whose records differ from nvml.h.

The first R535 drivers (535.54, 535.86) added a fifth member to the records of the `_v3` functions; later ones removed
it under the same name (XuehaiPan/nvitop#79 and #88, gpuopenanalytics/pynvml#50). If such a list is read with the
header's records, only the first process is correct, and other PIDs are parts of memory sizes. These libraries are
detected by having R535's confidential computing functions, but not the function to which the member was moved.
Drivers before R510 only have the `_v2` functions, with the records of `_v3` (wookayin/gpustat#138).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

_OF_R535, _MOVED_TO = "nvmlDeviceGetConfComputeMemSizeInfo", "nvmlDeviceGetRunningProcessDetailList"
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7  # nvmlReturn_t
_SPARE = 16
"""Additional records, for processes that start between the two calls."""


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
