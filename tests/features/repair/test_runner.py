"""A step is carried out once: in which order, what is looked at right before, and what follows when something dies in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.base.peer import Peer
from gpuwarden.features.repair import asked, runner
from gpuwarden.features.repair.model import Outcome, StepKind
from gpuwarden.features.repair.preconditions import Precondition
from gpuwarden.health.model import Advice
from gpuwarden_collectors.facts import GpuProcess, Stamp
from support.repair_rig import World, world
from support.repair_scenes import FINDING, NOW, OTHER_BOOT, REASON, UUID, begun, drained, ended, hold
from support.snapshots import gpu_facts, slot

ONCE = [
    "probe", "enter", "off", "repair_begun", "step reset_gpu", "repair_ended done", "on", "leave",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LOOKED_AGAIN", 0.0)


def forbidden(host: World) -> list[Precondition]:
    return [obstacle.precondition for obstacle in host.runner.barred]


async def test_everything_is_looked_at_then_written_down_and_only_then_asked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        await host.turn()
        await host.until(lambda: host.log[-1] == "leave")
        assert host.log == ONCE
        (asked,) = host.helper.steps
        assert asked == {
            "verb": "step", "id": host.memory.tries[0].id, "step": "reset_gpu", "slot": slot(3), "uuid": UUID,
        }  # fmt: skip


async def test_no_step_begins_before_what_it_may_destroy_is_saved(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.saved.clear()
        host.runner.step(host.plan())
        for _ in range(1_000):
            await asyncio.sleep(0)
        assert host.log == []
        host.saved.set()
        await host.until(lambda: host.log[-1:] == ["leave"])
        assert host.log == ONCE


async def test_a_reboot_has_the_text_of_the_exclusion_as_its_reason_and_stays_begun(tmp_path: Path) -> None:
    """The scheduler writes the reason over the one that stands: the exclusion is to stand after the boot."""
    async with world(tmp_path, before=[begun("t0", 3_700.0), ended("t0", 3_600.0)]) as host:
        host.helper.results = [{"state": "done", "text": "ordered"}]
        host.runner.step(host.plan())
        await host.until(lambda: host.log.count("result") == 1)
        assert host.helper.steps[0]["reason"] == REASON
        assert host.outcomes == ["done", None]
        assert host.log.count("step reboot") == 1
        assert "leave" not in host.log


async def test_the_helper_refuses_and_nothing_was_done(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.helper.answers = ({"done": False, "refused": True, "why": "a process\x1b has the GPU open"},)
        await host.turn()
        assert host.outcomes == [Outcome.REFUSED]
        assert host.memory.tries[0].text == "a process  has the GPU open"


@pytest.mark.parametrize(
    ("results", "outcome"),
    [
        ([{"state": "running"}, {"state": "running"}, {"state": "done"}], Outcome.DONE),
        ([{"nonsense": 1}, {"state": "failed", "text": "timed out"}], Outcome.FAILED),
        ([{"nonsense": 1}], Outcome.UNKNOWN),
    ],
)
async def test_a_helper_that_dies_is_asked_what_it_did_and_never_to_do_it_again(
    tmp_path: Path, results: list[dict[str, object]], outcome: Outcome
) -> None:
    async with world(tmp_path) as host:
        host.helper.answers, host.helper.results = ({"progress": "stopping the persistence daemon"},), list(results)
        await host.turn()
        assert host.outcomes == [outcome]
        assert len(host.helper.steps) == 1
        assert host.log.index("on") > host.log.index("result"), "our reader stays away until it is known"


async def test_a_helper_that_hangs_is_given_up_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runner.WITHIN, StepKind.RESET_GPU, 0.2)
    async with world(tmp_path) as host:
        host.helper.hangs, host.helper.results = (
            True,
            [{"state": "running"}, {"state": "failed", "text": "ended by its limit"}],
        )
        await host.turn()
        assert host.outcomes == [Outcome.FAILED]
        assert len(host.helper.steps) == 1


# --- what forbids it right before


async def test_a_finding_that_ends_while_the_reader_leaves_is_not_repaired(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.on_off = host.heals
        await host.turn()
        assert forbidden(host) == [Precondition.FINDING]
        assert not host.memory.tries
        assert not host.helper.steps
        assert host.log[-2:] == ["on", "leave"]


async def test_a_finding_that_needs_another_step_meanwhile_is_planned_anew(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        worse = replace(FINDING, advice=Advice.REBOOT)
        host.on_off = lambda: setattr(host, "verdict", replace(host.verdict, findings=(worse,)))
        await host.turn()
        assert forbidden(host) == [Precondition.STEP]
        assert "its next step is now reboot" in host.runner.barred[0].text
        assert not host.helper.steps


async def test_an_operator_who_resumes_the_node_meanwhile_has_the_last_word(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.helper.on_probe = lambda: setattr(host.enforcement, "state", replace(host.enforcement.state, holds={}))
        await host.turn()
        assert Precondition.EXCLUDED in forbidden(host)
        assert not host.helper.steps


async def test_a_job_that_came_meanwhile_is_not_harmed(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.on_off = lambda: setattr(host.enforcement, "node_states", {"slurm": drained(empty=False)})
        await host.turn()
        assert forbidden(host) == [Precondition.JOBS]
        assert not host.helper.steps


async def test_a_process_that_nvml_listed_before_it_hung_forbids_no_reboot_for_ever(tmp_path: Path) -> None:
    """Slurm says that no job is here, and no pass of the GPUs ends any more."""
    busy = replace(gpu_facts(3), processes=(GpuProcess(pid=7),))
    async with world(tmp_path) as host:
        for age, expected in ((1.0, {slot(3): 1}), (600.0, None)):
            host.reads([busy], Stamp(NOW.boottime - age, NOW.wall - age))
            assert host.sight.scene().processes == expected


async def test_our_own_reader_that_cannot_be_ended_forbids_a_reset(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.gone = False
        await host.turn()
        assert forbidden(host) == [Precondition.PROCESSES]
        assert not host.helper.steps


async def test_a_scheduler_that_was_not_read_right_before_forbids_it(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.read = False
        await host.turn()
        assert forbidden(host) == [Precondition.SCHEDULER]
        assert host.log == ["probe"]


async def test_a_scheduler_that_is_away_by_the_time_it_is_this_node_s_turn_forbids_it(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.on_off = lambda: setattr(host, "read", False)
        await host.turn()
        assert forbidden(host) == [Precondition.SCHEDULER]
        assert host.log == ["probe", "enter", "off", "on", "leave"]


async def test_it_is_another_node_s_turn(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.turns.refusal = "being repaired now: 1; repair.at_once allows 1"
        await host.turn()
        assert forbidden(host) == [Precondition.FLEET]
        assert not host.memory.tries


async def test_without_a_helper_nothing_is_begun(tmp_path: Path) -> None:
    host = World(tmp_path / "nobody.sock")
    await host.until(lambda: host.log)
    await host.turn()
    assert forbidden(host) == [Precondition.HELPER]
    assert "systemctl enable --now gpuwarden-repair.socket" in host.runner.barred[0].text
    await host.runner.stop()


async def test_what_the_helper_cannot_do_here_is_refused_with_its_reason(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.helper.probe = {"able": ["reboot"], "unable": {"reset_gpu": "confidential computing is on"}}
        await host.turn()
        assert [obstacle.text for obstacle in host.runner.barred] == ["confidential computing is on"]


async def test_where_no_gpu_can_be_reset_alone_all_are(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.helper.probe = {"able": ["reset_all", "reboot"], "unable": {"reset_gpu": "NVSwitch"}}
        await host.turn()
        assert [step["step"] for step in host.helper.steps] == ["reset_all"]


async def test_an_operator_who_takes_the_node_back_while_the_disk_writes_has_the_last_word(tmp_path: Path) -> None:
    """A reboot would have no text to stand beside an exclusion either."""
    async with world(tmp_path, before=[begun("t0", 3_700.0), ended("t0", 3_600.0)]) as host:
        host.on_append = lambda: setattr(host.enforcement, "state", replace(host.enforcement.state, holds={}))
        await host.turn()
        assert not host.helper.steps
        assert host.outcomes == [Outcome.DONE, Outcome.REFUSED]
        assert host.memory.tries[-1].text == "gpuwarden has not excluded this node for a failure"
        assert host.log[-1] == "leave"


async def test_the_last_repair_that_a_node_alone_may_begin_in_a_day_is_carried_out(tmp_path: Path) -> None:
    async with world(tmp_path, alone=True, per_day=1) as host:
        await host.turn()
        assert host.outcomes == [Outcome.DONE]


async def test_a_reboot_takes_the_text_that_stands_in_slurm(tmp_path: Path) -> None:
    """Another actuator may have an older one."""
    async with world(tmp_path, before=[begun("t0", 3_700.0), ended("t0", 3_600.0)]) as host:
        holds = {"file": hold("gpuwarden: failure gpu=3 xid=95 gpu=4 xid=95"), **host.enforcement.state.holds}
        host.enforcement.state = replace(host.enforcement.state, holds=holds)
        host.enforcement.node_states = {"file": drained(holds["file"].reason), **host.enforcement.node_states}
        host.helper.results = [{"state": "done", "text": "ordered"}]
        host.runner.step(host.plan())
        await host.until(lambda: host.helper.steps)
        assert host.helper.steps[0]["reason"] == REASON


@pytest.mark.parametrize(
    ("commits", "events"), [([False], []), ([True, False], ["repair_begun", "repair_ended refused"])]
)
async def test_what_cannot_be_written_down_is_not_done(tmp_path: Path, commits: list[bool], events: list[str]) -> None:
    async with world(tmp_path) as host:
        host.commits = iter(commits)
        await host.turn()
        assert [line for line in host.log if line.startswith("repair")] == events
        assert not host.helper.steps


# --- after a kill


async def test_a_new_daemon_looks_what_came_of_the_step_and_does_not_do_it_again(tmp_path: Path) -> None:
    async with world(tmp_path, before=[begun("t0", 20.0)]) as host:
        host.helper.results = [{"state": "running"}, {"state": "done", "text": "GPU was reset"}]
        await host.until(lambda: host.log[-1:] == ["leave"])
        assert host.log == ["off", "result", "result", "repair_ended done", "on", "leave"]
        assert host.outcomes == [Outcome.DONE]


@pytest.mark.parametrize(
    ("came_of_it", "number"), [("refused", 1), ("unknown", 1), ("done", 2), ("failed", 2), ("nonsense", 2)]
)
async def test_after_a_kill_a_step_that_was_refused_or_never_begun_uses_up_no_try(
    tmp_path: Path, came_of_it: str, number: int
) -> None:
    async with world(tmp_path, before=[begun("t0", 20.0)]) as host:
        host.helper.results = [{"state": came_of_it, "text": ""}]
        await host.until(lambda: host.log[-1:] == ["leave"])
        assert host.memory.open is None
        assert host.plan().number == number


async def test_a_boot_after_the_order_of_a_reboot_is_that_reboot(tmp_path: Path) -> None:
    before = [begun("t0", 300.0, StepKind.REBOOT)]
    async with world(tmp_path, before=before, boot_id=OTHER_BOOT) as host:
        await host.until(lambda: host.log[-1:] == ["leave"])
        assert host.log == ["repair_ended rebooted", "leave"]


async def test_a_boot_in_the_middle_of_another_step_leaves_it_unknown(tmp_path: Path) -> None:
    async with world(tmp_path, before=[begun("t0", 300.0)], boot_id=OTHER_BOOT) as host:
        await host.until(lambda: host.log[-1:] == ["leave"])
        assert host.log == ["repair_ended unknown", "leave"]
        assert host.plan().number == 2


async def test_a_reboot_that_does_not_come_is_a_try_that_failed(tmp_path: Path) -> None:
    before = [begun("t0", runner.REBOOTS_WITHIN + 1.0, StepKind.REBOOT)]
    async with world(tmp_path, before=before) as host:
        host.helper.results = [{"state": "done", "text": "ordered"}]
        await host.until(lambda: host.log[-1:] == ["leave"])
        assert host.outcomes == [Outcome.FAILED]
        assert not host.helper.steps


@pytest.mark.parametrize("cut", range(5))
async def test_killed_after_any_event_the_whole_ladder_is_done_once(tmp_path: Path, cut: int) -> None:
    """A reset that helped nothing, then a reboot: whichever of their events was the last on disk, each is asked for once at most after it."""
    life = [
        begun("t0", 7_300.0), ended("t0", 7_200.0), begun("t1", 3_700.0, StepKind.REBOOT),
        ended("t1", 3_600.0, Outcome.FAILED, StepKind.REBOOT),
    ]  # fmt: skip
    async with world(tmp_path, before=life[:cut]) as host:
        host.helper.results = [{"state": "failed", "text": "it did not reboot"}]
        for _ in range(4):
            host.now = replace(host.now, boottime=host.now.boottime + 600.0, wall=host.now.wall + 600.0)
            if host.memory.open is not None:
                await host.until(lambda: host.memory.open is None and host.log[-1] == "leave")
            elif host.plan().step is not None:
                host.helper.answers = ({"done": False, "refused": False, "why": "it failed"},)
                await host.turn()
        done = [attempt.step for attempt in host.memory.tries]
        assert done == [StepKind.RESET_GPU, StepKind.REBOOT]
        assert len(host.helper.steps) == 2 - (cut + 1) // 2
        assert host.plan().step is None
        assert host.plan().gave_up


async def test_an_operator_s_order_ends_the_wait(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.helper.probe = {"able": [], "unable": {"reset_gpu": "nvidia-smi is missing"}}
        await host.turn()
        host.helper.probe = {"able": ["reset_gpu"], "unable": {}}
        await host.until(lambda: not host.runner.order(host.plan(), "root"))
        await host.until(lambda: host.outcomes == [Outcome.DONE])
        assert host.memory.tries[0].by == "root"


async def test_an_operator_s_order_does_not_wait_for_a_driver_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper reads it for longer than a command waits; the step is looked at again before it begins."""
    monkeypatch.setattr(asked, "PROBED_WITHIN", 0.05)
    async with world(tmp_path) as host:
        host.helper.probe_hangs = True
        order = asked.Asking(host.sight, host.runner.order).verbs()["repair"]
        answer = await order({"finding": str(FINDING.key)}, Peer(pid=1, uid=0, groups=frozenset()))
        assert (answer["ordered"], answer["forbidden_by"]) == (True, [])
        assert any("has not answered" in note for note in answer["notes"])
        host.helper.probe_hangs = False
        await host.until(lambda: host.outcomes == [Outcome.DONE])
        assert host.memory.tries[0].by == "root"


async def test_while_a_step_is_under_way_no_order_is_taken(tmp_path: Path) -> None:
    async with world(tmp_path, before=[begun("t0", 5.0)]) as host:
        assert host.runner.order(host.plan(), "root")


async def test_a_place_among_the_fleet_that_a_killed_daemon_left_without_a_beginning_is_given_back_once(
    tmp_path: Path,
) -> None:
    made = World(tmp_path / "repair.sock")
    await made.until(lambda: made.log)
    made.runner.step(None)
    assert made.log == ["leave"]
    await made.runner.stop()


async def test_once_it_has_stopped_nothing_more_is_begun(tmp_path: Path) -> None:
    """The end of its last task has the daemon step once more, as it stops."""
    async with world(tmp_path) as host:
        await host.runner.stop()
        before = asyncio.all_tasks()
        host.runner.step(host.plan())
        assert asyncio.all_tasks() == before
