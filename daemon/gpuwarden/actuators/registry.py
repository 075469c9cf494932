"""The actuators that a configuration enables. Features contribute theirs through their modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gpuwarden.actuators.base import Actuator, Counter, Register
from gpuwarden.actuators.fleet_count import counter
from gpuwarden.actuators.hook_gate import HookGate
from gpuwarden.actuators.marker import marker_actuators
from gpuwarden.actuators.program import exec_actuators
from gpuwarden.features import Excludes, parts
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.slurm.client import SlurmClient

if TYPE_CHECKING:  # the builders read their own tables
    from gpuwarden.config.model import Config

Detail = Callable[[], str]
"""Returns details of an exclusion that do not fit into a reason."""

COUNTED: tuple[Callable[[Config, Clock, Counter], Sequence[Actuator]], ...] = (marker_actuators, exec_actuators)
"""Builders of actuators that only know this node."""


def actuators(config: Config, slurm: SlurmClient | None, clock: Clock, detail: Detail) -> tuple[Actuator, ...]:
    """Make the configured actuators: first those that know all nodes, in the order in which they count for others."""
    registers = parts("register", config.excluding(Excludes.BY_REGISTER)).values()
    made: list[Register | HookGate | None] = [feature.register(config, clock, detail, slurm) for feature in registers]
    schedulers = [actuator for actuator in made if actuator is not None]
    counts = counter(config, schedulers, clock)
    alone = parts("actuator", config.excluding(Excludes.BY_ACTUATOR)).values()
    return (
        *schedulers,
        *(actuator for build in COUNTED for actuator in build(config, clock, counts)),
        *(feature.actuator(config, clock, counts) for feature in alone),
    )
