"""One Node's taint, label and, if the site wants it, cordon. When and whether is decided elsewhere."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden.actuators.kubernetes import node as nodes
from gpuwarden.actuators.kubernetes.api import Conflict, Json, KubernetesApi
from gpuwarden.config_kubernetes import KubernetesOptions
from gpuwarden.policy.looks import same
from gpuwarden.policy.model import Act, Census, Intent, Owner, Standing
from gpuwarden_collectors.base import Clock

if TYPE_CHECKING:  # `[kubernetes]` is its part of it
    from gpuwarden.config import Config

NAME_VARIABLE = "NODE_NAME"
POOL_AGE = 86_400.0
"""Seconds after which the size of the pool is read again for spreading writes by it."""
TRIES = 20
"""Writes that somebody else's may come before, one after the other."""
PAUSE = 0.2


class KubernetesActuator:
    """`hostname`: of this machine."""

    name = "kubernetes"

    def __init__(
        self, options: KubernetesOptions, *, clock: Clock, hostname: str, inherited: Mapping[str, str] = os.environ
    ) -> None:
        self._options = options
        self._clock = clock
        self.node = options.node or inherited.get(NAME_VARIABLE, "") or hostname.lower()
        self.api = KubernetesApi(options, lambda: clock().wall)
        self._pool: int | None = None
        self._pool_at = 0.0
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing

    @property
    def pool(self) -> int | None:
        return self._pool

    async def look(self) -> Standing:
        found = (await self.api.node(self.node)).body
        now = self._clock()
        if self._pool is None or now.boottime - self._pool_at >= POOL_AGE:
            await self._count_pool()
        return nodes.standing_of(found, now, self._options.key, self._pool)

    async def census(self) -> Census:
        pool = await self._count_pool()
        found, now = await self.api.labelled(self._options.key)
        held = nodes.held(found, self._options.key)
        return Census(node=self.node, pool=max(pool, 1), held=held, now=now)

    async def apply(self, intent: Intent, standing: Standing) -> None:
        """Read, change, write what was read; again where somebody else came between, as long as it is the same for us."""
        for _ in range(TRIES):
            found = (await self.api.node(self.node)).body
            now = nodes.standing_of(found, self._clock(), self._options.key, self._pool)
            if (now.owner, now.reason) != (standing.owner, standing.reason):
                raise ActuatorUnavailable(f"cannot change node {self.node}: it changed since it was looked at")
            if intent.act is Act.RESTORE and (now.owner is not Owner.OURS or not _meant(intent, now)):
                return
            try:
                await self.api.patch_node(self.node, self._change(intent, found))
            except Conflict:
                await asyncio.sleep(self._chance.uniform(0.0, PAUSE))
                continue
            return
        raise ActuatorUnavailable(f"cannot change node {self.node}: somebody else wrote it {TRIES} times meanwhile")

    async def close(self) -> None:
        await self.api.close()

    def _change(self, intent: Intent, found: Json) -> Json:
        options = self._options
        if intent.act is Act.RESTORE:
            return nodes.restoration(found, key=options.key)
        return nodes.exclusion(
            found, key=options.key, effect=options.effect, why=intent.why, reason=intent.reason, cordon=options.cordon
        )

    async def _count_pool(self) -> int:
        self._pool, self._pool_at = await self.api.count(self._options.pool), self._clock().boottime
        return self._pool


def _meant(intent: Intent, standing: Standing) -> bool:
    return not intent.reason or same(intent.reason, intent.since, standing)


def kubernetes_actuator(
    config: Config,
    clock: Clock,
    detail: Callable[[], str],  # noqa: ARG001 - as each
) -> KubernetesActuator | None:
    """For the registry."""
    if not config.kubernetes.enabled:
        return None
    return KubernetesActuator(config.kubernetes, clock=clock, hostname=os.uname().nodename)
