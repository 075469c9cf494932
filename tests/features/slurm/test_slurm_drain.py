"""Drains and restores on a real Slurm: what is written, what is left alone, and what comes of a controller that is away."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuwarden.policy.model import Flag, Intent, NodeState, Owner, Result, Why
from gpuwarden.policy.situation import occupied
from support.slurm import CONTROLLER, SLURM_PARTS, Slurm
from support.slurm_reconciler import FAILURE, a_reconciler, an_actuator, attempt, exclude, reasons_written, restore

pytestmark = SLURM_PARTS

TERMINATION = "gpuwarden: termination boot=1b4e28ba instance=i-0af01c23"


@pytest.mark.slow
async def test_a_drain_lets_the_running_job_end_and_no_other_begin(slurm: Slurm) -> None:
    release = slurm.folder / "jobs/release"
    release.unlink(missing_ok=True)
    job = slurm.submit(f"while [ ! -e {release} ]; do sleep 0.1; done; echo ended well", "-w", "n1")
    slurm.wait(lambda: slurm.job_state(job) == "RUNNING", "the job to run")
    outcome = await attempt(slurm, exclude())
    assert (outcome.result, slurm.reason("n1")) == (Result.DONE, FAILURE)
    later = slurm.submit("true", "-w", "n1")
    release.touch()
    slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", "the job to end")
    slurm.wait(lambda: slurm.state("n1") == {"IDLE", "DRAIN"}, "n1 to be drained")
    assert slurm.output(job) == "ended well\n"
    assert slurm.job_state(later) == "PENDING"


@pytest.mark.slow
async def test_a_drained_node_whose_job_is_suspended_is_not_empty(slurm: Slurm) -> None:
    """Slurm calls it idle; no repair may reboot it, and no GPU test begin."""
    job = slurm.submit("sleep 600", "-w", "n1", "--gres=gpu:1")
    slurm.wait(lambda: slurm.job_state(job) == "RUNNING", "the job to run")
    slurm.scontrol("suspend", str(job))
    slurm.drain("n1", FAILURE)
    slurm.wait(lambda: slurm.state("n1") == {"IDLE", "DRAIN"}, "Slurm to call it idle")
    actuator = an_actuator(slurm)
    state = await actuator.read()
    assert (state.empty, state.state) == (False, "idle+drain+suspended")
    assert (
        occupied({"slurm": state}, gpus_used=False)
        == "slurm has jobs here (idle+drain+suspended), which must end first"
    )
    slurm.command("scancel", str(job))
    slurm.wait(lambda: slurm.has_ended(job), "the job to end")
    slurm.wait(lambda: slurm.state("n1") == {"IDLE", "DRAIN"}, "it to be gone")
    assert (await actuator.read()).empty is True


async def test_a_drain_in_force_is_not_written_again(slurm: Slurm) -> None:
    """A write would keep its time, but a text of its own would be lost in the log of the controller."""
    before = len(slurm.log())
    first = await attempt(slurm, exclude())
    again = await attempt(slurm, exclude())
    assert (first.result, again.result, again.since) == (Result.DONE, Result.ALREADY, first.since)
    assert reasons_written(slurm, since=before) == [FAILURE]


@pytest.mark.slow
async def test_a_drain_of_gpuwarden_is_lifted_and_the_node_takes_work_again(slurm: Slurm) -> None:
    done = await attempt(slurm, exclude())
    assert (await attempt(slurm, restore(since=done.since))).result is Result.DONE
    job = slurm.submit("true", "-w", "n1")
    slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", "a job to run there")
    assert (await attempt(slurm, restore(since=done.since))).result is Result.ALREADY


@pytest.mark.parametrize("state", ["DRAIN", "FAIL", "DOWN"])
async def test_what_an_administrator_did_is_left_as_it_is(slurm: Slurm, state: str) -> None:
    slurm.drain("n1", "waiting for a fan | ticket 12", state=state)
    before = shown(slurm)
    assert (await attempt(slurm, exclude())).result is Result.DROPPED
    assert (await attempt(slurm, exclude(Why.TERMINATION, TERMINATION))).result is Result.DROPPED
    assert (await attempt(slurm, restore())).result is Result.DROPPED
    assert shown(slurm) == before


async def test_a_drain_that_an_administrator_took_over_is_theirs(slurm: Slurm) -> None:
    done = await attempt(slurm, exclude())
    slurm.scontrol("update", "NodeName=n1", "Reason=mine now")
    assert (await attempt(slurm, restore(since=done.since))).result is Result.DROPPED
    assert (await attempt(slurm, exclude())).result is Result.DROPPED
    assert (slurm.state("n1"), slurm.reason("n1")) == ({"IDLE", "DRAIN"}, "mine now")


async def test_gpuwardens_reason_written_later_by_another_user_is_foreign(slurm: Slurm) -> None:
    slurm.drain("n1", FAILURE)
    assert (await attempt(slurm, restore(since=1.0))).result is Result.DROPPED
    assert slurm.state("n1") == {"IDLE", "DRAIN"}


@pytest.mark.slow
async def test_maintenance_and_reboots_are_left_alone(slurm: Slurm) -> None:
    reservation = (
        "ReservationName=spare",
        "StartTime=now",
        "Duration=60",
        "Flags=maint,ignore_jobs",
        "Nodes=n1",
        "Users=root",
    )
    slurm.scontrol("create", "reservation", *reservation)
    slurm.wait(lambda: "MAINTENANCE" in slurm.state("n1"), "maintenance")
    before = shown(slurm)
    outcome = await attempt(slurm, exclude())
    assert outcome.result is Result.DROPPED
    assert "maintenance" in outcome.text
    assert shown(slurm) == before
    slurm.scontrol("delete", "reservation", "spare")


@pytest.mark.parametrize("state", ["DRAIN", "DOWN"])
async def test_the_termination_of_another_machine_is_lifted(slurm: Slurm, state: str) -> None:
    """The node may be drained or down: somebody's last act may have been to set it down."""
    slurm.drain("n1", TERMINATION, state=state)
    node_state = await an_actuator(slurm).read()
    assert (node_state.owner, node_state.why) == (Owner.OURS, Why.TERMINATION)
    assert (node_state.boot, node_state.instance) == ("1b4e28ba", "i-0af01c23")
    assert (Flag.DOWN in node_state.flags) is (state == "DOWN")
    lifted = await attempt(slurm, restore(Why.TERMINATION, TERMINATION, since=node_state.since))
    assert lifted.result is Result.DONE
    slurm.wait(lambda: slurm.state("n1") == {"IDLE"}, "n1 to be idle")


