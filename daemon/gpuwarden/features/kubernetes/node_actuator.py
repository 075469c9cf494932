"""Writes the taint, the label and, if configured, the cordon of one Node. Policy decides when."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Mapping
from datetime import UTC, datetime

from gpuwarden.actuators.base import ActuatorDenied, ActuatorError, ActuatorRefused, ActuatorUnavailable
from gpuwarden.base.log import get_logger
from gpuwarden.features.kubernetes import node as nodes
from gpuwarden.features.kubernetes import patches
from gpuwarden.features.kubernetes.api import EVENTS, MOVER, Conflict, Json, KubernetesApi, Reply, mapping
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Act, FleetCount, Held, Intent, NodeState, Owner, Why
from gpuwarden.policy.preconditions import same
from gpuwarden_collectors.base import Clock

log = get_logger()

NAME_VARIABLE = "NODE_NAME"
COUNT_AGE = 600.0
"""Seconds for which a count of the pool is used: 8,000 nodes take 16 requests, and all nodes may count at once."""
TRIES = 20
"""Attempts at a write that conflicts with other writers."""
GUARDED_FROM = 3
"""Conflicts after which a write no longer depends on the whole node, since another client writes it continually."""
PAUSE = 0.2


class AnotherMachine(ActuatorUnavailable):
    """The node of that name is another machine, or its kubelet has not reported since the boot and runs no work."""


class KubernetesActuator:
    """Excludes one Kubernetes node. `hostname` and `boot_id` are this machine's; without a boot id, another machine's
    node is not recognised.
    """

    name = "kubernetes"
    sheds_load = True

    def __init__(
        self,
        options: KubernetesOptions,
        *,
        clock: Clock,
        hostname: str,
        boot_id: str = "",
        inherited: Mapping[str, str] = os.environ,
    ) -> None:
        self._options = options
        self._clock = clock
        self.node = options.node or inherited.get(NAME_VARIABLE, "") or hostname.lower()
        self.api = KubernetesApi(options, lambda: clock().wall)
        self._boot_id = boot_id
        self._pool: int | None = None
        self._counted_at: float | None = None
        self._events: set[asyncio.Task[None]] = set()
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing

    @property
    def pool(self) -> int | None:
        """Return the number of nodes in the pool; of the whole cluster until the pool is counted."""
        return self._pool

    async def read(self) -> NodeState:
        node = (await self.read_node()).body
        if self._pool is None:
            # It only spreads writes; a count for the budget would raise the error.
            with contextlib.suppress(ActuatorError):
                self._pool = await self.api.total()
        return nodes.node_state_of(node, self._clock(), self._options.key, self._pool)

    async def read_node(self) -> Reply:
        """Read the node of this machine. Raises AnotherMachine if it is not this machine's."""
        reply = await self.api.node(self.node)
        self.verify(reply.body)
        return reply

    def verify(self, node: Json) -> None:
        theirs = nodes.boot_id_of(node)
        if theirs and self._boot_id and theirs != self._boot_id:
            raise AnotherMachine(
                f"node {self.node} is another machine (boot {theirs[:8]}, here {self._boot_id[:8]}), or its kubelet has not"
                " reported since the boot: check that kubernetes.node is right and the kubelet runs"
            )

    async def fleet_count(self) -> FleetCount:
        held: list[Held] = []
        now = 0.0
        async for page, at in self.api.labelled(self._options.key):
            held += nodes.held(page)
            now = at
        return FleetCount(node=self.node, pool=max(await self._count(), 1), held=tuple(held), now=now)

    async def apply(self, intent: Intent, state: NodeState) -> None:
        """Read, change, and write what was read; again after a conflict, while owner and reason are unchanged."""
        for attempt in range(TRIES):
            reply = await self.read_node()
            node = reply.body
            if not nodes.version_of(node):
                raise ActuatorUnavailable(f"cannot change node {self.node}: the server gave no resourceVersion")
            now = nodes.node_state_of(node, self._clock(), self._options.key, self._pool)
            if (now.owner, now.reason) != (state.owner, state.reason):
                raise ActuatorUnavailable(f"cannot change node {self.node}: it changed since it was read")
            if intent.act is Act.RESTORE and (now.owner is not Owner.OURS or not _meant(intent, now)):
                return
            change = self._change(intent, reply)
            guarded = patches.guarded(node, change) if attempt >= GUARDED_FROM else None
            try:
                await self.api.patch_node(self.node, change if guarded is None else guarded)
            except ActuatorDenied:
                raise
            except (Conflict, ActuatorRefused) as error:
                # The server answers a failed test of a JSON patch like an invalid patch.
                if not isinstance(error, Conflict) and (guarded is None or not await self._changed(node)):
                    raise
                await asyncio.sleep(self._chance.uniform(0.0, PAUSE))
                continue
            self._report(intent, reply.body)
            return
        raise ActuatorUnavailable(f"cannot change node {self.node}: {TRIES} writes in a row conflicted with others")

    async def move(self, node: Json) -> None:
        """Move gpuwarden's exclusion to the present key and effect if an earlier configuration had others."""
        options = self._options
        patch = patches.moved(
            node, key=options.key, effect=options.effect, cordon=options.cordon, slinky=options.slinky
        )
        if patch is not None and nodes.version_of(node):
            await self.api.patch_node(self.node, patch, manager=MOVER)

    async def try_change(self) -> str:
        """Have the server check the real writes without storing them. Returns what was checked. Raises ActuatorError."""
        reply = await self.read_node()
        why, mark = Why.FAILURE, nodes.mark_of(reply.body)
        now = nodes.node_state_of(reply.body, self._clock(), self._options.key, self._pool)
        if now.owner is Owner.FOREIGN:
            return ""
        reason = mark.reason.text if mark else f"{reasons.PREFIX}failure dry_run"
        patch = self._change(
            Intent(act=Act.EXCLUDE, actuator=self.name, why=why, reason=reason, key="", at=self._clock()), reply
        )
        await self.api.patch_node(self.node, patch, dry=True)
        return "taint, label and annotation"

    async def _changed(self, node: Json) -> bool:
        return patches.guards((await self.read_node()).body) != patches.guards(node)

    async def close(self) -> None:
        for task in self._events:
            task.cancel()
        await asyncio.gather(*self._events, return_exceptions=True)
        await self.api.close()

    def _report(self, intent: Intent, node: Json) -> None:
        """Write an event for users of kubectl. Nothing waits for it, and it may get lost."""
        task = asyncio.create_task(
            self._write_event(event(node, self.node, intent, self._clock().wall)), name="kubernetes-event"
        )
        self._events.add(task)
        task.add_done_callback(self._events.discard)

    async def _write_event(self, event: Json) -> None:
        try:
            await self.api.create_event(event)
        except ActuatorError as error:
            log.info("event not written", reason=str(error))

    def _change(self, intent: Intent, reply: Reply) -> Json:
        options = self._options
        if intent.act is Act.RESTORE:
            return patches.restoration(reply.body)
        return patches.exclusion(
            reply.body,
            key=options.key,
            effect=options.effect,
            why=intent.why,
            reason=intent.reason,
            cordon=options.cordon,
            at=reply.at,
            slinky=options.slinky,
        )

    async def _count(self) -> int:
        now = self._clock().boottime
        if self._pool is None or self._counted_at is None or now - self._counted_at >= COUNT_AGE:
            self._pool = await self.api.count(self._options.pool)
            self._counted_at = now
        return self._pool


def _meant(intent: Intent, state: NodeState) -> bool:
    return not intent.reason or same(intent.reason, intent.since, state)


_NAME_MOST = 200  # characters of a node's name in an event's, which has at most 253
_MESSAGE_MOST = 1_000  # characters; the server takes 1,024


def event(node: Json, name: str, intent: Intent, wall: float) -> Json:
    """Return the event of a write, as `kubectl describe node` shows it: under the node's uid."""
    excluded = intent.act is Act.EXCLUDE
    at = datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = intent.reason if excluded else f"restored: {intent.reason}".rstrip(": ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{name[:_NAME_MOST]}.gpuwarden-", "namespace": EVENTS},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Node",
            "name": name,
            "uid": mapping(node.get("metadata")).get("uid", ""),
        },
        "reason": "GpuwardenExcluded" if excluded else "GpuwardenRestored",
        "message": text[:_MESSAGE_MOST],
        "type": "Warning" if excluded else "Normal",
        "source": {"component": "gpuwarden", "host": name},
        "reportingComponent": "gpuwarden",
        "reportingInstance": name,
        "action": "Exclude" if excluded else "Restore",
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
