"""Translates DCGM's return codes into messages with the cause and the remedy."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.dcgm.facts import NOT_ANSWERING, PAUSED

_LONGEST_TEXT = 256


class Code(IntEnum):
    """The dcgmReturn_t values that this package handles (dcgm_structs.h)."""

    NVML_ERROR = -8
    UNINITIALIZED = -10
    TIMEOUT = -11
    VER_MISMATCH = -12
    NO_PERMISSION = -17
    FUNCTION_NOT_FOUND = -20
    CONNECTION_NOT_VALID = -21
    MAX_LIMIT = -24
    LIBRARY_NOT_FOUND = -25
    REQUIRES_ROOT = -29
    PAUSED = -54
    NVML_NOT_LOADED = -56
    NVML_DRIVER_TIMEOUT = -57
    GPUS_DETACHED = -67


class Misfit(CollectorError):  # noqa: N818 - as SourceAbsent, a state of the host
    """The versions of bindings, library and engine do not match. A new process, which reloads them, may succeed."""


_INSTALL = (
    "install the bindings and libdcgm of the DCGM that nv-hostengine belongs to (package datacenter-gpu-manager-4-core, "
    "DCGM 3: datacenter-gpu-manager), or set collectors.dcgm.bindings to them"
)
_ENGINE_GONE = (
    "see 'systemctl status nvidia-dcgm' and /var/log/nv-hostengine.log; a new connection is tried at each pass"
)
_ENGINE_HUNG = "restart nvidia-dcgm.service; the driver may hang as well"
_DRIVER = "the engine cannot use the driver: see 'nvidia-smi' and the kernel log"
_RIGHTS = "let nv-hostengine run as root"

_TO_DO: dict[int, str] = {
    Code.UNINITIALIZED: _ENGINE_GONE,
    Code.CONNECTION_NOT_VALID: _ENGINE_GONE,
    Code.TIMEOUT: _ENGINE_HUNG,
    Code.VER_MISMATCH: _INSTALL,
    Code.FUNCTION_NOT_FOUND: _INSTALL,
    Code.LIBRARY_NOT_FOUND: _INSTALL,
    Code.NVML_ERROR: _DRIVER,
    Code.NVML_NOT_LOADED: _DRIVER,
    Code.NVML_DRIVER_TIMEOUT: _DRIVER,
    Code.GPUS_DETACHED: "the GPUs were detached from the engine: end the maintenance with 'dcgmi set --attach-driver'",
    Code.NO_PERMISSION: _RIGHTS,
    Code.REQUIRES_ROOT: _RIGHTS,
    Code.MAX_LIMIT: "the engine holds at most 64 groups, and some client never deletes its groups: restart nvidia-dcgm",
    Code.PAUSED: f"{PAUSED}, and continues after it",
}
_MISFITS = frozenset((Code.VER_MISMATCH, Code.FUNCTION_NOT_FOUND, Code.LIBRARY_NOT_FOUND))
_GONE = frozenset((Code.UNINITIALIZED, Code.TIMEOUT, Code.CONNECTION_NOT_VALID))
_FINAL = _MISFITS | _GONE


def is_final(error: Any) -> bool:
    """True if the connection is unusable after this error. `error` is a DCGMError of the bindings."""
    return error.value in _FINAL


def failure(undone: str, error: Any) -> CollectorError:
    """Returns the exception to raise; `undone` is the failed action, as in "cannot check the GPUs"."""
    kind = Misfit if error.value in _MISFITS else CollectorError
    to_do = _TO_DO.get(error.value, "see /var/log/nv-hostengine.log")
    return kind(f"{NOT_ANSWERING if error.value in _GONE else ''}{undone}: {described(error)}; {to_do}")


def described(error: Any) -> str:
    return f"{error} ({error.value})"[:_LONGEST_TEXT]
