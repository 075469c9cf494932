"""Slurm as an actuator: this node's drain, by a controller that knows all nodes."""

from __future__ import annotations

from collections.abc import Callable

from gpuwarden.actuators.hook_gate import HookGate
from gpuwarden.config.model import Config
from gpuwarden.features.slurm.node_actuator import SlurmActuator
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.slurm.client import SlurmClient


def register(
    config: Config, clock: Clock, detail: Callable[[], str], slurm: SlurmClient | None
) -> SlurmActuator | HookGate | None:
    """Make the actuator. None with simulated GPUs, for which there is no client."""
    if slurm is None:
        return None
    actuator = SlurmActuator(config.slurm, slurm, clock=clock, detail=detail)
    return HookGate(actuator, clock) if config.slurm.drain_by == "hook" else actuator