async def test_a_termination_goes_before_a_failure_and_not_the_other_way(slurm: Slurm) -> None:
    await attempt(slurm, exclude())
    assert (await attempt(slurm, exclude(Why.TERMINATION, TERMINATION))).result is Result.DONE
    assert (await attempt(slurm, exclude())).result is Result.DROPPED
    assert slurm.reason("n1") == TERMINATION


@pytest.mark.slow
async def test_detail_goes_to_a_field_that_nobody_else_uses(slurm: Slurm) -> None:
    done = await attempt(slurm, exclude(), describe=lambda: "Xid 79 at 12:00 | job 4711", detail="comment")
    assert "Comment=gpuwarden: Xid 79 at 12:00 / job 4711" in slurm.show("n1")
    await attempt(slurm, restore(since=done.since), detail="comment")
    assert "Comment=" not in slurm.show("n1")
    slurm.scontrol("update", "NodeName=n1", "Comment=rack 4")
    await attempt(slurm, exclude(), describe=lambda: "more", detail="comment")
    assert "Comment=rack 4" in slurm.show("n1")


async def test_the_breaker_lets_one_of_three_nodes_out(slurm: Slurm) -> None:
    slurm.drain("n3", TERMINATION)  # is neither counted nor limited
    assert (await attempt(slurm, exclude(), "n1")).result is Result.DONE
    second = await attempt(slurm, exclude(), "n2")
    assert second.result is Result.RETRY
    assert "breaker is open" in second.text
    assert (await attempt(slurm, exclude(Why.TERMINATION, TERMINATION), "n2")).result is Result.DONE
    assert (slurm.reason("n1"), slurm.reason("n2")) == (FAILURE, TERMINATION)


@pytest.mark.slow
async def test_a_stopped_controller_is_waited_for(slurm: Slurm) -> None:
    quick = slurm.folder / "quick.conf"  # a client that gives up after 3 s instead of 10
    quick.write_text(f"{slurm.conf.read_text()}\nMessageTimeout=3\n")
    reconciler, intent = a_reconciler(an_actuator(slurm, conf=quick)), exclude()
    slurm.stop(CONTROLLER)
    outcome, delay = await reconciler.attempt(intent)
    assert outcome.result is Result.RETRY
    assert "Unable to contact" in outcome.text
    assert delay > 0
    before = len(slurm.log())
    slurm.start(CONTROLLER)
    assert (await reconciler.attempt(intent))[0].result is Result.DONE
    assert reasons_written(slurm, since=before) == [FAILURE]


