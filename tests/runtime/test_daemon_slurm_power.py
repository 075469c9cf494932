"""Slurm switches machines off and on, and reboots them: nothing is drained for that, and no drain of gpuwarden is forgotten over it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.power_saving import SwitchedHost, calls, power_saving, state_of
from support.scrape import Scrape
from support.slurm import SLURM_BESIDE, Slurm, require_slurm
from support.slurm_hosts import REASON, acting_of, excluded_by
from support.slurm_reconciler import reasons_written

pytestmark = [*SLURM_BESIDE, pytest.mark.slow]


@pytest.fixture
def saving() -> Iterator[Slurm]:
    require_slurm()
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder,
        power_saving(Path(folder)) as slurm,
    ):
        yield slurm


@pytest.fixture
def host(tmp_path: Path, saving: Slurm) -> SwitchedHost:
    return SwitchedHost(tmp_path, saving)


def test_a_node_that_is_switched_off_and_on_is_not_drained_and_its_end_is_as_planned(
    host: SwitchedHost, saving: Slurm
) -> None:
    before = len(saving.log())
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.powers_down()
        done = host.order("notify-termination", "--in", "60")  # SuspendProgram does
        assert done.returncode == 0, done.stderr
        daemon.wait(lambda: daemon.heartbeat()["notice"] is not None, "the notice")
        daemon.wait(lambda: "power" in state_of(daemon), "the daemon to see that the node is switched off")
        scrape = Scrape(daemon.get("/metrics")[1])
        assert scrape.values("gpuwarden_termination_deadline_timestamp_seconds"), (
            "no page for a node that ends as planned"
        )
        daemon.wait_passes(5)
    host.is_switched_on()
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: "powering_up" in state_of(daemon), "the daemon to see that the node boots")
        saving.start("n1", booted=True)
        daemon.wait(lambda: saving.state("n1") == {"IDLE"}, "the node to take work")
        daemon.wait(lambda: state_of(daemon) == "idle", "the daemon to see it")
        daemon.wait_passes(5)
        assert (excluded_by(daemon), daemon.heartbeat()["notice"]) == ([], None)
    assert reasons_written(saving, since=before) == []


def test_a_failed_node_that_slurm_switches_off_is_drained_again_when_it_is_on(
    host: SwitchedHost, saving: Slurm
) -> None:
    """Slurm drops the drain of a node that it switches off: nobody has looked at the GPU, so that the wait for a person's act
    (`policy.lifted_for`, 5 minutes) is not due.
    """
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the drain")
        host.powers_down()
        daemon.wait(lambda: "dropped by the scheduler" in daemon.lines(), "the daemon to see who ended it")
        daemon.wait(lambda: "power" in str(acting_of(daemon)["blocked"]), "status to say why it is not drained again")
        assert "DRAIN" not in saving.state("n1")
        assert "restored" not in daemon.lines()
    host.is_switched_on()
    host.breaks()
    with host.acting() as daemon:
        daemon.wait_status("failure")
        daemon.wait(lambda: "power" in str(acting_of(daemon)["blocked"]), "status to say what it waits for")
        saving.start("n1", booted=True)
        daemon.wait(lambda: saving.reason("n1") == REASON, "the drain")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "status to show it")
        assert saving.state("n1") == {"IDLE", "DRAIN"}


def test_an_operators_exclusion_outlives_a_power_cycle(host: SwitchedHost, saving: Slurm) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        done = host.order("exclude", "--reason", "new fan")
        assert done.returncode == 0, done.stderr
        daemon.wait(host.is_drained, "the drain")
        host.powers_down()
        daemon.wait(lambda: "dropped by the scheduler" in daemon.lines(), "the daemon to see who ended it")
    host.is_switched_on()
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: "powering_up" in state_of(daemon), "the daemon to see that the node boots")
        saving.start("n1", booted=True)
        daemon.wait(host.is_drained, "the drain")
        assert saving.reason("n1").startswith("gpuwarden: operator ")


@pytest.mark.parametrize(("how", "mended"), [((), True), (("ASAP",), False)], ids=["mended", "not mended, ASAP"])
def test_a_drain_outlives_a_reboot_by_slurm_and_ends_only_with_its_cause(
    host: SwitchedHost, saving: Slurm, how: tuple[str, ...], *, mended: bool
) -> None:
    """After `reboot ASAP` Slurm drops every drain: one whose cause is still there is written again."""
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the drain")
        saving.scontrol("reboot", *how, "n1")
        daemon.wait(lambda: calls(saving, "RebootProgram"), "RebootProgram to be called")
        daemon.wait(lambda: "reboot" in state_of(daemon), "the daemon to see that the node reboots")
        assert saving.reason("n1").startswith(REASON)
    saving.stop("n1")
    host.boots_again()
    if not mended:
        host.breaks()
    with host.acting() as daemon:
        daemon.wait_status("healthy" if mended else "failure")
        assert saving.reason("n1").startswith(REASON), "nothing ends it while the machine boots"
        saving.start("n1", booted=True)
        if mended:
            host.waits_restored(daemon)
        else:
            saving.wait(lambda: saving.state("n1") == {"IDLE", "DRAIN"}, "the node to be drained after its reboot")
            daemon.wait(lambda: state_of(daemon) == "idle+drain", "the daemon to see it")
            daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "status to show the drain")
            daemon.wait_passes(5)
            assert saving.reason("n1").startswith("gpuwarden: failure gpu=")
            assert saving.state("n1") == {"IDLE", "DRAIN"}


@pytest.mark.parametrize(
    "waits", [("reboot", "n1"), ("update", "NodeName=n1", "State=POWER_DOWN")], ids=["reboot", "off"]
)
def test_a_failed_node_that_waits_for_its_jobs_to_reboot_or_to_be_off_gets_no_more_jobs(
    host: SwitchedHost, saving: Slurm, waits: tuple[str, ...]
) -> None:
    """Slurm starts jobs on it as before, for as long as it has any: only `ASAP` would drain it."""
    job = saving.submit("sleep 600")
    saving.wait(lambda: saving.job_state(job) == "RUNNING", "the job to run")
    saving.scontrol(*waits)
    asked = saving.state("n1") - {"MIXED"}
    more = saving.submit("sleep 600")
    saving.wait(lambda: saving.job_state(more) == "RUNNING", "one more job to run")
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the drain")
        assert (saving.state("n1"), saving.reason("n1")) == ({"MIXED", "DRAIN", *asked}, REASON)
        assert {saving.job_state(number) for number in (job, more)} == {"RUNNING"}


@pytest.mark.parametrize("how", [(), ("ASAP",)])
def test_a_node_that_a_person_wants_down_after_its_reboot_stays_down(
    host: SwitchedHost, saving: Slurm, how: tuple[str, ...]
) -> None:
    """Slurm appends "reboot complete" to the reason only then. `gpuwarden restore` brings the node back."""
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain")
        saving.scontrol("reboot", *how, "nextstate=DOWN", "n1")
        daemon.wait(lambda: calls(saving, "RebootProgram"), "RebootProgram to be called")
    saving.stop("n1")
    host.boots_again()
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        saving.start("n1", booted=True)
        saving.wait(lambda: "REBOOT_ISSUED" not in saving.state("n1"), "the node to be back")
        daemon.wait(lambda: "reboot complete' was added" in str(acting_of(daemon)["blocked"]), "status to say it")
        daemon.wait_passes(10)
        assert "DOWN" in saving.state("n1")
        assert saving.reason("n1").startswith(REASON)
        assert host.order("restore").returncode == 0
        daemon.wait(lambda: saving.state("n1") == {"IDLE"}, "the node to come back")
