"""The whole daemon beside a controller that crashes and forgets, and beside reasons that its ledger does not know."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.slurm import SLURM, Slurm
from support.slurm_hosts import REASON, SlurmHost, acting_of, excluded_by
from support.slurm_reconciler import reasons_written

pytestmark = SLURM


@pytest.fixture
def host(tmp_path: Path, slurm: Slurm) -> SlurmHost:
    return SlurmHost(tmp_path, slurm, gpus=4)


@pytest.mark.slow
def test_a_drain_that_the_controller_forgot_is_written_again_at_once(host: SlurmHost, slurm: Slurm) -> None:
    """The daemon does not wait for `lifted_for`, five minutes, since nobody has lifted the drain."""
    state = slurm.remembers()
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain to be recorded")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the status to show it")
        before = len(slurm.log())
        slurm.crashes(state)
        daemon.wait(lambda: reasons_written(slurm, since=before), "the drain to be written again")
        daemon.wait(host.is_drained, "the drain")
        assert slurm.reason("n1") == REASON


@pytest.mark.slow
def test_a_drain_that_the_controller_forgot_while_the_daemon_was_away_is_written_again_at_once(
    host: SlurmHost, slurm: Slurm
) -> None:
    """The daemon that starts has not seen the drain; its ledger has when it was written."""
    state = slurm.remembers()
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain to be recorded")
    slurm.crashes(state)
    assert not host.is_drained()
    before = len(slurm.log())
    with host.acting() as daemon:
        daemon.wait(lambda: reasons_written(slurm, since=before), "the drain to be written again")
        daemon.wait(host.is_drained, "the drain")
        assert slurm.reason("n1") == REASON
        assert "a moment ago" not in str(acting_of(daemon)["blocked"])


@pytest.mark.slow
def test_a_drain_that_a_person_lifted_beside_a_controller_that_runs_on_stays_lifted(
    host: SlurmHost, slurm: Slurm
) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain to be recorded")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the status to show it")
        before = len(slurm.log())
        slurm.scontrol("update", "NodeName=n1", "State=UNDRAIN")
        daemon.wait(lambda: "a moment ago" in str(acting_of(daemon)["blocked"]), "to see that somebody lifted it")
        daemon.wait_passes(30)
        assert reasons_written(slurm, since=before) == []


@pytest.mark.slow
def test_a_restoration_that_the_controller_forgot_is_made_again(host: SlurmHost, slurm: Slurm) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain to be recorded")
        state = slurm.remembers()
        host.is_mended()
        daemon.wait(lambda: '"node restored"' in daemon.lines(), "the restoration to be recorded")
    slurm.crashes(state)  # with no daemon that would restore the node before it is looked at
    assert slurm.reason("n1") == REASON
    assert host.is_drained()
    with host.acting() as daemon:  # which reads the node at once, and has it from the ledger
        daemon.wait(lambda: slurm.state("n1") == {"IDLE"}, "the node to come back")


@pytest.mark.slow
def test_a_reason_to_which_a_person_added_something_is_said_and_lifted_by_a_person(
    host: SlurmHost, slurm: Slurm
) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain to be recorded")
        slurm.scontrol("update", "NodeName=n1", f"Reason={REASON} ticket 4711")
        host.is_mended()
        daemon.wait_status("healthy")
        daemon.wait(lambda: "'ticket 4711' was added" in str(acting_of(daemon)["blocked"]), "status to say it")
        daemon.wait_passes(10)
        assert (slurm.state("n1"), slurm.reason("n1")) == ({"IDLE", "DRAIN"}, f"{REASON} ticket 4711")
        assert host.order("restore").returncode == 0
        daemon.wait(lambda: slurm.state("n1") == {"IDLE"}, "the node to come back")


@pytest.mark.slow
def test_a_drain_that_a_lost_ledger_held_is_said_and_lifted_by_a_person(host: SlurmHost, slurm: Slurm) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain to be recorded")
    shutil.rmtree(host.state_dir)
    host.kmsg.write_text("")
    host.config.write_text(f'{host.config.read_text()}[checks.exclusion_stuck]\nrise = "2s"\n')
    with host.acting() as daemon:
        daemon.wait(lambda: "gpuwarden restore" in str(acting_of(daemon)["blocked"]), "status to say it")
        daemon.wait_status("warning", "exclusion_stuck")
        (finding,) = daemon.status()["findings"]
        assert "slurm: the ledger has no record of this exclusion" in finding["evidence"]["why"]
        assert "gpuwarden restore" in finding["evidence"]["why"]
        shown = host.order("status").stdout
        assert ("exclusion_stuck" in shown, "gpuwarden restore" in shown) == (True, True)
        assert host.is_drained()
        assert host.order("restore").returncode == 0
        daemon.wait(lambda: slurm.state("n1") == {"IDLE"}, "the node to come back")
