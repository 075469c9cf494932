"""What a repair demands before the node returns: a look, whatever `[test]` says, and a test where the host can test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpuwarden.features.active_test.gate.requirement import PassedTest, Sees, gate_of, level_of
from gpuwarden.features.active_test.memory import NAME as TESTS
from gpuwarden.features.repair.memory import NAME
from gpuwarden.features.repair.model import Ended, Outcome, StepKind, Try
from gpuwarden.features.repair.readings import unwell
from gpuwarden.features.repair.requirement import QUIET_FOR, ReadWell, Seen
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Pin
from gpuwarden.policy.guarded import demand_of
from gpuwarden.policy.model import Owner
from gpuwarden.policy.requirement import Requirement
from gpuwarden.policy.situation import Situation
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, LinkFacts, NvmlFacts
from gpuwarden_collectors.gpu_readings import GpuReadings
from support.policy_story import SETTINGS, Story, restored, xid
from support.repair_scenes import verdict
from support.snapshots import slot

SOON = replace(SETTINGS, restore_after=0.0)


class Repaired(Story):
    """A node with the look of a repair, and with `tests` the gate that only repairs ask for."""

    def __init__(self, *, tests: bool = False, level: Level = Level.QUICK, least: Level = Level.QUICK) -> None:
        """`level`: what the site wants before a return; `least`: what is asked for at least after a repair."""
        self.tests = tests
        self.gate = PassedTest(level, always=False, after_repair=least)
        self.unwell = ""
        super().__init__(SOON)

    def first(self) -> PolicyState:
        gate: Mapping[str, Requirement] = {TESTS: self.gate} if self.tests else {}
        return PolicyState(requirements={**gate, NAME: ReadWell()})

    def situation(self) -> Situation:
        return replace(super().situation(), features={NAME: Seen(self.unwell, 8), TESTS: Sees()})

    def event(self, kind: EventKind, data: object) -> None:
        now, key = self.now, xid().key
        self.took([Event(kind=kind, at=now, boot_id=self.boot_id, key=key, data=write(data))])

    def begins(self) -> Repaired:
        self.event(
            EventKind.REPAIR_BEGUN,
            Try(id="t0", step=StepKind.RESET_GPU, slot=slot(3), at=self.now, boot_id=self.boot_id),
        )
        return self

    def ends(self, outcome: Outcome = Outcome.DONE) -> Repaired:
        self.event(
            EventKind.REPAIR_ENDED, Ended(id="t0", step=StepKind.RESET_GPU, outcome=outcome, at=self.now, boot_id="")
        )
        return self

    def is_out(self) -> bool:
        return self.node_state.owner is Owner.OURS

    def text(self) -> str:
        return "" if self.last is None else self.last.blocked.get("slurm", "")


def repaired() -> Repaired:
    story = Repaired()
    story.fails(xid())
    assert story.is_out()
    return story.begins().ends()


def test_a_node_that_was_not_repaired_comes_back_as_ever() -> None:
    story = Repaired()
    story.fails(xid()).heals(SOON.restore_passes + 1)
    assert not story.is_out()


def test_a_repaired_node_comes_back_once_no_xid_came_for_two_minutes() -> None:
    story = repaired()
    story.heals(SOON.restore_passes + 1)
    assert story.is_out()
    assert "no Xid must come for 120 s" in story.text()
    story.waits(QUIET_FOR)
    assert not story.is_out()
    demand = demand_of(story.state.requirements.get(NAME))
    assert isinstance(demand, ReadWell)
    assert demand.check is None


def test_an_xid_begins_the_two_minutes_anew() -> None:
    story = repaired()
    story.heals().waits(QUIET_FOR / 2)
    story.records(EventKind.XID, xid(5).key)
    story.waits(QUIET_FOR * 0.75)
    assert story.is_out()
    story.waits(QUIET_FOR / 2)
    assert not story.is_out()


def test_a_node_that_does_not_read_well_stays_out_and_says_why() -> None:
    story = repaired()
    story.unwell = "GPU 3: a row waits to be remapped"
    story.heals().waits(2 * QUIET_FOR)
    assert story.is_out()
    assert "a row waits to be remapped" in story.text()
    story.unwell = ""
    story.passes(2)
    assert not story.is_out()


def test_while_a_step_runs_nothing_comes_back_whatever_becomes_of_the_finding() -> None:
    story = Repaired()
    story.fails(xid())
    story.begins().heals().waits(3 * QUIET_FOR)
    assert story.is_out()
    assert "has not ended" in story.text()


@pytest.mark.parametrize("interruption", ["restarts", "checkpoints", "reboots"])
def test_the_look_outlives_a_restart_a_checkpoint_and_a_reboot(interruption: str) -> None:
    story = repaired()
    if interruption == "checkpoints":
        story.checkpoints()
    story.restarts_daemon() if interruption != "reboots" else story.reboots()
    story.heals(SOON.restore_passes + 2)
    assert story.is_out()
    assert "no Xid must come" in story.text()
    story.waits(QUIET_FOR)
    assert not story.is_out()


def test_an_operator_s_word_wins_over_the_look_and_not_over_a_step_that_runs() -> None:
    story = repaired()
    story.heals()
    restored(story).passes()
    assert not story.is_out()
    running = Repaired()
    running.fails(xid())
    running.begins().heals()
    with pytest.raises(ValueError, match="has not ended"):
        restored(running)


# --- the test before the return


def test_after_a_repair_a_test_must_pass_though_the_site_wants_none_before_other_returns() -> None:
    untouched = Repaired(tests=True)
    untouched.fails(xid()).heals(SOON.restore_passes + 1)
    assert not untouched.is_out()
    story = Repaired(tests=True)
    story.fails(xid())
    story.begins().ends().heals().waits(2 * QUIET_FOR)
    assert story.is_out()
    assert "a test of level quick must find nothing" in story.text()


@pytest.mark.parametrize(
    ("level", "least", "asked"),
    [
        (Level.GATE, Level.QUICK, Level.QUICK),
        (Level.STANDARD, Level.QUICK, Level.STANDARD),
        (Level.GATE, Level.GATE, Level.GATE),
    ],
    ids=["site wants less", "site wants more", "no Slurm"],
)
def test_after_a_repair_the_test_is_of_level_quick_at_least(level: Level, least: Level, asked: Level) -> None:
    story = Repaired(tests=True, level=level, least=least)
    story.fails(xid())
    story.begins().ends().heals().waits(2 * QUIET_FOR)
    assert f"a test of level {asked} must find nothing" in story.text()
    assert level_of(story.state, level) is asked


def test_a_further_failure_and_a_restart_leave_the_level_as_after_the_repair() -> None:
    story = Repaired(tests=True, level=Level.GATE)
    story.fails(xid())
    story.begins().ends()
    story.fails(xid(), xid(5))
    story.restarts_daemon()
    assert level_of(story.state, Level.GATE) is Level.QUICK


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.OBSERVED])
def test_a_step_that_was_not_done_asks_for_no_test(outcome: Outcome) -> None:
    story = Repaired(tests=True)
    story.fails(xid())
    story.begins().ends(outcome)
    assert gate_of(story.state) is None


def test_the_next_exclusion_asks_for_no_test_for_the_repair_before() -> None:
    story = repaired()
    story.heals().waits(2 * QUIET_FOR)
    assert not story.is_out()
    story.fails(xid()).heals(SOON.restore_passes + 1)
    assert not story.is_out()


# --- what reads well


def facts(index: int, **more: object) -> GpuFacts:
    links = tuple(LinkFacts(link=n, active=True) for n in range(4))
    return replace(GpuFacts(slot=slot(index), index=index, readings=GpuReadings(), links=links), **more)  # type: ignore[arg-type]


PINS = {slot(n): Pin(slot=slot(n), links=0b1111) for n in range(8)}
WELL = NvmlFacts(gpus=tuple(facts(n) for n in range(8)))


def with_third(gpu: GpuFacts) -> NvmlFacts:
    return replace(WELL, gpus=tuple(gpu if healthy.index == 3 else healthy for healthy in WELL.gpus))


@pytest.mark.parametrize(
    ("nvml", "why"),
    [
        (WELL, ""),
        (None, "could not be read"),
        (replace(WELL, gpus=WELL.gpus[:3]), "it is missing"),
        (with_third(facts(3, answer=GpuAnswer.RESET_REQUIRED)), "reset_required"),
        (with_third(facts(3, readings=GpuReadings(remapped_rows_pending=1))), "waits to be remapped"),
        (with_third(facts(3, readings=GpuReadings(remapped_rows_failure=1))), "could not be remapped"),
        (with_third(facts(3, links=(LinkFacts(link=0, active=True),))), "NVLink 1, 2, 3 is down"),
        (with_third(facts(3, links=(), readings=GpuReadings(mig_mode=1))), ""),
    ],
)
def test_what_does_not_read_well_is_named(nvml: NvmlFacts | None, why: str) -> None:
    text = unwell(verdict(), nvml, PINS)
    assert bool(text) is bool(why)
    assert why in text
