"""What an actuator is: a few questions and one write. When to act, how often, and whether at all is not its concern.

The outbox calls one method of one actuator at a time, and always `look` right before `apply` and again after it.
"""

from __future__ import annotations

from typing import Protocol

from gpuwarden.policy.model import Census, Intent, Standing


class ActuatorError(Exception):
    """What could not be asked or done, why, and what an operator can do next.

    Not `permanent`: the scheduler is away, slow or busy. What timed out may still be done later: look before you repeat.
    """

    permanent = False


class ActuatorUnavailable(ActuatorError):  # noqa: N818 - a state of the scheduler
    """It does not answer, or not in time."""


class ActuatorRefused(ActuatorError):  # noqa: N818 - a decision of the scheduler
    """It answered no, and will again until a person changes something: permission, node name, configuration."""

    permanent = True


class BudgetUnknown(ActuatorUnavailable):
    """Nobody can say how many nodes are held out for failures: while that is so, none is for a failure.

    `permanent`: whoever counts refuses to, until a person changes something. `soon`: it is a scheduler that answers otherwise, and
    may count again at any moment.
    """

    def __init__(self, why: str, *, permanent: bool = False, soon: bool = False) -> None:
        super().__init__(f"{self.reason}: {why}")
        self.permanent = permanent
        self.soon = soon

    reason = "budget_unknown"


class Counter(Protocol):
    """Who counts for an actuator that has no register of all nodes."""

    @property
    def pool(self) -> int | None:
        """Nodes that share the budget, as last known; by it first writes are spread. Asked with each look, and waits for nothing."""

    async def census(self) -> Census:
        """As that of an actuator. Raises BudgetUnknown, and nothing else."""


class Actuator(Protocol):
    """Each call has its own deadline, is safe to repeat, and raises ActuatorError and nothing else."""

    name: str

    async def look(self) -> Standing:
        """What stands about this node, freshly read. Cheap for the scheduler, whatever the size of the cluster."""

    async def census(self) -> Census:
        """Who else is held out for a failure. Asked only around an exclusion for a failure."""

    async def apply(self, intent: Intent, standing: Standing) -> None:
        """Write it, once; `standing` was read a moment ago and allows it.

        It returns when the scheduler took the write; whether it stands is read back by the caller.
        """

    async def close(self) -> None:
        """Leave nothing running."""


class Register(Actuator, Protocol):
    """An actuator that knows all nodes, and can count for others. `pool` as of the last look that read it."""

    @property
    def pool(self) -> int | None: ...
