"""The processes on each GPU by NVML's last answer. NVML lists none for a lost GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwarden_collectors.facts import GpuAnswer, GpuFacts
from gpuwarden_collectors.process_stat import is_there

GpuProcesses = Mapping[str, frozenset[int]]
"""PIDs by the slot of their GPU."""
_CALL = "nvmlDeviceGetComputeRunningProcesses"


def gpu_processes(before: GpuProcesses, gpus: Iterable[GpuFacts]) -> GpuProcesses:
    """Return the PIDs on each GPU, by slot. A GPU without an answer keeps those that still exist: PIDs are reused."""
    listed = {gpu.slot: frozenset(process.pid for process in gpu.processes) for gpu in gpus if _says(gpu)}
    return listed | {slot: frozenset(filter(is_there, pids)) for slot, pids in before.items() if slot not in listed}


def _says(gpu: GpuFacts) -> bool:
    return gpu.answer is GpuAnswer.OK and not any(error.call.startswith(_CALL) for error in gpu.errors)
