"""`gpuwarden restore` on a node of a real Slurm whose GPU has failed: no job starts there unless a person forces it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import USER
from support.drain_kills import log_of, updates
from support.scrape import Scrape
from support.slurm import SLURM, Slurm
from support.slurm_hosts import REASON, SlurmHost, acting_of, excluded_by

pytestmark = SLURM

XID = "xid.95@gpu/0000:42:00.0"
FAN = f"gpuwarden: operator by={USER} replacing a fan"


@pytest.fixture
def host(tmp_path: Path, slurm: Slurm) -> SlurmHost:
    return SlurmHost(tmp_path, slurm)


def ordered(host: SlurmHost, *words: str) -> tuple[int, str]:
    done = host.order(*words)
    return done.returncode, done.stdout + done.stderr


def openings(slurm: Slurm, since: int) -> list[str]:
    """States that the controller gave the node in answer to a request, and in which jobs start."""
    states = [update.value for update in updates(slurm, "n1", since) if update.what == "state"]
    return [state for state in states if "DRAIN" not in state]


@pytest.mark.slow
def test_a_restore_after_an_exclude_leaves_a_node_with_a_dead_gpu_drained_for_it(host: SlurmHost, slurm: Slurm) -> None:
    since = log_of(slurm).stat().st_size
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the drain")
        job = slurm.submit("true", "-w", "n1")
        assert ordered(host, "exclude", "--reason", "replacing a fan")[0] == 0
        assert slurm.reason("n1") == FAN
        code, output = ordered(host, "restore")
        assert (code, XID in output, "gpuwarden restore --force" in output) == (1, True, True)
        daemon.kill()
    with host.acting() as daemon:
        daemon.wait(lambda: slurm.reason("n1") == REASON, "the failure's reason")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the status to show it")
        code, output = ordered(host, "restore")
        assert (code, "nothing was restored" in output, XID in output) == (64, True, True)
        assert (slurm.job_state(job), openings(slurm, since)) == ("PENDING", [])
        host.is_mended()
        daemon.wait(lambda: slurm.state("n1") == {"IDLE"}, "the node to come back by itself")
        slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", "the job to run")


@pytest.mark.slow
def test_a_forced_restore_names_what_it_overrides_and_is_shown_until_the_failure_ends(
    host: SlurmHost, slurm: Slurm
) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the drain")
        code, output = ordered(host, "restore", "--force")
        assert (code, output.splitlines()[0]) == (0, "slurm: done")
        assert f"{XID} (The driver reported an Xid): jobs that are given GPU 3 may" in output
        assert not host.is_drained()
        daemon.wait(lambda: acting_of(daemon)["overridden"], "the override to be shown")
        assert acting_of(daemon)["overridden"]["findings"] == [XID]
        assert Scrape(daemon.get("/metrics")[1]).value("gpuwarden_failures_overridden") == 1.0
        daemon.kill()
    with host.acting() as daemon:
        daemon.wait_status("failure")
        shown = ordered(host, "status")[1]
        assert "OVERRIDDEN since" in shown
        assert f"by root (gpuwarden restore --force): jobs start despite {XID}" in shown
        assert not host.is_drained()
        host.is_mended()
        daemon.wait_status("healthy")
        daemon.wait(lambda: acting_of(daemon)["overridden"] is None, "the end of the override")
        assert Scrape(daemon.get("/metrics")[1]).value("gpuwarden_failures_overridden") == 0.0


@pytest.mark.slow
def test_in_mode_observe_a_restore_opens_no_node_with_a_dead_gpu_that_an_operator_took_out(
    host: SlurmHost, slurm: Slurm
) -> None:
    with host.acting("observe") as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait_status("failure")
        assert ordered(host, "exclude", "--reason", "replacing a fan")[0] == 0
        code, output = ordered(host, "restore")
        assert (code, "nothing was restored" in output, slurm.reason("n1")) == (64, True, FAN)
        assert ordered(host, "restore", "--force")[0] == 0
        assert not host.is_drained()


@pytest.mark.slow
def test_the_reason_comes_back_whether_or_not_the_breaker_is_open(host: SlurmHost, slurm: Slurm) -> None:
    """The node is out already: neither does it wait for the budget, nor does a count that comes late open it."""
    since = log_of(slurm).stat().st_size
    slurm.drain("n2", "gpuwarden: failure gpu=0 gpu_missing")
    host.configure_slurm(percent=25)
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        assert ordered(host, "exclude", "--reason", "replacing a fan")[0] == 0
        host.breaks()
        daemon.wait_status("failure")
        assert ordered(host, "restore")[0] == 1
        daemon.wait(lambda: slurm.reason("n1") == REASON, "the failure's reason")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the status to show it")
        daemon.wait_passes(15)
        assert (slurm.reason("n1"), openings(slurm, since)) == (REASON, [])
