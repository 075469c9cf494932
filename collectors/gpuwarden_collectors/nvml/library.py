"""Loads the NVML library, defines its return codes, and reads its texts, which may be invalid UTF-8."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import pynvml

from gpuwarden_collectors.base import SourceAbsent
from gpuwarden_collectors.driver_libraries import FOLDERS, load
from gpuwarden_collectors.facts import NvmlProblem
from gpuwarden_collectors.nvml.options import NvmlOptions

LIBRARY = "libnvidia-ml.so.1"
_LONGEST_TEXT = 256


class Code(IntEnum):
    """The nvmlReturn_t values that this package handles."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    UNKNOWN = 999


PROBLEMS: dict[int, NvmlProblem] = {
    Code.DRIVER_NOT_LOADED: NvmlProblem.DRIVER_NOT_LOADED,
    Code.LIB_RM_VERSION_MISMATCH: NvmlProblem.LIBRARY_MISMATCH,
    Code.NO_PERMISSION: NvmlProblem.NO_PERMISSION,
}


def open_library(options: NvmlOptions) -> Any:
    """Returns pynvml, or the simulated GPUs in its place. Raises SourceAbsent if no library can be loaded."""
    if options.simulate:
        from gpuwarden_collectors.nvml.simulated import SimulatedNvml  # noqa: PLC0415 - only where it is wanted

        return SimulatedNvml(options.simulate, options.simulate_dir)
    try:
        # pynvml only uses the dynamic loader unless a library is already set.
        pynvml.nvmlLib = load(LIBRARY, options.library)
    except OSError as error:
        raise library_absent(options.library, error) from error
    return pynvml


def library_absent(configured: str, error: OSError) -> SourceAbsent:
    """Returns the error for an NVML library that cannot be loaded."""
    if configured:
        return SourceAbsent(
            f"NVML cannot be read: {configured} (collectors.nvml.library) could not be loaded: {error}; "
            "correct the path, or leave the key out to use the driver's own library"
        )
    return SourceAbsent(
        f"NVML cannot be read: {LIBRARY} is not installed, neither where the loader searches nor in {', '.join(FOLDERS)} ({error}); "
        "install the NVIDIA driver, or set collectors.nvml.library to where its library is; a pod gets it from NVIDIA's runtime "
        "class, on GKE and with a driver container from the host's folder, mounted"
    )


def bounded(text: str) -> str:
    return text[:_LONGEST_TEXT]


def read_text(function: Callable[..., Any], *args: Any) -> str:
    """Returns the text that a pynvml function gives; bytes that are not UTF-8 become replacement characters."""
    try:
        return bounded(function(*args))
    except UnicodeDecodeError as error:
        return bounded(error.object.decode(errors="replace"))


def error_text(nvml: Any, code: int) -> str:
    return read_text(str, nvml.NVMLError(code))
