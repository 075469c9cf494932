"""Who holds each GPU: as NVML last said, for a GPU that is lost says no more who was on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuwarden_collectors.facts import GpuAnswer, GpuFacts
from gpuwarden_collectors.process_stat import is_there

Holders = Mapping[str, frozenset[int]]
"""The numbers of processes, by the slot of their GPU."""
_CALL = "nvmlDeviceGetComputeRunningProcesses"


def holders(before: Holders, gpus: Iterable[GpuFacts]) -> Holders:
    """Of a GPU that does not say, those that had it before and are still there: their numbers may become others'."""
    said = {gpu.slot: frozenset(process.pid for process in gpu.processes) for gpu in gpus if _says(gpu)}
    return said | {slot: frozenset(filter(is_there, pids)) for slot, pids in before.items() if slot not in said}


def _says(gpu: GpuFacts) -> bool:
    return gpu.answer is GpuAnswer.OK and not any(error.call.startswith(_CALL) for error in gpu.errors)
