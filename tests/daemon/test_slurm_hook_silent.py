"""A daemon that says nothing: for how long counts anew after every word of its own, and a drain for it goes the daemon's way."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.actuators.base import ActuatorUnavailable
from gpuwarden.actuators.hook_gate import OPEN_FOR, HookGate
from gpuwarden.actuators.outbox import Limits
from gpuwarden.health.model import Event
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.ledger.reader import read_only
from gpuwarden.policy.model import Act, Budget, Census, Held, Intent, Outcome, Owner, Result, Standing, Why
from gpuwarden.policy.state import PolicyState, fold
from gpuwarden.silent import drain, silent_for
from gpuwarden.silent_note import NOTE, REASON, taken
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host import MachineIdentity
from support.commands import gpuwarden

MACHINE = MachineIdentity(machine_id="m")


def test_silence_is_counted_from_the_first_check_that_found_it(tmp_path: Path) -> None:
    said = "format=1\nstamp=90\n"
    assert silent_for(tmp_path, said, "boot", 100.0) == 0
    assert silent_for(tmp_path, said, "boot", 160.0) == 60
    assert silent_for(tmp_path, "format=1\nstamp=165\n", "boot", 170.0) == 0, "it has spoken meanwhile"
    assert silent_for(tmp_path, "", "boot", 180.0) == 0, "it went away in good order"
    assert silent_for(tmp_path, "", "boot", 200.0) == 20
    assert silent_for(tmp_path, "", "another boot", 300.0) == 0
    assert silent_for(tmp_path, "", "another boot", 10.0) == 0, "a clock that runs from a new beginning"
    (tmp_path / "silent-since").write_bytes(b"\xff\0 nonsense")
    assert silent_for(tmp_path, "", "boot", 400.0) == 0
    assert silent_for(tmp_path, "", "boot", 401.0) == 1


class Scheduler:
    """A scheduler in memory. `others` are held out before this node."""

    name = "slurm"
    pool: int | None = None

    def __init__(self, others: int = 0, *, foreign: bool = False, away: bool = False) -> None:
        self.writes: list[Intent] = []
        self.closed = False
        self.asked = 0
        self._others = others
        self._foreign = foreign
        self._away = away

    async def look(self) -> Standing:
        self.asked += 1
        if self._away:
            raise ActuatorUnavailable("slurmctld is away")
        if self.writes:
            return Standing(
                at=host_clock(), owner=Owner.OURS, why=Why.FAILURE, reason=self.writes[-1].reason, since=50.0
            )
        owner = Owner.FOREIGN if self._foreign else Owner.NONE
        return Standing(at=host_clock(), owner=owner, reason="a fan" if self._foreign else "", pool=8)

    async def census(self) -> Census:
        self.asked += 1
        if self._away:
            raise ActuatorUnavailable("slurmctld is away")
        held = tuple(Held(float(n), f"n{n}") for n in range(1, self._others + 1))
        return Census(node="me", pool=8, held=held, now=100.0)

    async def apply(self, intent: Intent, standing: Standing) -> None:
        self.writes.append(intent)

    async def close(self) -> None:
        self.closed = True


async def attempt(scheduler: Scheduler, folder: Path) -> tuple[Outcome, PolicyState]:
    """What came of it, and what a daemon would know of it afterwards."""
    path = folder / "ledger.db"
    ledger = Ledger(path, machine=MACHINE, boot_id="boot", clock=host_clock)
    limits = Limits(budget=Budget(percent=25, count=10, window=3600.0), recount_after=0.0)
    outcome = await drain(scheduler, ledger, limits, "boot", host_clock)
    assert scheduler.closed
    return outcome, remembered(path)


def remembered(path: Path) -> PolicyState:
    with read_only(path) as reader:
        events: Sequence[Event] = reader.memory().events
    state = PolicyState()
    for event in events:
        state = fold(state, event)
    return state


async def test_the_daemon_finds_the_drain_as_its_own(tmp_path: Path) -> None:
    scheduler = Scheduler()
    outcome, state = await attempt(scheduler, tmp_path)
    assert (outcome.result, [intent.reason for intent in scheduler.writes]) == (Result.DONE, [REASON])
    assert (state.holds["slurm"].reason, state.holds["slurm"].since) == (REASON, 50.0)
    assert not state.pending


@pytest.mark.parametrize(
    ("scheduler", "result", "why"),
    [
        (Scheduler(others=2), Result.RETRY, "the breaker is open"),
        (Scheduler(foreign=True), Result.DROPPED, "excluded by somebody else"),
        (Scheduler(away=True), Result.RETRY, "slurmctld is away"),
    ],
    ids=["breaker", "foreign", "away"],
)
async def test_it_goes_past_no_brake_and_leaves_nothing_wanted(
    tmp_path: Path, scheduler: Scheduler, result: Result, why: str
) -> None:
    outcome, state = await attempt(scheduler, tmp_path)
    assert outcome.result is result
    assert why in outcome.text
    assert scheduler.writes == []
    assert (dict(state.pending), dict(state.holds)) == ({}, {})


async def test_a_scheduler_that_is_away_is_asked_once(tmp_path: Path) -> None:
    """A second question would outlast the hook, which then could not say what came of it."""
    scheduler = Scheduler(away=True)
    await attempt(scheduler, tmp_path)
    assert scheduler.asked == 1


async def test_without_a_ledger_it_still_drains(tmp_path: Path) -> None:
    """The daemon that hangs has it locked; it finds a note when it goes on."""
    (tmp_path / "ledger.db").mkdir()
    ledger = Ledger(tmp_path / "ledger.db", machine=MACHINE, boot_id="boot", clock=host_clock)
    scheduler = Scheduler()
    note = tmp_path / NOTE
    outcome = await drain(scheduler, ledger, Limits(recount_after=0.0), "boot", host_clock, note=note)
    assert (outcome.result, len(scheduler.writes)) == (Result.DONE, 1)
    (event,) = taken(tmp_path, "boot", host_clock)
    hold = fold(PolicyState(), event).holds["slurm"]
    assert (hold.reason, hold.since, hold.why) == (REASON, 50.0, Why.FAILURE)
    assert taken(tmp_path, "boot", host_clock) == (), "it is taken once"


@pytest.mark.parametrize("content", [b"", b"another 50\n", b"boot x\n", b"boot 99999999999999\n", b"\xff\0"])
def test_a_note_that_makes_no_sense_is_thrown_away(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NOTE).write_bytes(content)
    assert taken(tmp_path, "boot", host_clock) == ()
    assert not (tmp_path / NOTE).exists()


async def test_a_gate_lets_through_only_for_a_while_after_the_hook_was_here() -> None:
    now = 1000.0
    gate = HookGate(Scheduler(), lambda: Stamp(now, now))
    with pytest.raises(ActuatorUnavailable, match="HealthCheckProgram"):
        await gate.census()
    gate.asked()
    assert (await gate.census()).pool == 8
    now += OPEN_FOR + 1
    with pytest.raises(ActuatorUnavailable):
        await gate.census()
    assert (await gate.look()).pool == 8, "a look is free"


async def test_a_gate_that_let_a_drain_through_lets_the_breaker_count_again() -> None:
    """The hook was here almost too long ago when the node was drained; others may have been drained with it."""
    now = 1000.0
    gate = HookGate(Scheduler(), lambda: Stamp(now, now))
    gate.asked()
    now += OPEN_FOR - 1
    about: dict[str, Any] = {"actuator": "slurm", "why": Why.FAILURE, "reason": REASON, "key": "k", "at": host_clock()}
    await gate.apply(Intent(act=Act.EXCLUDE, **about), await gate.look())
    now += 30
    assert (await gate.census()).pool == 8
    now += OPEN_FOR
    await gate.apply(Intent(act=Act.RESTORE, **about), await gate.look())
    with pytest.raises(ActuatorUnavailable):
        await gate.census()


@pytest.mark.parametrize(
    ("keys", "node", "code", "said"),
    [
        ("", "n1", 0, "nothing done: [slurm] enabled is false"),
        ("enabled = true", "n1", 0, 'nothing done: [slurm] on_stale is not "drain"'),
        ('enabled = true\non_stale = "drain"', "n1", 0, "found so for 0 s, and 600 s must pass"),
        ('enabled = true\non_stale = "drain"', "n[1-3]", 64, "--node: expected the NodeName of one node"),
    ],
)
def test_the_command_says_why_it_does_nothing(tmp_path: Path, keys: str, node: str, code: int, said: str) -> None:
    config = tmp_path / "gpuwarden.toml"
    config.write_text(f'[slurm]\n{keys}\n[state]\ndir = "{tmp_path}"\n')
    done = gpuwarden(
        "slurm", "healthcheck", "--config", config, "--run-dir", tmp_path / "run", "--node", node, temporary=tmp_path
    )
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done


def test_a_state_directory_that_cannot_be_written_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    config = tmp_path / "gpuwarden.toml"
    config.write_text(f'[slurm]\nenabled = true\non_stale = "drain"\n[state]\ndir = "{tmp_path}/state"\n')
    done = gpuwarden("slurm", "healthcheck", "--config", config, "--run-dir", tmp_path / "run", temporary=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (69, 1)
    assert "nothing done: cannot note in" in done.stderr
