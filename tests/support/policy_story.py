"""A node and its scheduler through time, with policy deciding each pass: a story in which tests define what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Self, TypeVar

from gpuwarden.health.model import Advice, Event, EventKind, Finding, Health, Json, Key, Severity, Verdict, gpu
from gpuwarden.policy import orders
from gpuwarden.policy.checkpoint import checkpoint
from gpuwarden.policy.exclusion import Decision, decide
from gpuwarden.policy.fold import fold
from gpuwarden.policy.model import Act, Intent, NodeState, Owner, Result, Settings
from gpuwarden.policy.preconditions import answer, as_owned
from gpuwarden.policy.situation import Situation
from gpuwarden.policy.state import PolicyState, outcome_data
from gpuwarden_collectors.facts import Stamp
from support.schedulers import Cluster, Node
from support.snapshots import BOOTED, finding, gpu_verdict, slot

BOOT, OTHER_BOOT = "1b4e28ba-2fa1-11d2-883f-0016d3cca427", "9e107d9d-372b-4826-881d-8f2a1c6b7e55"
INSTANCE, OTHER_INSTANCE = "i-0af01c23", "i-0ffffff1"
PASS = 5.0
FAILED = "gpuwarden: failure gpu=3 xid=79 - reset the GPU when it is empty"
SETTINGS = Settings(enforce=True, restore_passes=3, restore_after=60.0, lifted_for=300.0)


def xid(gpu_index: int = 3, advice: Advice = Advice.RESET_GPU, number: int = 79) -> Finding:
    return replace(finding("xid", gpu(slot(gpu_index)), detail=str(number)), advice=advice)


S = TypeVar("S", bound="Story")


class Story:
    """`reachable` False: the scheduler is away. What policy wants is carried out at once, as the reconciler would.

    `done`: whether a write takes effect, and whether its answer arrives.
    """

    def __init__(self, settings: Settings = SETTINGS) -> None:
        self.settings = settings
        self.now = Stamp(1_000.0, BOOTED + 1_000.0)
        self.boot_id, self.instance = BOOT, INSTANCE
        self.cluster = Cluster(lambda: self.now.wall, {"n1": Node()})
        self.reachable = True
        self.done = (True, True)
        self.sequence = 0
        self.health = Health.HEALTHY
        self.findings: tuple[Finding, ...] = ()
        self.ledger: list[Event] = []
        self.state = self.first()
        self.last: Decision | None = None
        self.records(EventKind.BOOT)

    def first(self) -> PolicyState:
        """Return the state without any event."""
        return PolicyState()

    # --- what occurs

    def records(self, kind: EventKind, key: Key | None = None, data: Mapping[str, Json] | None = None) -> None:
        self.took([Event(kind=kind, at=self.now, boot_id=self.boot_id, key=key, data=data or {})])

    def took(self, events: Iterable[Event]) -> None:
        for event in events:
            self.ledger.append(event)
            self.state = fold(self.state, event)

    def fails(self, *findings: Finding) -> Self:
        self.health, self.findings = Health.FAILURE, findings or (xid(),)
        return self.passes()

    def heals(self, passes: int = 1) -> Self:
        self.health, self.findings = Health.HEALTHY, ()
        return self.passes(passes)

    def unknown(self, passes: int = 1) -> Self:
        self.health, self.findings = Health.UNKNOWN, ()
        return self.passes(passes)

    def waits(self, seconds: float) -> Self:
        return self.passes(int(seconds // PASS) + 1)

    def passes(self, count: int = 1) -> Self:
        for _ in range(count):
            self.now = Stamp(self.now.boottime + PASS, self.now.wall + PASS)
            self.sequence += 1
            self.step()
        return self

    def restarts_daemon(self, *, remembered: bool = True) -> Self:
        events, self.state = self.ledger if remembered else [], self.first()
        self.ledger = list(events)
        for event in self.ledger:
            self.state = fold(self.state, event)
        self.sequence = 0
        return self

    def reboots(self, boot_id: str = OTHER_BOOT) -> Self:
        self.boot_id = boot_id
        self.now = Stamp(30.0, self.now.wall + 120.0)
        self.restarts_daemon()
        self.records(EventKind.BOOT)
        return self

    def checkpoints(self) -> Self:
        """The ledger holds the summary, and nothing of before."""
        boot = Event(kind=EventKind.BOOT, at=self.now, boot_id=self.state.boot_id)
        self.ledger = [boot, *checkpoint(self.state, self.now)]
        return self

    # --- what policy does

    def situation(self) -> Situation:
        verdict = Verdict(
            at=self.now, health=self.health, findings=self.findings, gpus=tuple(gpu_verdict(n) for n in range(8)),
            unknown=("nvml_not_answering",) if self.health is Health.UNKNOWN else (),
        )  # fmt: skip
        return Situation(
            verdict=verdict, sequence=self.sequence, ready=True, boot_id=self.boot_id, instance=self.instance,
            actuators=("slurm",), node_states={"slurm": as_owned(self.node_state, self.state.ended.get("slurm", 0.0))},
        )  # fmt: skip

    @property
    def node_state(self) -> NodeState:
        if not self.reachable:
            return NodeState(at=self.now, reachable=False, error="does not answer")
        return self.cluster.state("n1", self.now)

    def step(self) -> None:
        self.last = decide(self.state, self.situation(), self.settings, self.now)
        self.ledger += self.last.events
        self.state = self.last.state
        for name, intent in list(self.state.pending.items()):
            if self.reachable and name not in self.last.waiting:
                self.carry_out(intent)

    def carry_out(self, intent: Intent) -> None:
        self.now = Stamp(self.now.boottime + 0.01, self.now.wall + 0.01)
        held = intent.actuator in self.state.holds
        outcome = answer(intent, self.node_state)
        takes_effect, is_answered = self.done
        if outcome is None and takes_effect:
            write = self.cluster.exclude if intent.act is Act.EXCLUDE else lambda name, _: self.cluster.restore(name)
            write("n1", intent.reason)
        if not is_answered:
            return
        result = Result.DONE if outcome is None else outcome.result
        self.records(EventKind.OUTCOME, data=outcome_data(intent, result, "" if outcome is None else outcome.text))
        about: dict[str, Json] = {"actuator": intent.actuator, "why": intent.why.value, "reason": intent.reason}
        if intent.act is Act.EXCLUDE and result in (Result.DONE, Result.ALREADY):
            self.records(EventKind.EXCLUDED, data={**about, "since": self.node_state.since})
        elif intent.act is Act.RESTORE and (result is Result.DONE or (result is Result.ALREADY and held)):
            self.records(EventKind.RESTORED, data=about)

    # --- what there is to see

    @property
    def reason(self) -> str:
        return self.cluster.nodes["n1"].reason

    @property
    def writes(self) -> list[str]:
        return [act for _, act, _ in self.cluster.writes]

    def drained_by_hand(self, reason: str, **more: object) -> None:
        self.cluster.nodes["n1"] = Node(reason=reason, since=float(int(self.now.wall)), **more)  # type: ignore[arg-type]

    def undrained_by_hand(self) -> None:
        self.cluster.nodes["n1"] = Node()

    @property
    def foreign(self) -> bool:
        return self.node_state.owner is Owner.FOREIGN


def warning(code: str = "thermal_slowdown") -> Finding:
    return finding(code, gpu(slot(1)), Severity.WARNING)


def announced(story: S) -> S:
    story.took([orders.announce(120.0, "", "root", story.boot_id, story.now)])
    return story.passes()


def restored(story: S, *, by: str = "bob", force: bool = False, untested: bool = False) -> S:
    """An operator orders it; raises as `orders.restore`."""
    ordered = orders.restore(
        story.state, story.situation().verdict, ["slurm"], by=by, boot_id=story.boot_id, now=story.now,
        settings=story.settings, force=force, untested=untested,
    )  # fmt: skip
    story.took(ordered)
    return story


def called_off(story: S) -> S:
    story.took([orders.call_off(story.state, "root", story.boot_id, story.now)])
    return story


def kinds(story: Story) -> list[str]:
    return [str(event.kind) for event in story.ledger]
