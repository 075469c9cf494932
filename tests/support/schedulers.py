"""A scheduler of many nodes in memory: one exclusion and one reason for each, whole seconds, no compare-and-set, as Slurm."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuwarden.actuators.base import ActuatorError
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Act, Flag, FleetCount, Held, Intent, NodeState, Owner, Why
from gpuwarden_collectors.facts import Stamp

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Node:
    """`reason` of the exclusion in force, "" if there is none. `started`: as in NodeState, while there is none. `waits`: its flags wait for
    the end of its jobs, and new ones start meanwhile.
    """

    reason: str = ""
    since: float = 0.0
    flags: frozenset[Flag] = frozenset()
    started: float = 0.0
    empty: bool | None = None
    waits: bool = False


@dataclass(slots=True)
class Cluster:
    """`clock` gives Unix time. `writes` are (node, act, reason) in the order in which they took effect.

    `spread` False: nobody knows how many there are before they count, so that nobody waits for the others.
    """

    clock: Callable[[], float]
    nodes: dict[str, Node] = field(default_factory=dict)
    writes: list[tuple[str, str, str]] = field(default_factory=list)
    spread: bool = True

    def exclude(self, name: str, reason: str) -> None:
        old = self.nodes[name]
        if old.reason != reason:  # the same text again changes nothing, not even the time
            self.nodes[name] = replace(old, reason=reason, since=float(int(self.clock())))
            self.writes.append((name, "exclude", reason))

    def restore(self, name: str) -> None:
        if self.nodes[name].reason:
            self.writes.append((name, "restore", self.nodes[name].reason))
        self.nodes[name] = replace(self.nodes[name], reason="", since=0.0)

    def state(self, name: str, at: Stamp) -> NodeState:
        node = self.nodes[name]
        own = reasons.parse(node.reason)
        owner = Owner.NONE if not node.reason else Owner.FOREIGN if own is None else Owner.OURS
        return NodeState(
            at=at, owner=owner, why=own.why if own else None, reason=own.text if own else node.reason,
            suffix=own.suffix if own else "", since=node.since, boot=own.boot if own else "",
            instance=own.instance if own else "", flags=node.flags, empty=node.empty,
            schedulable=not node.reason and (node.waits or not node.flags), started=0.0 if node.reason else node.started,
            state="drained" if node.reason else "idle", pool=len(self.nodes) if self.spread else 1,
        )  # fmt: skip

    def fleet_count(self, name: str) -> FleetCount:
        own = {other: reasons.parse(node.reason) for other, node in self.nodes.items()}
        held = (
            Held(self.nodes[n].since, n, r.domain) for n, r in own.items() if r is not None and r.why is Why.FAILURE
        )
        return FleetCount(node=name, pool=len(self.nodes), held=tuple(held), now=self.clock())


class Client:
    """The actuator of one node. Each call takes `latency` seconds before it has its effect. `before` and `after` run around each call, with its name; what they raise, the call raises."""

    def __init__(self, cluster: Cluster, node: str, clock: Callable[[], Stamp]) -> None:
        self.name = "fake"
        self.sheds_load = False
        self.latency = 0.0
        self.node = node
        self.calls: list[str] = []
        self.away: ActuatorError | None = None
        self.before: Callable[[str], None] = lambda _: None
        self.after: Callable[[str], None] = lambda _: None
        self._cluster = cluster
        self._clock = clock

    async def read(self) -> NodeState:
        await self._begin("read")
        state = self._cluster.state(self.node, self._clock())
        return self._end("read", state)

    async def fleet_count(self) -> FleetCount:
        await self._begin("fleet_count")
        return self._end("fleet_count", self._cluster.fleet_count(self.node))

    async def apply(self, intent: Intent, state: NodeState) -> None:
        await self._begin("apply")
        if intent.act is Act.EXCLUDE:
            self._cluster.exclude(self.node, intent.reason)
        else:
            self._cluster.restore(self.node)
        self._end("apply", None)

    async def close(self) -> None:
        pass

    async def _begin(self, call: str) -> None:
        self.calls.append(call)
        self.before(call)
        await asyncio.sleep(self.latency)
        if self.away is not None:
            raise self.away

    def _end(self, call: str, answer: Answer) -> Answer:
        self.after(call)
        return answer
