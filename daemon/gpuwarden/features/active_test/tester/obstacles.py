"""Finds why a GPU cannot be tested now, from its readings. Pure; each obstacle includes what to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwarden_collectors.active_test.facts import Obstacle
from gpuwarden_collectors.active_test.host_facts import GpuSettings, HostFacts
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts

Found = tuple[Obstacle, str]
"""The obstacle, and a line for people."""

_MPS = "nvidia-cuda-mps"
"""Name as in /proc/PID/comm, which is cut to 15 characters: nvidia-cuda-mps-server and -control."""
_PROHIBITED = 2
_MODES = {1: "exclusive thread", _PROHIBITED: "prohibited", 3: "exclusive process"}
"""nvmlComputeMode_t."""
_ACTIONS = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain its peers",
    4: "drain and reset the GPU",
    5: "recover the IMEX domain",
    6: "reset its bus",
    7: "reboot the system",
}
"""Values of nvmlDeviceGpuRecoveryAction_t, and what they request."""
_SHOWN = 4
_ANSWERS = {
    GpuAnswer.LOST: (Obstacle.RESET_FIRST, "the driver has lost the GPU: reset it or reboot the node"),
    GpuAnswer.RESET_REQUIRED: (
        Obstacle.RESET_FIRST,
        "the GPU requires a reset: nvidia-smi --gpu-reset, or reboot the node",
    ),
    GpuAnswer.TIMEOUT: (Obstacle.UNSUPPORTED, "the GPU does not answer in time: see gpuwarden status"),
    GpuAnswer.HUNG: (Obstacle.UNSUPPORTED, "the GPU does not answer in time: see gpuwarden status"),
    GpuAnswer.UNKNOWN: (Obstacle.UNSUPPORTED, "the GPU answers only with errors: see gpuwarden status"),
}


def obstacle(gpu: GpuFacts, host: HostFacts, comm: Callable[[int], str]) -> Found | None:
    """Return the first obstacle that applies. `comm`: returns the name of a process, empty if it is not known."""
    settings = host.settings.get(gpu.slot, GpuSettings())
    return (
        _ANSWERS.get(gpu.answer)
        or _unidentified(gpu)
        or _confidential(host)
        or _divided(gpu)
        or _asks_for_reset(gpu)
        or _used(gpu, settings, comm)
        or _mode(settings)
    )


def by_settings(gpu: GpuFacts, host: HostFacts) -> str:
    """Return why it can never be tested with the host's present settings; "" if it can."""
    settings = host.settings.get(gpu.slot, GpuSettings())
    reason = _confidential(host) or _divided(gpu) or _mode(settings)
    return "" if reason is None else reason[1]


def _unidentified(gpu: GpuFacts) -> Found | None:
    if gpu.uuid and gpu.slot:
        return None
    return Obstacle.UNSUPPORTED, "the GPU does not give its UUID and PCI address: see gpuwarden status"


def _confidential(host: HostFacts) -> Found | None:
    if not host.confidential:
        return None
    return Obstacle.UNSUPPORTED, "confidential computing is on, with which the test was never tried: nothing to do"


def _divided(gpu: GpuFacts) -> Found | None:
    if not gpu.readings.mig_mode:
        return None
    return (
        Obstacle.UNSUPPORTED,
        f"MIG is on, where a test sees one slice only: nvidia-smi -i {gpu.index} -mig 0, then reset",
    )


def _asks_for_reset(gpu: GpuFacts) -> Found | None:
    readings = gpu.readings
    if readings.remapped_rows_pending or readings.retired_pages_pending:
        return Obstacle.RESET_FIRST, "bad memory is replaced at the next reset of the GPU: reset it, then test"
    if readings.repair_channel_pending or readings.repair_tpc_pending:
        return Obstacle.RESET_FIRST, "a repair of the GPU is pending: reset it, then test"
    if action := readings.recovery_action:
        return (
            Obstacle.RESET_FIRST,
            f"the driver asks for a recovery: {_ACTIONS.get(action, f'action {action}')}, then test",
        )
    return None


def _used(gpu: GpuFacts, settings: GpuSettings, comm: Callable[[int], str]) -> Found | None:
    pids = [*(process.pid for process in gpu.processes), *settings.graphics]
    if not pids:
        return None
    names: Mapping[int, str] = {pid: comm(pid) for pid in pids[:_SHOWN]}
    if any(name.startswith(_MPS) for name in names.values()):
        return (
            Obstacle.BUSY,
            "an MPS server holds the GPU, behind which processes cannot be seen: echo quit | nvidia-cuda-mps-control",
        )
    shown = ", ".join(f"{pid} ({name})" if name else str(pid) for pid, name in names.items())
    more = f" and {len(pids) - _SHOWN} more" if len(pids) > _SHOWN else ""
    return Obstacle.BUSY, f"used by process {shown}{more}: wait for its end, or end it"


def _mode(settings: GpuSettings) -> Found | None:
    if not settings.compute_mode:
        return None
    name = _MODES.get(settings.compute_mode, f"mode {settings.compute_mode}")
    if settings.compute_mode == _PROHIBITED:
        return Obstacle.UNSUPPORTED, f"its compute mode is {name}: nvidia-smi -c 0"
    return (
        Obstacle.UNSUPPORTED,
        f"its compute mode is {name}, in which the test would block a job that starts: nvidia-smi -c 0",
    )