@pytest.mark.slow
async def test_a_drain_that_timed_out_is_read_back_before_it_is_written_again(slurm: Slurm) -> None:
    """The controller hangs between read and write, and carries it out when it wakes up."""
    actuator = an_actuator(slurm, timeout=10.0)
    reconciler, intent = a_reconciler(actuator), exclude()
    before, calls = len(slurm.log()), actuator.commands.client.calls
    attempted = asyncio.create_task(reconciler.attempt(intent))
    apply = actuator.apply

    async def hangs_from_here(intent: Intent, state: NodeState) -> None:
        slurm.pause(CONTROLLER)
        await apply(intent, state)

    actuator.apply = hangs_from_here  # type: ignore[method-assign]
    outcome, _ = await attempted
    assert outcome.result is Result.RETRY
    actuator.apply = apply  # type: ignore[method-assign]
    slurm.resume(CONTROLLER)
    slurm.wait(lambda: slurm.reason("n1") == FAILURE, "the drain to be carried out after all")
    assert (await reconciler.attempt(intent))[0].result is Result.ALREADY
    assert reasons_written(slurm, since=before) == [FAILURE]
    assert actuator.commands.client.calls > calls


@pytest.mark.slow
async def test_a_controller_that_restarts_remembers_our_drain(slurm: Slurm) -> None:
    done = await attempt(slurm, exclude())
    slurm.restart(CONTROLLER)
    assert (await attempt(slurm, exclude())).since == done.since
    assert (await attempt(slurm, restore(since=done.since))).result is Result.DONE


@pytest.mark.slow
async def test_a_missing_permission_to_drain_is_retried_ever_less_often(slurm: Slurm) -> None:
    reconciler = a_reconciler(
        an_actuator(slurm, folder=scripts(slurm, scontrol='exec runuser -u nobody -- /usr/bin/scontrol "$@"'))
    )
    intent, delays = exclude(), []
    for _ in range(8):
        outcome, delay = await reconciler.attempt(intent)
        delays.append(delay)
        assert outcome.result is Result.REFUSED
        assert "AdminLevel=Administrator" in outcome.text
    assert delays == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 3600.0, 3600.0]
    assert slurm.state("n1") == {"IDLE"}


@pytest.mark.parametrize("scontrol", ["echo 'slurm_update error: whatever' >&2", "true", "echo warning; echo done"])
async def test_a_command_that_reports_success_without_draining_is_detected(slurm: Slurm, scontrol: str) -> None:
    outcome = await attempt(slurm, exclude(), folder=scripts(slurm, scontrol=scontrol))
    assert (outcome.result, outcome.text) == (Result.RETRY, "it was written, but does not read back")


async def test_a_node_that_slurm_does_not_know_is_a_persons_business(slurm: Slurm) -> None:
    outcome = await attempt(slurm, exclude(), "n9")
    assert outcome.result is Result.REFUSED
    assert "set slurm.node" in outcome.text


async def test_a_pool_is_the_largest_partition_or_those_that_are_named(slurm: Slurm) -> None:
    slurm.scontrol("create", "PartitionName=debug", "Nodes=n1")
    try:
        fleet_count = await an_actuator(slurm).fleet_count()
        assert fleet_count.pool == 3
        named = await an_actuator(slurm, partitions=("debug",)).fleet_count()
        assert named.pool == 1
        assert (await an_actuator(slurm).read()).pool == 3
    finally:
        slurm.scontrol("delete", "PartitionName=debug")


def shown(slurm: Slurm) -> list[str]:
    """Return what Slurm shows of n1 from its state on, without the time of its boot: each registration of slurmd counts it back from
    whole seconds, and may find it a second apart.
    """
    lines = slurm.show("n1").partition("State=")[2].splitlines()
    return [line for line in lines if "BootTime=" not in line]


def scripts(slurm: Slurm, **replacements: str) -> Path:
    """A folder of Slurm's commands, with these instead of the real ones."""
    folder = slurm.folder / "scripts"
    folder.mkdir(exist_ok=True)
    for name, script in {"sinfo": 'exec /usr/bin/sinfo "$@"', **replacements}.items():
        path = folder / name
        # what is only read goes to the real one
        real = '[ "$1" = update ] || exec /usr/bin/scontrol "$@"' if name == "scontrol" else ""
        path.write_text(f"#!/bin/sh\n{real}\n{script}\n")
        path.chmod(0o755)
    return folder
