"""Drains one node. Policy decides when; the read before a write prevents overwriting another party's drain."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from gpuwarden.actuators.base import ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden.features.slurm.node_state import fleet_count_of, largest, node_state_of
from gpuwarden.policy.model import Act, Flag, FleetCount, Intent, NodeState, Owner
from gpuwarden.policy.reasons import PREFIX, line
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.slurm import errors, nodes
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.options import SlurmOptions
from gpuwarden_collectors.slurm.settings import read_partition_settings, read_start

P = ParamSpec("P")
T = TypeVar("T")


def actuator_errors(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Decorate a function so that it raises ActuatorError in place of Slurm's errors."""

    @wraps(function)
    async def translated(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await function(*args, **kwargs)
        except errors.Refused as error:
            raise ActuatorRefused(str(error)) from error
        except errors.Unreachable as error:
            raise ActuatorUnavailable(str(error)) from error
        except errors.SlurmError as error:
            raise ActuatorError(str(error)) from error

    return translated


RETURNED = "returned by gpuwarden: a drain with this text is Slurm's own, see slurmctld's log"
"""Replaces gpuwarden's reason when the node returns. From 23.11 on, without slurmdbd, Slurm keeps the reason of a node
that returns until its next job (src/interfaces/accounting_storage.c, clusteracct_storage_g_node_up), and writes none if
it drains a node that has one (src/slurmctld/node_mgr.c, _drain_node). It ignores an empty one."""
_POOL_AGE = 86_400.0  # seconds after which the size of the partition is read again
_DETAIL = {"comment": "Comment", "extra": "Extra"}
_LONGEST_DETAIL = 1000  # characters


class SlurmActuator:
    """Drains one node. `detail` returns the text for the node's Comment or Extra, if the site wants one. The owner of
    `client` closes it.
    """

    name = "slurm"

    sheds_load = False

    def __init__(
        self, options: SlurmOptions, client: SlurmClient, *, clock: Clock, detail: Callable[[], str] = str
    ) -> None:
        self._options = options
        self._clock = clock
        self._detail = detail
        self.commands = client.routine
        self._pool: int | None = None
        self._pool_at = 0.0
        self._last: NodeFacts | None = None
        self._noted: tuple[str, float | None] | None = None  # reason, and its time, of a node that runs jobs
        self._emptied: tuple[str, float | None] | None = None  # likewise, of a node that is drained and empty
        self._stood: float | None = None  # Unix time of the last read if it showed our exclusion, else 0; None: no read
        self._started = 0.0

    @property
    def pool(self) -> int | None:
        return self._pool

    async def close(self) -> None:
        """No-op: the Slurm client is owned and closed by the caller."""

    @actuator_errors
    async def read(self) -> NodeState:
        name = await self.commands.node_name(again=True)
        node = await nodes.read_node(self.commands, name)
        if node.is_out:  # a return gate and a repair wait for the end of its jobs
            node = await self._with_suspended_jobs(await nodes.without_ended_jobs(self.commands, node))
        elif node.reason and node.says_jobs:
            node = await self._unmasked(node)
        self._last = node
        now = self._clock()
        if self._pool is None or now.boottime - self._pool_at >= _POOL_AGE:
            self._pool, self._pool_at = await self._pool_size(node), now.boottime
        state = node_state_of(node, now, self._pool)
        if state.owner is not Owner.NONE:
            self._started = 0.0
        elif self._stood != 0.0:
            self._started = await self._start_after(self._stood or 0.0)
        self._stood = now.wall if state.owner is Owner.OURS else 0.0
        return replace(state, started=self._started)

    async def _with_suspended_jobs(self, node: NodeFacts) -> NodeFacts:
        """Return the node with a flag for suspended jobs. None starts on a drained node: once it had none, squeue is not
        queried again for this drain.
        """
        noted = node.reason, node.reason_at
        if node.base != "idle" or noted == self._emptied:
            return node
        node = await nodes.with_suspended_jobs(self.commands, node)
        self._emptied = noted if node.is_empty else None
        return node

    async def _unmasked(self, node: NodeFacts) -> NodeFacts:
        """Return the node with the state that mixed hides. Whoever sets a node down by scontrol gives a reason.

        A node whose reason was there while a job ran is not queried again, since a node that is down runs none. If
        squeue fails, the node is returned as it was read, so that it can still be drained.
        """
        noted = node.reason, node.reason_at
        if noted == self._noted:
            return node
        try:
            if await nodes.runs_jobs(self.commands, node.name):
                self._noted = noted
                return node
            return await nodes.without_ended_jobs(self.commands, node)
        except errors.SlurmError:
            return node

    async def _start_after(self, stood: float) -> float:
        """Return when the controller started, or took over, if that was after `stood`, else 0. Slurm keeps whole seconds."""
        started = await read_start(self.commands, self._clock().wall)
        return started if started >= int(stood) else 0.0

    async def _pool_size(self, node: NodeFacts) -> int | None:
        """Return the number of nodes in the pool, None if unknown. Used only to spread writes: the budget uses the
        exact count of `fleet_count`.
        """
        try:
            partitions = await read_partition_settings(self.commands)
        except errors.SlurmError:
            return None
        sizes = {partition.name: partition.total_nodes for partition in partitions}
        if self._options.partitions:
            return sum(sizes.get(name, 0) for name in self._options.partitions)
        return max((sizes.get(name, 0) for name in node.partitions), default=1)

    @actuator_errors
    async def fleet_count(self) -> FleetCount:
        node = self._last or await nodes.read_node(self.commands, await self.commands.node_name())
        names = self._options.partitions or node.partitions
        if not names:  # no partition has it: no job runs there, and no node shares its budget
            return FleetCount(node=node.name, pool=1, now=self._clock().wall)
        partitions = await nodes.read_partitions(self.commands, names)
        if not partitions:
            raise errors.OddAnswer(
                f"cannot count the excluded nodes in partition {','.join(names)}: Slurm lists no node of it"
            )
        chosen = partitions if self._options.partitions else [largest(partitions)]
        fleet_count = fleet_count_of(node, chosen, self._clock().wall)
        self._pool, self._pool_at = fleet_count.pool, self._clock().boottime
        return fleet_count

    @actuator_errors
    async def apply(self, intent: Intent, state: NodeState) -> None:
        name = await self.commands.node_name()
        if intent.act is Act.EXCLUDE:
            undone, settings = f"cannot drain {name}", ["State=DRAIN", f"Reason={intent.reason}", *self._detail_set()]
        else:  # UNDRAIN clears the drain flag and nothing else, but does not clear DOWN; RESUME would also cancel a reboot.
            written = "RESUME" if Flag.DOWN in state.flags else "UNDRAIN"
            settings = [f"State={written}", f"Reason={RETURNED}", *self._detail_cleared()]
            undone = f"cannot undrain {name}"
        await self.commands.change(undone, "scontrol", "update", f"NodeName={name}", *settings)

    def _detail_set(self) -> list[str]:
        text = line(self._detail()) if self._detail_is_free() else ""
        return [f"{_DETAIL[self._options.detail]}={PREFIX}{text}"[:_LONGEST_DETAIL]] if text else []

    def _detail_cleared(self) -> list[str]:
        current = self._current_detail()
        return [f"{_DETAIL[self._options.detail]}="] if current.startswith(PREFIX) else []

    def _detail_is_free(self) -> bool:
        """Return True if the field is empty, or written by gpuwarden."""
        current = self._current_detail()
        return self._options.detail in _DETAIL and (not current or current.startswith(PREFIX))

    def _current_detail(self) -> str:
        fields = {"comment": self._last.comment, "extra": self._last.extra} if self._last else {}
        return fields.get(self._options.detail, "")
