"""The table of the steps: which services leave the driver for each, and how long its command may run."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.features.repair.helper.services import START_WITHIN
from gpuwarden.features.repair.model import Service, StepKind
from gpuwarden_collectors.dataclass import dataclass

_KEEP_DEVICES_OPEN = ("dcgm_exporter", "dcgm", "persistence")
"""Services that have every GPU open. Not the fabric manager: without it a GPU of an NVSwitch system cannot be reset
alone (`obstacles.py`)."""
_ALL = ("dcgm_exporter", "dcgm", "imex", "fabric_manager", "persistence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A row of the table. `program`: what must be installed for the step."""

    program: str
    stops: tuple[str, ...] = ()
    """Services that are stopped before the command and, if they ran, started after it, whatever its result."""
    within: float
    """Seconds for each run of its command."""


STEPS: Mapping[str, Step] = {
    StepKind.RESTART_SERVICE: Step(program="systemctl", within=START_WITHIN),
    # Eight H100 take some 20 s together. Persistence mode and DCGM hold the devices: "In use by another client".
    StepKind.RESET_GPU: Step(program="nvidia-smi", stops=_KEEP_DEVICES_OPEN, within=120.0),
    StepKind.RESET_ALL: Step(program="nvidia-smi", stops=_ALL, within=300.0),
    StepKind.RELOAD_DRIVER: Step(program="modprobe", stops=_ALL, within=120.0),
    # scontrol waits 10 s for a controller, and the site's command answers when it has taken the order.
    StepKind.REBOOT: Step(program="", within=60.0),
}
PERSISTENCE_WITHIN = 30.0
"""Seconds to switch the persistence mode of one GPU."""
LOADED_WITHIN = 120.0
"""Seconds to load a module that a step has left unloaded."""
ON_ALL_GPUS = frozenset({StepKind.RESET_ALL, StepKind.RELOAD_DRIVER})
"""Steps for which no process may be on any GPU."""
DISTURBS_JOBS = frozenset({Service.FABRIC_MANAGER, Service.IMEX})
"""Services whose restart can end what runs on the GPUs: CUDA jobs use the fabric that they manage."""

MODULES = ("gdrdrv", "nvidia_fs", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia")
"""Modules of the driver, and those known to use it, in the order of unloading; they are loaded in reverse order."""
