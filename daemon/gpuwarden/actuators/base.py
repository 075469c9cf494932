"""The interface of actuators: two reads and one write. The reconciler decides whether, when and how often to act.

The reconciler calls one method of one actuator at a time, and always `read` right before `apply` and again after it.
"""

from __future__ import annotations

from typing import Protocol

from gpuwarden.policy.model import FleetCount, Intent, NodeState


class ActuatorError(Exception):
    """A read or write failed: what, why, and what an operator can do next.

    Not `permanent`: the scheduler is unreachable, slow or busy. A write that timed out may still take effect: read
    before repeating it.
    """

    permanent = False


class ActuatorUnavailable(ActuatorError):  # noqa: N818 - a state of the scheduler
    """The scheduler does not answer, or not in time."""


class ActuatorOverloaded(ActuatorUnavailable):
    """The scheduler rejects the request because it has too many."""


class ActuatorWaits(ActuatorUnavailable):
    """The site allows exclusions only at certain moments. The next such moment ends the pause."""


class ActuatorRefused(ActuatorError):  # noqa: N818 - a decision of the scheduler
    """The scheduler refuses until an operator changes something: permission, node name, configuration."""

    permanent = True


class ActuatorDenied(ActuatorRefused):
    """A rule of the site refuses this write. Retried every few minutes, since the rule may be corrected at any time."""


class BudgetUnknown(ActuatorUnavailable):
    """The number of nodes excluded for failures is unknown, so no node is excluded for a failure.

    `permanent`: counting is refused until an operator changes something. `soon`: the scheduler answers other requests,
    and may be able to count again at any moment.
    """

    def __init__(self, why: str, *, permanent: bool = False, soon: bool = False) -> None:
        super().__init__(f"{self.reason}: {why}")
        self.permanent = permanent
        self.soon = soon

    reason = "budget_unknown"


class Counter(Protocol):
    """Counts the fleet for an actuator that does not know all nodes."""

    @property
    def pool(self) -> int | None:
        """Last known number of nodes that share the budget, over which first writes are spread. Never blocks."""

    async def fleet_count(self) -> FleetCount:
        """Count the fleet as `Actuator.fleet_count` does. Raises only BudgetUnknown."""


class Actuator(Protocol):
    """Each call has its own deadline, is safe to repeat, and raises only ActuatorError."""

    name: str
    sheds_load: bool
    """True if each count includes all earlier writes, and the scheduler rejects excess requests: then a first write is
    only delayed if other nodes write, too."""

    async def read(self) -> NodeState:
        """Read the scheduler's current state of this node. The cost is independent of the size of the cluster."""

    async def fleet_count(self) -> FleetCount:
        """Count the other nodes that are excluded for a failure. Called only around an exclusion for a failure."""

    async def apply(self, intent: Intent, state: NodeState) -> None:
        """Write the intent once. `state` was just read and allows it.

        Returns when the scheduler accepted the write; the caller reads it back.
        """

    async def close(self) -> None:
        """End the tasks and processes that the actuator started."""


class Register(Actuator, Protocol):
    """An actuator that knows all nodes, and can count for others. `pool`: the number of nodes as last read."""

    @property
    def pool(self) -> int | None: ...
