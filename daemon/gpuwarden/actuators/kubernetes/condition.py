"""The node condition `GpuwardenHealthy`: what gpuwarden says, where `kubectl describe node` and schedulers' rules look.

It is told and takes nobody out. Only in mode enforce, since it is written to somebody else's system.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuwarden.actuators.base import ActuatorError
from gpuwarden.actuators.kubernetes.actuator import AnotherMachine, KubernetesActuator
from gpuwarden.actuators.kubernetes.api import Json, NoSuchNode, NotAccepted, mapping, objects
from gpuwarden.base.log import get_logger
from gpuwarden.health.model import Health
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.status import detail
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

log = get_logger("gpuwarden")

TYPE = "GpuwardenHealthy"
OSMO_TYPE = "osmo.nvidia.com/GpuHealthFailure"
"""OSMO's own conditions are True when something is wrong."""
SPREAD = 0.2
"""Of the heartbeat's interval, up and down, by chance: a fleet is started in one go."""
RETRY_FIRST = 5.0
RETRY_MOST = 120.0
_LASTING = 5  # failures in a row, about two minutes: a kubelet that starts has reported by then
_LONGEST = 1_000  # characters of a message
_UNSURE = 8  # writes without an answer that are remembered: each may be done
_TOLD = ("status", "lastTransitionTime", "lastHeartbeatTime")
_TWIN = "another gpuwarden writes the condition of node {}, too: look for a second daemon on this machine, and stop one"
_OPPOSITE = {"True": "False", "False": "True", "Unknown": "Unknown"}


@dataclass(frozen=True, slots=True)
class Told:
    """A condition as it stands; its times in the server's words."""

    status: str
    since: str
    heartbeat: str


@dataclass(frozen=True, slots=True)
class Condition:
    """`status` True for healthy and for warning, which both may take work; `reason` is the worst check's code."""

    status: str
    reason: str
    message: str


def condition_of(snapshot: Snapshot, now: Stamp) -> Condition:
    health, verdict = snapshot.health(now), snapshot.verdict
    if health is Health.UNKNOWN:
        return Condition("Unknown", "unknown", ("; ".join(verdict.unknown) or "nothing was observed")[:_LONGEST])
    told = "; ".join(f"{f.title.rstrip('.')} ({f.key}): {detail(f)}".rstrip(": ") for f in verdict.findings)
    status = "False" if health is Health.FAILURE else "True"
    code = next(iter(verdict.reasons), "healthy").partition(".")[0]  # the reason of a condition has no dots
    return Condition(status, code, told[:_LONGEST] or "nothing is wrong")


class ConditionKeeper:
    """`publish` never waits. A new status or reason is written at once, the same again each `heartbeat` seconds.

    `trouble`: what only a person can mend; a server that is away is no fault of this node.
    """

    def __init__(self, actuator: KubernetesActuator, *, heartbeat: float, osmo: bool, clock: Clock) -> None:
        self._actuator = actuator
        self._heartbeat = heartbeat
        self._types = (TYPE, OSMO_TYPE) if osmo else (TYPE,)
        self._clock = clock
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._snapshot: Snapshot | None = None
        self._written: Condition | None = None
        # Heartbeats of ours that may stand: the last, and those whose write failed since.
        self._stamps: tuple[str, ...] = ()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.trouble = ""

    def run(self) -> None:
        self._task = asyncio.create_task(self._keep(), name="kubernetes-condition")

    def publish(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        if snapshot.ready and self._key(condition_of(snapshot, self._clock())) != self._key(self._written):
            self._wake.set()

    async def stop(self) -> None:
        """The condition stays as it is: its last heartbeat tells how old it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        failed = 0
        while True:
            self._wake.clear()
            pause = self._heartbeat
            if self._snapshot is not None and self._snapshot.ready:
                try:
                    await self._write(condition_of(self._snapshot, self._clock()))
                    failed = 0
                except ActuatorError as error:
                    if not failed:
                        log.warning("the node condition is not written", reason=str(error))
                    pause, failed = min(RETRY_MOST, RETRY_FIRST * 2.0 ** min(failed, 8)), failed + 1
                    self.trouble = str(error) if _for_a_person(error, failed) else ""
                except Exception:  # a fault of ours in telling must not end it
                    log.exception("the node condition failed unexpectedly")
                    pause, failed = RETRY_MOST, failed + 1
            await self._pause(pause * self._chance.uniform(1 - SPREAD, 1 + SPREAD), hurried=not failed)

    async def _pause(self, seconds: float, *, hurried: bool) -> None:
        """Until something is to be told, but not before the time where the server has just failed."""
        if not hurried:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    async def _write(self, condition: Condition) -> None:
        """The node is read first: it must be this machine's, and nobody else's word must stand there."""
        stands = self._standing((await self._actuator.read()).body)
        twin = bool(self._stamps) and any(entry.heartbeat not in self._stamps for entry in stands.values())
        now = datetime.fromtimestamp(self._clock().wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._stamps = (*self._stamps[-_UNSURE:], now)
        conditions = [self._entry(kind, condition, stands.get(kind), now) for kind in self._types]
        await self._actuator.api.patch_status(self._actuator.node, {"status": {"conditions": conditions}})
        self._stamps, self._written = (now,), condition
        self.trouble = _TWIN.format(self._actuator.node) if twin else ""

    def _entry(self, kind: str, condition: Condition, stands: Told | None, now: str) -> Json:
        status = condition.status if kind == TYPE else _OPPOSITE[condition.status]
        since = stands.since if stands is not None and stands.status == status else ""
        return {
            "type": kind, "status": status, "reason": condition.reason, "message": condition.message,
            "lastHeartbeatTime": now, "lastTransitionTime": since or now,
        }  # fmt: skip

    def _standing(self, node: Json) -> dict[str, Told]:
        """By type, each of our conditions that stands, of this daemon or of one before it."""
        return {
            entry["type"]: Told(*(str(entry.get(name) or "") for name in _TOLD))
            for entry in objects(mapping(node.get("status")).get("conditions"))
            if entry.get("type") in self._types
        }

    @staticmethod
    def _key(condition: Condition | None) -> tuple[str, str] | None:
        """What is news: figures in the message change with each pass, and are told with the heartbeat."""
        return None if condition is None else (condition.status, condition.reason)


def _for_a_person(error: ActuatorError, failed: int) -> bool:
    """What passes by itself where a machine boots is told only when it lasts."""
    lasts = isinstance(error, NoSuchNode | AnotherMachine) and failed >= _LASTING
    return error.permanent or isinstance(error, NotAccepted) or lasts
