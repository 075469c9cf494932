"""The actuators that a configuration enables. Features contribute theirs through their modules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from gpuwarden.actuators.base import Actuator, ActuatorError, BudgetUnknown, Counter, Register
from gpuwarden.actuators.hook_gate import HookGate
from gpuwarden.actuators.marker import marker_actuators
from gpuwarden.actuators.program import exec_actuators
from gpuwarden.actuators.prometheus_count import PrometheusCounter
from gpuwarden.config.policy import UNCOUNTED
from gpuwarden.features import Excludes, parts
from gpuwarden.policy.model import FleetCount
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host import boot_id
from gpuwarden_collectors.slurm.client import SlurmClient

if TYPE_CHECKING:  # the builders read their own tables, the counter `[breaker]`
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


class SchedulerCounter:
    """Counts with a scheduler, for other actuators."""

    def __init__(self, scheduler: Register) -> None:
        self._scheduler = scheduler

    @property
    def pool(self) -> int | None:
        return self._scheduler.pool

    async def fleet_count(self) -> FleetCount:
        try:
            return await self._scheduler.fleet_count()
        except ActuatorError as error:
            raise BudgetUnknown(str(error)) from error


class NoCounter:
    """Cannot count. `allowed`: the site accepts that each node only counts itself."""

    def __init__(self, node: str, *, allowed: bool) -> None:
        self._node = node
        self._allowed = allowed

    @property
    def pool(self) -> int | None:
        return 1

    async def fleet_count(self) -> FleetCount:
        if not self._allowed:
            raise BudgetUnknown(f"no scheduler that can count is configured; {UNCOUNTED}")
        return FleetCount(node=self._node, pool=1)


def counter(config: Config, schedulers: Iterable[Register | HookGate], clock: Clock) -> Counter:
    """Choose the breaker's counter for actuators that do not know all nodes: Slurm, Kubernetes, Prometheus, in this order.

    `schedulers`: those that know all nodes, in order of preference. If none is configured and no Prometheus, no node is
    excluded for a failure, unless the site allows exclusions without a count.
    """
    for scheduler in schedulers:
        return SchedulerCounter(scheduler.actuator if isinstance(scheduler, HookGate) else scheduler)
    if config.breaker.prometheus:
        return PrometheusCounter(config.breaker, node=config.node, boot_id=boot_id(config.paths.proc), clock=clock)
    return NoCounter(config.node, allowed=config.breaker.uncounted == "allow")
