"""The node condition `GpuwardenHealthy`: gpuwarden's verdict for `kubectl describe node` and for schedulers' rules.

It is informational and excludes no node. It is written only in mode enforce, since it changes another system.
Conditions that gpuwarden wrote under another configuration are removed, because they would otherwise remain for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from gpuwarden.actuators.base import Actuator, ActuatorError
from gpuwarden.base.log import get_logger
from gpuwarden.features.kubernetes.api import Json, NoSuchNode, NotAccepted, mapping, objects
from gpuwarden.features.kubernetes.node_actuator import AnotherMachine, KubernetesActuator
from gpuwarden.features.kubernetes.node_conditions import left_conditions, own_conditions
from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden.features.kubernetes.repair import LONGEST, Condition, repair_conditions
from gpuwarden.health.model import Health
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.status import detail
from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

log = get_logger()

TYPE = "GpuwardenHealthy"
OSMO_TYPE = "osmo.nvidia.com/GpuHealthFailure"
"""OSMO's own conditions are True if something is wrong."""
SPREAD = 0.2
"""Share of the heartbeat's interval by which it varies at random, up and down: a whole fleet may be started at once."""
RETRY_FIRST = 5.0
RETRY_MOST = 120.0
_LASTING = 5  # failures in a row, about two minutes: a starting kubelet has reported by then
_UNSURE = 8  # writes without a response that are remembered: each may have been done
_FIELDS = ("status", "lastTransitionTime", "lastHeartbeatTime")
_TWIN = "another gpuwarden writes the condition of node {}, too: is a second daemon running on this machine? stop one"
_FOREIGN = "another program keeps the condition {}: choose another type in kubernetes.conditions"
_OPPOSITE = {"True": "False", "False": "True", "Unknown": "Unknown"}


@dataclass(frozen=True, slots=True)
class CurrentCondition:
    """A condition as read from the server, with times as the server writes them."""

    status: str
    since: str
    heartbeat: str


def condition_types(options: KubernetesOptions) -> tuple[str, ...]:
    """Return the types of the conditions that this configuration keeps."""
    own = (TYPE,) * options.condition + (OSMO_TYPE,) * (options.condition and options.osmo)
    return own + tuple(condition.kind for condition in repair_conditions(options))


def conditions_of(snapshot: Snapshot, options: KubernetesOptions, now: Stamp) -> dict[str, Condition]:
    """Return the conditions to keep, by type."""
    own = condition_of(snapshot, now)
    by_type = {TYPE: own, OSMO_TYPE: replace(own, status=_OPPOSITE[own.status])}
    by_type |= {condition.kind: condition.condition(snapshot, now) for condition in repair_conditions(options)}
    return {kind: by_type[kind] for kind in condition_types(options)}


def condition_of(snapshot: Snapshot, now: Stamp) -> Condition:
    """Return the verdict as a condition: True for healthy and for warning. `reason` is the code of the worst check."""
    health, verdict = snapshot.health(now), snapshot.verdict
    if health is Health.UNKNOWN:
        return Condition("Unknown", "unknown", ("; ".join(verdict.unknown) or "nothing was observed")[:LONGEST])
    text = "; ".join(
        f"{f.title.rstrip('.')} ({f.key}): {detail(f)}".rstrip(": ") for f in verdict.findings if not f.shadow
    )
    status = "False" if health is Health.FAILURE else "True"
    code = next(iter(verdict.reasons), "healthy").partition(".")[0]  # the reason of a condition has no dots
    return Condition(status, code, text[:LONGEST] or "nothing is wrong")


