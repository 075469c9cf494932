"""Which actuators a configuration asks for. The only list to edit when one is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gpuwarden.actuators.base import Actuator
from gpuwarden.actuators.slurm.actuator import slurm_actuator
from gpuwarden_collectors.base import Clock

if TYPE_CHECKING:  # the builders take their own part of it
    from gpuwarden.config import Config

Detail = Callable[[], str]
"""Says more of why this node is out than a reason has room for."""

Builder = Callable[["Config", Clock, Detail], Actuator | None]
"""None if the configuration does not ask for this one."""

BUILDERS: tuple[Builder, ...] = (slurm_actuator,)


def actuators(config: Config, clock: Clock, detail: Detail) -> tuple[Actuator, ...]:
    made = (build(config, clock, detail) for build in BUILDERS)
    return tuple(actuator for actuator in made if actuator is not None)
