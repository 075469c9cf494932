"""Who uses one GPU: its MIG instances and its compute processes."""

from __future__ import annotations

from typing import Any

from gpuwarden_collectors.facts import GpuProcess, MigInstance
from gpuwarden_collectors.nvml.calls import Calls
from gpuwarden_collectors.nvml.library import Code, read_text

_MOST_PROCESSES = 1024
_MOST_INSTANCES = 64  # today's GPUs have at most 7
_NO_INSTANCE = 0xFFFFFFFF


def instance_id(number: int) -> int | None:
    """A GPU or compute instance id as NVML gives it, None for its "no instance"."""
    return None if number == _NO_INSTANCE else number


def read_processes(calls: Calls) -> tuple[GpuProcess, ...]:
    """Raises Unanswered."""
    processes = calls.ask("nvmlDeviceGetComputeRunningProcesses_v3") or ()
    return tuple(
        GpuProcess(
            pid=process.pid,
            memory_bytes=process.usedGpuMemory,
            gpu_instance=instance_id(process.gpuInstanceId),
            compute_instance=instance_id(process.computeInstanceId),
        )
        for process in processes[:_MOST_PROCESSES]
    )


def read_mig(calls: Calls) -> tuple[MigInstance, ...]:
    """The compute instances of a GPU in MIG mode. Raises Unanswered."""
    most = min(calls.ask("nvmlDeviceGetMaxMigDeviceCount") or 0, _MOST_INSTANCES)
    instances = (_read_instance(calls, index) for index in range(most))
    return tuple(instance for instance in instances if instance is not None)


def _read_instance(calls: Calls, index: int) -> MigInstance | None:
    nvml = calls.nvml
    try:
        handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(calls.handle, index)
        memory = _memory(nvml, handle)
        return MigInstance(
            gpu_instance=nvml.nvmlDeviceGetGpuInstanceId(handle),
            compute_instance=nvml.nvmlDeviceGetComputeInstanceId(handle),
            uuid=read_text(nvml.nvmlDeviceGetUUID, handle),
            profile=read_text(nvml.nvmlDeviceGetName, handle).rpartition("MIG ")[2],
            memory_total_bytes=memory and memory.total,
            memory_used_bytes=memory and memory.used,
        )
    except nvml.NVMLError as error:
        if error.value != Code.NOT_FOUND:  # there is no instance of this index
            calls.failed("nvmlDeviceGetMigDeviceHandleByIndex", error.value)
        return None


def _memory(nvml: Any, handle: Any) -> Any:
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return None
