"""The interface of actuators: two reads and one write. When to act, how often, and whether at all is not its concern.

The reconciler calls one method of one actuator at a time, and always `read` right before `apply` and again after it.
"""

from __future__ import annotations

from typing import Protocol

from gpuwarden.policy.model import FleetCount, Intent, NodeState


class ActuatorError(Exception):
    """A read or write failed: what, why, and what an operator can do next.

    Not `permanent`: the scheduler is unreachable, slow or busy. A write that timed out may still be done later: read
    before you repeat it.
    """

    permanent = False


class ActuatorUnavailable(ActuatorError):  # noqa: N818 - a state of the scheduler
    """The scheduler does not answer, or not in time."""


class ActuatorOverloaded(ActuatorUnavailable):
    """The scheduler has too many requests, and says so."""


class ActuatorWaits(ActuatorUnavailable):
    """The site allows exclusions only at certain moments, and this is none. The announcement of the next one ends the
    pause.
    """


class ActuatorRefused(ActuatorError):  # noqa: N818 - a decision of the scheduler
    """The scheduler refused, and will again until an operator changes something: permission, node name, configuration."""

    permanent = True


class ActuatorDenied(ActuatorRefused):
    """A rule of the site refuses this write. Whoever corrects the rule need not know of this node: tried again every few minutes."""


class BudgetUnknown(ActuatorUnavailable):
    """The number of nodes excluded for failures is unknown: meanwhile none is excluded for a failure.

    `permanent`: the count is refused until an operator changes something. `soon`: the scheduler answers other requests,
    and may be able to count again at any moment.
    """

    def __init__(self, why: str, *, permanent: bool = False, soon: bool = False) -> None:
        super().__init__(f"{self.reason}: {why}")
        self.permanent = permanent
        self.soon = soon

    reason = "budget_unknown"


class Counter(Protocol):
    """Counts the fleet for an actuator that has no register of all nodes."""

    @property
    def pool(self) -> int | None:
        """Nodes that share the budget, as last known; first writes are spread by it. Read with each node state; never waits."""

    async def fleet_count(self) -> FleetCount:
        """Count the fleet as `Actuator.fleet_count` does. Raises BudgetUnknown, and nothing else."""


class Actuator(Protocol):
    """Each call has its own deadline, is safe to repeat, and raises ActuatorError and nothing else."""

    name: str
    sheds_load: bool
    """True if every count has all writes before it, and the scheduler refuses requests that it cannot bear: then a first write waits for
    others only where there are others."""

    async def read(self) -> NodeState:
        """Read the scheduler's current state of this node. Cheap for the scheduler, whatever the size of the cluster."""

    async def fleet_count(self) -> FleetCount:
        """Count the other nodes that are excluded for a failure. Called only around an exclusion for a failure."""

    async def apply(self, intent: Intent, state: NodeState) -> None:
        """Write it, once; `state` was read a moment ago and allows it.

        Returns when the scheduler accepted the write; the caller reads it back.
        """

    async def close(self) -> None:
        """End the tasks and processes that the actuator started."""


class Register(Actuator, Protocol):
    """An actuator that knows all nodes, and can count for others. `pool`: its size as last read."""

    @property
    def pool(self) -> int | None: ...
