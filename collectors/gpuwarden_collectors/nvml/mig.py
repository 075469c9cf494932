"""The MIG instances and the compute processes of one GPU."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from gpuwarden_collectors.facts import GpuProcess, MigInstance
from gpuwarden_collectors.nvml.calls import Calls
from gpuwarden_collectors.nvml.due import Due
from gpuwarden_collectors.nvml.library import Code, read_text
from gpuwarden_collectors.nvml.processes import list_processes
from gpuwarden_collectors.nvml.readings import MEMORY_V2

_PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
_MOST_PROCESSES = 1024
_MOST_INSTANCES = 64  # today's GPUs have at most 7
_NO_INSTANCE = 0xFFFFFFFF


def instance_id(number: int) -> int | None:
    """Returns an instance id of NVML, or None for NVML's "no instance"."""
    return None if number == _NO_INSTANCE else number


def read_processes(calls: Calls) -> tuple[GpuProcess, ...]:
    """Return the processes on the GPU. Raises Unanswered if the driver does not answer."""
    processes = calls.ask_by(partial(list_processes, calls.nvml, _PROCESSES), _PROCESSES) or ()
    return tuple(
        GpuProcess(
            pid=process.pid,
            gpu_instance=instance_id(process.gpuInstanceId),
            compute_instance=instance_id(process.computeInstanceId),
        )
        for process in processes[:_MOST_PROCESSES]
    )


class Instances:
    """The compute instances of a GPU in MIG mode. Their BAR1 memory is read when `due`, like that of a GPU."""

    def __init__(self, calls: Calls, due: Due) -> None:
        self._calls = calls
        self._due = due
        self._bar1: dict[str, dict[str, int]] = {}

    def read(self, now: float) -> tuple[MigInstance, ...]:
        """Return the instances of the GPU. Raises Unanswered if the driver does not answer."""
        if self._due(now):
            self._due.read(now)
            self._bar1.clear()
        most = min(self._calls.ask("nvmlDeviceGetMaxMigDeviceCount") or 0, _MOST_INSTANCES)
        instances = (self._instance(index) for index in range(most))
        return tuple(instance for instance in instances if instance is not None)

    def _instance(self, index: int) -> MigInstance | None:
        nvml = self._calls.nvml
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(self._calls.handle, index)
            uuid = read_text(nvml.nvmlDeviceGetUUID, handle)
            if uuid not in self._bar1:
                self._bar1[uuid] = _bar1(nvml, handle)
            return MigInstance(
                gpu_instance=nvml.nvmlDeviceGetGpuInstanceId(handle),
                compute_instance=nvml.nvmlDeviceGetComputeInstanceId(handle),
                uuid=uuid,
                profile=read_text(nvml.nvmlDeviceGetName, handle).rpartition("MIG ")[2],
                **_memory(nvml, handle),
                **self._bar1[uuid],
            )
        except nvml.NVMLError as error:
            if error.value != Code.NOT_FOUND:  # there is no instance of this index
                self._calls.failed("nvmlDeviceGetMigDeviceHandleByIndex", error.value)
            return None


def _memory(nvml: Any, handle: Any) -> dict[str, int]:
    """Reads memory in bytes. Older drivers include reserved memory in used memory, and do not report it separately."""
    for version in (MEMORY_V2, None):
        with suppress(nvml.NVMLError):
            memory = nvml.nvmlDeviceGetMemoryInfo(handle, version)
            reserved = {} if version is None else {"memory_reserved_bytes": memory.reserved}
            return reserved | {
                "memory_total_bytes": memory.total,
                "memory_free_bytes": memory.free,
                "memory_used_bytes": memory.used,
            }
    return {}


def _bar1(nvml: Any, handle: Any) -> dict[str, int]:
    with suppress(nvml.NVMLError):
        bar1 = nvml.nvmlDeviceGetBAR1MemoryInfo(handle)
        return {"bar1_total_bytes": bar1.bar1Total, "bar1_used_bytes": bar1.bar1Used, "bar1_free_bytes": bar1.bar1Free}
    return {}
