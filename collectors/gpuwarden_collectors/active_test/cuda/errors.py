"""Maps the driver's error codes to the component at fault and to what an operator can do.

Codes and names are those of CUresult in cuda.h. The causes of 2, 46, 100, 221 and 999 at each call were measured on
an H100 with driver 580.
"""

from __future__ import annotations

from typing import NamedTuple

from gpuwarden_collectors.active_test.facts import Obstacle
from gpuwarden_collectors.active_test.obstructed import Obstructed


class CudaError(Obstructed):
    """A driver call failed; the GPU may be healthy. `code` is the CUresult, or 0 if no call was made."""

    def __init__(self, text: str, *, call: str = "", code: int = 0) -> None:
        super().__init__(text)
        self.call = call
        self.code = code


class HostError(CudaError):
    """The host, its driver or the GPU model cannot run the test. A retry would fail the same way."""

    obstacle = Obstacle.UNSUPPORTED


class NotReadyError(CudaError):
    """The system is not ready for CUDA yet. A retry may succeed."""

    obstacle = Obstacle.UNSUPPORTED


class BusyError(CudaError):
    """Another process uses the GPU. A retry may succeed."""

    obstacle = Obstacle.BUSY


class OutOfMemoryError(BusyError):
    """An allocation exceeds the free GPU memory."""


class GpuError(CudaError):
    """The GPU itself, or a kernel on it, failed. The error is sticky: every later call of this process fails."""

    obstacle = Obstacle.GPU_ERROR


class _Row(NamedTuple):
    name: str
    kind: type[CudaError]
    why: str
    remedy: str


_OWN = "this is a fault of gpuwarden or of the driver"
_REPORT = "report it, with the version of the driver"
_COUNTERS = "its error counters and the kernel log show what it was"
_FINDINGS = "see its findings and the kernel log before using it"
_KERNEL_FAILED = "a kernel that is known to be right failed on it"
_UPGRADE = "upgrade the driver"
_MISMATCH = "libcuda and the kernel module are of different versions"
_REBOOT = "reboot, or reload the module of the driver"
_MPS = "the MPS server of this host is in the way"
_STOP_MPS = "stop nvidia-cuda-mps-control, or test when it does not run"
_TAKEN = "other processes have taken its memory"
_LATER = "test it when nobody uses it"

_ROWS: dict[int, _Row] = {
    2: _Row("OUT_OF_MEMORY", OutOfMemoryError, _TAKEN, _LATER),
    34: _Row("STUB_LIBRARY", HostError, "libcuda is the stub of a toolkit", "remove stubs from the path of libraries"),
    36: _Row("CALL_REQUIRES_NEWER_DRIVER", HostError, "the driver is too old", _UPGRADE),
    46: _Row("DEVICE_UNAVAILABLE", BusyError, "its compute mode is exclusive or prohibited", "set it with `nvidia-smi -c 0`"),
    100: _Row(
        "NO_DEVICE", HostError, "CUDA sees no such GPU here, whatever NVML lists",
        "a control group or a container may withhold its device files from this process: test outside of it",
    ),
    101: _Row("INVALID_DEVICE", HostError, "CUDA sees no such GPU here", "test outside of containers and jobs"),
    209: _Row("NO_BINARY_FOR_GPU", HostError, "the kernels are for compute capability 7.0 and newer", "leave this GPU out"),
    214: _Row("ECC_UNCORRECTABLE", GpuError, "it met an uncorrectable memory error", f"{_COUNTERS}; it needs a reset"),
    220: _Row("NVLINK_UNCORRECTABLE", GpuError, "an NVLink of it failed", _COUNTERS),
    221: _Row(
        "JIT_COMPILER_NOT_FOUND", HostError, "libnvidia-ptxjitcompiler.so.1 is not installed",
        "install the whole driver: minimal containers lack it",
    ),
    222: _Row("UNSUPPORTED_PTX_VERSION", HostError, "the driver is older than 450", _UPGRADE),
    226: _Row("CONTAINED", GpuError, "it met a memory error, which was contained", _COUNTERS),
    304: _Row("OPERATING_SYSTEM", HostError, "a call of the kernel failed", "see the kernel log"),
    700: _Row("ILLEGAL_ADDRESS", GpuError, _KERNEL_FAILED, _FINDINGS),
    702: _Row("LAUNCH_TIMEOUT", GpuError, "a kernel did not end in time", "no display may run on a GPU that is tested"),
    714: _Row("HARDWARE_STACK_ERROR", GpuError, _KERNEL_FAILED, _FINDINGS),
    715: _Row("ILLEGAL_INSTRUCTION", GpuError, _KERNEL_FAILED, _FINDINGS),
    716: _Row("MISALIGNED_ADDRESS", GpuError, _KERNEL_FAILED, _FINDINGS),
    717: _Row("INVALID_ADDRESS_SPACE", GpuError, _KERNEL_FAILED, _FINDINGS),
    718: _Row("INVALID_PC", GpuError, _KERNEL_FAILED, _FINDINGS),
    719: _Row("LAUNCH_FAILED", GpuError, _KERNEL_FAILED, _FINDINGS),
    802: _Row(
        "SYSTEM_NOT_READY", NotReadyError, "the fabric or confidential computing is not ready",
        "start nvidia-fabricmanager, or wait until it has ended its work",
    ),
    803: _Row("SYSTEM_DRIVER_MISMATCH", HostError, _MISMATCH, _REBOOT),
    804: _Row("COMPAT_NOT_SUPPORTED_ON_DEVICE", HostError, _MISMATCH, "remove the compat libraries of a toolkit"),
    **{
        code: _Row(name, BusyError, _MPS, _STOP_MPS)
        for code, name in {
            805: "MPS_CONNECTION_FAILED", 806: "MPS_RPC_FAILURE", 807: "MPS_SERVER_NOT_READY",
            808: "MPS_MAX_CLIENTS_REACHED", 809: "MPS_MAX_CONNECTIONS_REACHED", 810: "MPS_CLIENT_TERMINATED",
        }.items()
    },
}  # fmt: skip
_UNKNOWN = 999

