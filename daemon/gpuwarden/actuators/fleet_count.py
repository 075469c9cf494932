"""The breaker's count for actuators that do not know all nodes: from a scheduler that does, or from Prometheus.

The order is Slurm, Kubernetes, Prometheus. If none is configured, no node is excluded for a failure, unless the site
allows exclusions without a count.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpuwarden.actuators.base import ActuatorError, BudgetUnknown, Counter, Register
from gpuwarden.actuators.hook_gate import HookGate
from gpuwarden.actuators.prometheus_count import PrometheusCounter
from gpuwarden.config.policy import UNCOUNTED
from gpuwarden.policy.model import FleetCount
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.host import boot_id

if TYPE_CHECKING:  # uses its table `[breaker]`
    from gpuwarden.config.model import Config


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
    """Choose the counter. `schedulers`: those that know all nodes, in order of preference."""
    for scheduler in schedulers:
        return SchedulerCounter(scheduler.actuator if isinstance(scheduler, HookGate) else scheduler)
    if config.breaker.prometheus:
        return PrometheusCounter(config.breaker, node=config.node, boot_id=boot_id(config.paths.proc), clock=clock)
    return NoCounter(config.node, allowed=config.breaker.uncounted == "allow")
