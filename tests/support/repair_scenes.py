"""A node that gpuwarden excluded for an Xid 95 and may repair; tests change one thing about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from gpuwarden.features.repair.memory import EMPTY, KINDS, NAME, Memory, fold
from gpuwarden.features.repair.model import Ended, Outcome, StepKind, Try
from gpuwarden.features.repair.plan import Plan, plan
from gpuwarden.features.repair.preconditions import Scene
from gpuwarden.health.event_data import write
from gpuwarden.health.memory import State
from gpuwarden.health.model import Advice, Event, EventKind, Finding, Health, Key, Pin, Verdict, gpu
from gpuwarden.policy.model import NodeState, Owner, Why
from gpuwarden.policy.state import Hold, PolicyState
from gpuwarden_collectors.facts import Stamp
from support.snapshots import at, finding, gpu_verdict, slot

BOOT, OTHER_BOOT = "b1", "b2"
NOW = at(5_000.0)
ALL: tuple[Literal["restart_service", "reset_gpu", "reload_driver", "reboot"], ...] = (
    "restart_service",
    "reset_gpu",
    "reload_driver",
    "reboot",
)
REASON = "gpuwarden: failure gpu=3 xid=95"
UUID = gpu_verdict(3).uuid


def xid(number: int = 95, gpu_index: int = 3, advice: Advice = Advice.RESET_GPU) -> Finding:
    return replace(finding("xid", gpu(slot(gpu_index)), detail=str(number)), advice=advice)


FINDING = xid()


def verdict(*findings: Finding) -> Verdict:
    gpus = tuple(gpu_verdict(n) for n in range(8))
    return Verdict(at=NOW, health=Health.FAILURE, findings=findings or (FINDING,), gpus=gpus)


def hold(reason: str = REASON, why: Why = Why.FAILURE) -> Hold:
    return Hold(actuator="slurm", why=why, reason=reason, at=at(4_000.0), boot_id=BOOT, since=NOW.wall - 900.0)


def drained(reason: str = REASON, **more: Any) -> NodeState:
    return NodeState(
        at=NOW, owner=Owner.OURS, why=Why.FAILURE, reason=reason, since=NOW.wall - 900.0, schedulable=False,
        empty=True, state="drained",
    ) if not more else replace(drained(reason), **more)  # fmt: skip


def state(memory: Memory = EMPTY) -> State:
    pins = {slot(n): Pin(slot=slot(n), uuid=gpu_verdict(n).uuid) for n in range(8)}
    return State(boot_id=BOOT, pins=pins, features={NAME: memory})


def scene(**more: Any) -> Scene:
    fields: dict[str, Any] = {
        "now": NOW,
        "enforce": True,
        "remembered": True,
        "verdict": verdict(),
        "policy": PolicyState(boot_id=BOOT, holds={"slurm": hold()}),
        "memory": EMPTY,
        "node_states": {"slurm": drained()},
        "processes": {slot(n): 0 for n in range(8)},
    }
    return Scene(**{**fields, **more})


def planned(memory: Memory = EMPTY, cause: Finding = FINDING, allowed: tuple[str, ...] = ALL, now: Stamp = NOW) -> Plan:
    return plan(cause, state(memory), verdict(cause), allowed, now)


def begun(name: str, when: float, step: StepKind = StepKind.RESET_GPU, boot_id: str = BOOT) -> Event:
    """Return the event before a step for the finding. `when`: seconds before NOW."""
    stamp = Stamp(NOW.boottime - when, NOW.wall - when)
    data = Try(id=name, step=step, slot=slot(3), uuid=UUID, board=UUID, at=stamp, boot_id=boot_id)
    key = FINDING.key
    return Event(kind=EventKind.REPAIR_BEGUN, at=stamp, boot_id=boot_id, key=key, data=write(data))


def ended(
    name: str, when: float, outcome: Outcome = Outcome.DONE, step: StepKind = StepKind.RESET_GPU, boot_id: str = BOOT
) -> Event:
    stamp = Stamp(NOW.boottime - when, NOW.wall - when)
    data = Ended(id=name, step=step, outcome=outcome, text="said", board=UUID, at=stamp, boot_id=boot_id)
    key = FINDING.key
    return Event(kind=EventKind.REPAIR_ENDED, at=stamp, boot_id=boot_id, key=key, data=write(data))


def remembered(*events: Event) -> Memory:
    memory = EMPTY
    for event in events:
        if event.kind in KINDS:
            memory = fold(memory, event, State())
    return memory


def tried(number: int, *, hours: float = 1.0, outcome: Outcome = Outcome.DONE) -> Memory:
    """Return the memory of tries for the finding that ended so many hours ago, and each an hour before the next."""
    events: list[Event] = []
    for count in range(number):
        when = 3600.0 * (hours + number - 1 - count)
        events += [begun(f"t{count}", when + 60.0), ended(f"t{count}", when, outcome)]
    return remembered(*events)


def key_of(cause: Finding) -> Key:
    return cause.key
