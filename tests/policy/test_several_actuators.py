"""Several actuators at once: each has its own story, and what belongs to the node is counted and remembered once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuwarden.health.model import Event, EventKind, Finding, Health, Json, Verdict
from gpuwarden.policy import orders
from gpuwarden.policy.checkpoint import checkpoint
from gpuwarden.policy.exclusion import decide
from gpuwarden.policy.fold import fold
from gpuwarden.policy.model import Act, NodeState, Owner, Result, Settings, Why
from gpuwarden.policy.preconditions import answer
from gpuwarden.policy.situation import Situation
from gpuwarden.policy.state import PolicyState, outcome_data
from gpuwarden_collectors.facts import Stamp
from support.policy_story import BOOT, INSTANCE, xid
from support.snapshots import BOOTED, gpu_verdict

NAMES = ("slurm", "file", "exec")
SETTINGS = Settings(enforce=True, restore_passes=2, restore_after=0.0, lifted_for=0.0)


class SeveralActuators:
    """A node at three of them. What is wanted is carried out at once where `node_states` allow it."""

    def __init__(self) -> None:
        self.now = Stamp(1_000.0, BOOTED + 1_000.0)
        self.sequence = 0
        self.state = PolicyState()
        self.ledger: list[Event] = []
        self.took(Event(kind=EventKind.BOOT, at=self.now, boot_id=BOOT))
        self.node_states = {name: NodeState(at=self.now) for name in NAMES}

    def took(self, *events: Event) -> None:
        self.ledger += events
        for event in events:
            self.state = fold(self.state, event)

    def passes(self, *findings: Finding, times: int = 1) -> None:
        for _ in range(times):
            self.now = Stamp(self.now.boottime + 5.0, self.now.wall + 5.0)
            self.sequence += 1
            health = Health.FAILURE if findings else Health.HEALTHY
            gpus = tuple(gpu_verdict(n) for n in range(8))
            verdict = Verdict(at=self.now, health=health, findings=findings, gpus=gpus)
            seen = Situation(
                verdict=verdict, sequence=self.sequence, ready=True, boot_id=BOOT, instance=INSTANCE, actuators=NAMES,
                node_states=self.node_states,
            )  # fmt: skip
            decision = decide(self.state, seen, SETTINGS, self.now)
            self.state = decision.state
            self.ledger += decision.events
            for name in NAMES:
                self._carry_out(name)

    def _carry_out(self, name: str) -> None:
        intent = self.state.pending.get(name)
        if intent is None:
            return
        outcome = answer(intent, self.node_states[name])
        if outcome is None or outcome.result is Result.ALREADY:
            out = intent.act is Act.EXCLUDE
            self.node_states[name] = NodeState(
                at=self.now, owner=Owner.OURS if out else Owner.NONE, why=intent.why if out else None,
                reason=intent.reason if out else "", since=self.now.wall if out else 0.0,
            )  # fmt: skip
            self._record(EventKind.OUTCOME, outcome_data(intent, Result.DONE, ""))
            about: dict[str, Json] = {
                "actuator": name,
                "why": intent.why.value,
                "reason": intent.reason,
                "since": self.now.wall,
            }
            self._record(EventKind.EXCLUDED if out else EventKind.RESTORED, about)
        else:
            self._record(EventKind.OUTCOME, outcome_data(intent, outcome.result, outcome.text))

    def _record(self, kind: EventKind, data: Mapping[str, Json]) -> None:
        self.took(Event(kind=kind, at=self.now, boot_id=BOOT, data=data))

    @property
    def out(self) -> set[str]:
        return {name for name, node_state in self.node_states.items() if node_state.owner is Owner.OURS}


def test_a_node_that_comes_back_everywhere_came_back_once() -> None:
    several = SeveralActuators()
    for times in (1, 2, 3):
        several.passes(xid())
        assert several.out == set(NAMES)
        several.passes(times=4)
        assert (several.out, len(several.state.returns)) == (set(), times)
    several.passes(xid())
    several.passes(times=10)
    assert several.out == set(NAMES)  # after three times within a day only a person brings it back


def test_a_clock_that_was_set_back_does_not_hide_that_it_came_back() -> None:
    several = SeveralActuators()
    for times in (1, 2):
        several.passes(xid())
        several.passes(times=4)
        assert (several.out, len(several.state.returns)) == (set(), times)
        several.now = Stamp(several.now.boottime, several.now.wall - 3_600.0)


def test_one_that_is_away_keeps_what_it_holds_and_the_others_come_back_and_are_counted() -> None:
    several = SeveralActuators()
    several.passes(xid())
    before = several.node_states["exec"]
    for times in (1, 2):
        several.node_states["exec"] = replace(before, reachable=False)
        several.passes(times=4)
        assert (set(several.state.holds), len(several.state.returns)) == ({"exec"}, times)
        several.passes(xid())
    several.node_states["exec"] = replace(before, at=several.now)
    several.passes(times=4)
    assert (several.out, len(several.state.returns)) == (set(), 3)


def test_an_order_refused_by_one_actuator_is_in_force_at_the_others_and_is_not_retried() -> None:
    several = SeveralActuators()
    several.node_states["slurm"] = NodeState(at=several.now, owner=Owner.FOREIGN, reason="rack move", schedulable=False)
    several.took(orders.exclude("al", "a fan", BOOT, several.now))
    several.passes(times=5)
    assert several.out == {"file", "exec"}
    assert several.state.order is not None
    asked = [event for event in several.ledger if event.kind == EventKind.INTENDED]
    assert [event.data["actuator"] for event in asked].count("slurm") == 1
    again = PolicyState()
    for event in (Event(kind=EventKind.BOOT, at=several.now, boot_id=BOOT), *checkpoint(several.state, several.now)):
        again = fold(again, event)
    assert (again.declined, again.order) == (frozenset({"slurm"}), several.state.order)


def test_an_order_that_is_refused_everywhere_is_forgotten() -> None:
    several = SeveralActuators()
    several.node_states = {name: NodeState(at=several.now, owner=Owner.FOREIGN, reason="theirs") for name in NAMES}
    several.took(orders.exclude("al", "a fan", BOOT, several.now))
    several.passes(times=3)
    assert (several.state.order, several.state.declined, several.state.pending) == (None, frozenset(), {})


def test_where_an_order_was_refused_a_failure_still_counts() -> None:
    several = SeveralActuators()
    several.node_states["slurm"] = NodeState(at=several.now, owner=Owner.FOREIGN, reason="rack move", schedulable=False)
    several.took(orders.exclude("al", "a fan", BOOT, several.now))
    several.passes()
    several.node_states["slurm"] = NodeState(at=several.now)
    several.passes(xid())
    assert several.node_states["slurm"].why is Why.FAILURE
    assert several.node_states["file"].why is Why.OPERATOR


def test_what_an_operator_excluded_stays_out_where_nobody_lifted_it() -> None:
    """A lift at one actuator ended the order, but not the exclusions in force at the others."""
    several = SeveralActuators()
    several.took(orders.exclude("al", "a fan", BOOT, several.now))
    several.passes()
    assert several.out == set(NAMES)
    several.node_states["file"] = NodeState(at=Stamp(several.now.boottime + 1.0, several.now.wall + 1.0))
    several.passes(times=10)
    assert (several.out, several.state.order) == ({"slurm", "exec"}, None)


def test_since_when_a_node_is_out_is_kept_by_a_daemon_that_lost_its_ledger_and_finds_another_failure() -> None:
    several = SeveralActuators()
    several.passes(xid())
    before = dict(several.node_states)
    several.state = PolicyState()
    several.took(Event(kind=EventKind.BOOT, at=several.now, boot_id=BOOT))
    several.passes(xid(5), times=3)
    assert several.node_states == before
