"""The whole daemon on a node of a real Slurm: what a GPU's fault does to the node, and what of it is taken back."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.slurm import CONTROLLER, SLURM, Slurm
from support.slurm_hosts import REASON, SlurmHost, acting_of, excluded_by
from support.slurm_reconciler import reasons_written

pytestmark = SLURM

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
OTHERS = "gpuwarden: termination boot=0badb007 instance=i-another"


@pytest.fixture
def host(tmp_path: Path, slurm: Slurm) -> SlurmHost:
    return SlurmHost(tmp_path, slurm)


@pytest.mark.slow
def test_a_bad_gpu_drains_the_node_and_a_mended_one_brings_it_back(host: SlurmHost, slurm: Slurm) -> None:
    """The job that runs meanwhile ends undisturbed."""
    release, before = slurm.folder / "jobs/release-daemon", len(slurm.log())
    job = slurm.submit(f"while [ ! -e {release} ]; do sleep 0.1; done; echo ended well", "-w", "n1")
    slurm.wait(lambda: slurm.job_state(job) == "RUNNING", "the job to run")
    host.configure_slurm(more='detail = "extra"')
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(host.is_drained, "the drain")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the status to show it")
        assert (slurm.reason("n1"), daemon.get("/heartbeat")[0]) == (REASON, 503)
        detail = slurm.show("n1").partition("Extra=")[2].partition("\n")[0]
        assert detail.startswith("gpuwarden: The driver reported an Xid (xid.95@gpu/0000:42:00.0): ")
        assert "; Xid: 95; kernel log or check: something broke" in detail
        release.touch()
        slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", "the job to end")
        assert slurm.output(job) == "ended well\n"
        host.is_mended()
        daemon.wait(lambda: slurm.state("n1") == {"IDLE"}, "the node to come back")
        daemon.wait(lambda: daemon.get("/heartbeat")[0] == 200, "the heartbeat to show it")
        assert "Extra=" not in slurm.show("n1")
    assert reasons_written(slurm, since=before) == [REASON]


@pytest.mark.slow
def test_what_an_administrator_drained_is_theirs_before_during_and_after_a_failure(
    host: SlurmHost, slurm: Slurm
) -> None:
    slurm.drain("n1", "new fan | ticket 12")
    before = slurm.show("n1").partition("Reason=")[2]
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:foreign"], "to see that it is drained")
        host.breaks()
        daemon.wait_status("failure")
        passes = daemon.heartbeat()["sequence"]
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > passes + 5, "some passes")
        host.is_mended()
        daemon.wait_status("healthy")
        passes = daemon.heartbeat()["sequence"]
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > passes + 5, "some passes")
        assert slurm.show("n1").partition("Reason=")[2] == before


@pytest.mark.slow
def test_in_a_maintenance_reservation_a_failure_is_found_and_drained_only_after_its_end(
    host: SlurmHost, slurm: Slurm
) -> None:
    options = ("StartTime=now", "Duration=60", "Flags=maint,ignore_jobs", "Nodes=n1", "Users=root")
    slurm.scontrol("create", "reservation", "ReservationName=spare", *options)
    slurm.wait(lambda: "MAINTENANCE" in slurm.state("n1"), "maintenance")
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:maintenance"], "the reservation to be shown")
        host.breaks()
        daemon.wait_status("failure")
        passes = daemon.heartbeat()["sequence"]
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > passes + 5, "some passes")
        assert "DRAIN" not in slurm.state("n1")
        slurm.scontrol("delete", "ReservationName=spare")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the drain")
        assert slurm.reason("n1") == REASON


@pytest.mark.slow
def test_mode_observe_shows_what_it_would_do_and_writes_nothing(host: SlurmHost, slurm: Slurm) -> None:
    before = len(slurm.log())
    with host.acting("observe") as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: acting_of(daemon)["would"], "the intent to be shown")
        assert acting_of(daemon)["would"][0]["reason"] == REASON
        assert slurm.state("n1") == {"IDLE"}
    assert reasons_written(slurm, since=before) == []


@pytest.mark.slow
def test_a_replacement_lifts_the_exclusion_of_the_machine_before_it(host: SlurmHost, slurm: Slurm) -> None:
    """Its ledger is empty: all it has to go by is the reason."""
    slurm.drain("n1", OTHERS, state="DOWN")
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: slurm.state("n1") == {"IDLE"}, "the replacement to take work")


@pytest.mark.slow
def test_a_machine_that_rebooted_under_its_own_notice_stays_out(host: SlurmHost, slurm: Slurm) -> None:
    reason = f"gpuwarden: termination boot={BOOT} instance=i-0af01c23"
    slurm.drain("n1", reason)
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:termination"], "it to be recognised as gpuwarden's")
        passes = daemon.heartbeat()["sequence"]
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > passes + 5, "some passes")
        assert slurm.reason("n1") == reason


@pytest.mark.slow
def test_the_breaker_keeps_the_second_of_three_nodes_in(host: SlurmHost, slurm: Slurm) -> None:
    slurm.drain("n2", "gpuwarden: failure gpu=0 gpu_missing")
    host.configure_slurm(percent=25)
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: acting_of(daemon)["breaker"], "the breaker to open")
        assert (daemon.heartbeat()["status"], daemon.get("/heartbeat")[0]) == ("failure", 503)
        assert "gpuwarden_breaker_open 1" in daemon.get("/metrics")[1].decode()
        assert slurm.state("n1") == {"IDLE"}


@pytest.mark.slow
def test_a_controller_that_was_away_gets_what_was_wanted_when_it_returns(host: SlurmHost, slurm: Slurm) -> None:
    quick = slurm.folder / "quick.conf"  # a client that gives up after 3 s instead of 10
    quick.write_text(f"{slurm.conf.read_text()}\nMessageTimeout=3\n")
    host.configure_slurm(conf=quick)
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        slurm.stop(CONTROLLER)
        host.breaks()
        daemon.wait(lambda: "Unable to contact" in str(acting_of(daemon)), "the unreachable controller to be reported")
        daemon.wait_status("failure")
        before = len(slurm.log())
        slurm.start(CONTROLLER)
        daemon.wait(host.is_drained, "the drain")
    assert reasons_written(slurm, since=before) == [REASON]


@pytest.mark.slow
def test_without_the_right_to_drain_there_is_one_finding_and_no_storm(host: SlurmHost, slurm: Slurm) -> None:
    folder = slurm.folder / "as-nobody"
    folder.mkdir(exist_ok=True)
    for name, script in {
        "sinfo": 'exec /usr/bin/sinfo "$@"',
        "scontrol": f'echo "$*" >> {host.folder}/calls; exec runuser -u nobody -- /usr/bin/scontrol "$@"',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    host.configure_slurm(more=f'folder = "{folder}"')
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait_status("failure", "xid.95")
        daemon.wait(lambda: "actuator_refused" in str(daemon.status()["findings"]), "the finding")
        assert "AdminLevel=Administrator" in str(daemon.status()["findings"])
        passes = daemon.heartbeat()["sequence"]
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > passes + 10, "some passes")
    asked = (host.folder / "calls").read_text().splitlines()
    assert sum(line.startswith("update") for line in asked) == 1
    assert slurm.state("n1") == {"IDLE"}