_AT_CALL: dict[tuple[str, int], _Row] = {
    ("cuInit", 2): _Row(
        "OUT_OF_MEMORY", HostError, "CUDA reserves some 13 GiB of address space and may not", "lift LimitAS= or `ulimit -v`",
    ),
    ("cuInit", 999): _Row(
        "UNKNOWN", HostError, "/dev/nvidia-uvm is missing or may not be opened",
        "run `nvidia-modprobe -u -c 0`, and allow the device to this process",
    ),
    ("cuMemHostAlloc", 2): _Row(
        "OUT_OF_MEMORY", HostError, "the host has too little memory, or the control group of this process allows too little",
        "allow 512 MiB for each GPU that is tested",
    ),
}  # fmt: skip

_DOING: dict[str, str] = {
    "cuInit": "CUDA cannot be started for",
    "cuDevicePrimaryCtxRetain": "no context can be made on",
    "cuModuleLoadData": "the test's kernels cannot be loaded on",
    "cuMemAlloc_v2": "no memory can be allocated on",
    "cuMemHostAlloc": "no host memory can be pinned for",
    "cuLaunchKernel": "a kernel cannot be started on",
    "cuEventSynchronize": "a kernel or a copy did not end well on",
}


def call_failed(call: str, code: int, gpu: str) -> CudaError:
    """Returns the error for a call that returned `code`; its class names the component at fault."""
    row = _AT_CALL.get((call, code)) or _ROWS.get(code)
    if row is None:
        row = _Row("UNKNOWN" if code == _UNKNOWN else "error", CudaError, _OWN, _REPORT)
    doing = _DOING.get(call, "a call of the driver failed on")
    return row.kind(
        f"{doing} {gpu}: {call} returned {row.name} ({code}): {row.why}; {row.remedy}", call=call, code=code
    )


def library_absent(path: str, error: object) -> HostError:
    """Returns the error for a libcuda that cannot be loaded."""
    return HostError(
        f"CUDA cannot be used: {path} could not be loaded: {error}; install the NVIDIA driver with its CUDA libraries"
    )


def function_absent(path: str, name: str) -> HostError:
    """Returns the error for a libcuda without a function that every driver since 450 has."""
    return HostError(f"CUDA cannot be used: {path} has no {name}: the driver is older than 450; {_UPGRADE}")