class ConditionWriter:
    """Writes the node condition. `publish` never blocks. A new status or reason is written at once, an unchanged one
    each `heartbeat` seconds.

    `error`: what an operator must correct; an unreachable server is not an error of this node.
    """

    def __init__(self, actuator: KubernetesActuator, options: KubernetesOptions, *, clock: Clock) -> None:
        self._actuator = actuator
        self._options = options
        self._heartbeat = options.heartbeat
        self._types = condition_types(options)
        self._repair = frozenset(condition.kind for condition in repair_conditions(options))
        self._clock = clock
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._snapshot: Snapshot | None = None
        self._written: Mapping[str, Condition] | None = None
        # Own heartbeats that the node may have: the last, and those whose write failed since.
        self._stamps: tuple[str, ...] = ()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.error = ""

    def run(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="kubernetes-condition")

    def publish(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if snapshot.ready and self._differs(conditions_of(snapshot, self._options, self._clock())):
            self._wake.set()

    async def stop(self) -> None:
        """Stop writing. The condition stays as it is: its last heartbeat shows how old it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        backoff = Backoff(RETRY_FIRST, RETRY_MOST)
        while True:
            self._wake.clear()
            pause = self._heartbeat
            if self._snapshot is not None and self._snapshot.ready:
                try:
                    await self._write(conditions_of(self._snapshot, self._options, self._clock()))
                    backoff.succeeded()
                except ActuatorError as error:
                    if not backoff.failures:
                        log.warning("node condition not written", reason=str(error))
                    pause = backoff.failed()
                    self.error = str(error) if _for_a_person(error, backoff.failures) else ""
                except Exception:  # a bug in writing must not end it
                    log.exception("writing the node condition failed unexpectedly")
                    backoff.failed()
                    pause = RETRY_MOST
            await self._pause(pause * self._chance.uniform(1 - SPREAD, 1 + SPREAD), hurried=not backoff.failures)

    async def _pause(self, seconds: float, *, hurried: bool) -> None:
        """Wait for so many seconds. If `hurried`, a change of the condition ends the pause."""
        if not hurried:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _write(self, wanted: Mapping[str, Condition]) -> None:
        """Write the conditions. The node is read first: it must be this machine's, and no other daemon may write the
        condition. One for repair that another program keeps is left to it.
        """
        node = (await self._actuator.read_node()).body
        not_moved: ActuatorError | None = None
        try:
            await self._actuator.move(node)
        except ActuatorError as error:  # the conditions are still written, or a bad one would outlive its failure
            not_moved = error
        current = self._current(node)
        foreign = sorted(kind for kind in self._repair & current.keys() if kind not in own_conditions(node))
        twin = bool(self._stamps) and any(
            entry.heartbeat not in self._stamps for kind, entry in current.items() if kind not in self._repair
        )
        now = datetime.fromtimestamp(self._clock().wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._stamps = (*self._stamps[-_UNSURE:], now)
        conditions = [
            self._entry(kind, condition, current.get(kind), now)
            for kind, condition in wanted.items()
            if kind not in foreign
        ]
        conditions += [{"$patch": "delete", "type": kind} for kind in left_conditions(node, self._types)]
        if conditions:
            await self._actuator.api.patch_status(self._actuator.node, {"status": {"conditions": conditions}})
        self._stamps, self._written = (now,), wanted
        self.error = (
            _TWIN.format(self._actuator.node) if twin else _FOREIGN.format(", ".join(foreign)) if foreign else ""
        )
        if not_moved is not None:
            raise not_moved

    def _entry(self, kind: str, condition: Condition, current: CurrentCondition | None, now: str) -> Json:
        since = current.since if current is not None and current.status == condition.status else ""
        return {
            "type": kind,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
            "lastHeartbeatTime": now,
            "lastTransitionTime": since or now,
        }

    def _current(self, node: Json) -> dict[str, CurrentCondition]:
        """Return gpuwarden's conditions by type, of this daemon or of an earlier one."""
        return {
            entry["type"]: CurrentCondition(*(str(entry.get(name) or "") for name in _FIELDS))
            for entry in objects(mapping(node.get("status")).get("conditions"))
            if entry.get("type") in self._types
        }

    def _differs(self, wanted: Mapping[str, Condition]) -> bool:
        """Return True if they must be written at once. The first write always is: it clears old conditions."""
        return self._written is None or self._key(wanted) != self._key(self._written)

    @staticmethod
    def _key(conditions: Mapping[str, Condition]) -> dict[str, tuple[str, str]]:
        """Return the parts whose change is written at once. Figures in the message change with each pass, and are
        written with the heartbeat.
        """
        return {kind: (condition.status, condition.reason) for kind, condition in conditions.items()}


def _for_a_person(error: ActuatorError, failed: int) -> bool:
    """Return True if an operator must correct the error. An error that passes by itself while a machine boots counts
    only when it lasts.
    """
    lasts = isinstance(error, NoSuchNode | AnotherMachine) and failed >= _LASTING
    return error.permanent or isinstance(error, NotAccepted) or lasts


def writers(actuators: Iterable[Actuator], options: KubernetesOptions, clock: Clock) -> list[ConditionWriter]:
    """Make the writers of this node's conditions, one for each actuator of Kubernetes."""
    own = (actuator for actuator in actuators if isinstance(actuator, KubernetesActuator))
    return [ConditionWriter(actuator, options, clock=clock) for actuator in own]
