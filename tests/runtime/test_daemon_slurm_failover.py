"""The whole daemon beside two controllers, of which the backup takes over."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.slurm import SLURM, require_slurm, running
from support.slurm_failover import BACKUP, FailoverSlurm
from support.slurm_hosts import REASON, SlurmHost, acting_of, excluded_by

pytestmark = [*SLURM, pytest.mark.slow]


@pytest.fixture
def slurm() -> Iterator[FailoverSlurm]:
    require_slurm()
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder,
        running(FailoverSlurm(Path(folder), nodes=1, more="MessageTimeout=60")) as slurm,
    ):
        yield slurm


def test_a_drain_that_a_backup_controller_does_not_know_is_written_again_at_once(
    tmp_path: Path, slurm: FailoverSlurm
) -> None:
    """The backup says that it started before the drain. Nobody has lifted it all the same."""
    host = SlurmHost(tmp_path, slurm, gpus=4)
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain to be recorded")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the status to show it")
        slurm.primary_dies_with_its_nodes()
        daemon.wait(lambda: "lost by the scheduler" in daemon.lines(), "to see that the backup does not know it")
        daemon.wait(lambda: slurm.reason("n1") == REASON, "the drain to be written again")
        assert "a moment ago" not in str(acting_of(daemon)["blocked"])


def test_a_drain_that_a_person_lifted_while_the_backup_is_in_control_stays_lifted(
    tmp_path: Path, slurm: FailoverSlurm
) -> None:
    slurm.primary_dies()
    slurm.wait(lambda: slurm.state("n1") == {"IDLE"}, "the backup to take over")
    slurm.wait(lambda: "(1970" not in slurm.command("sdiag"), "it to have its first statistics")
    host = SlurmHost(tmp_path, slurm, gpus=4)
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: '"node excluded"' in daemon.lines(), "the drain to be recorded")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the status to show it")
        slurm.scontrol("update", "NodeName=n1", "State=UNDRAIN")
        before = len(slurm.log(BACKUP))
        daemon.wait(lambda: "a moment ago" in str(acting_of(daemon)["blocked"]), "to see that somebody lifted it")
        daemon.wait_passes(30)
        assert "reason set to: gpuwarden" not in slurm.log(BACKUP)[before:]


def test_a_node_is_drained_beside_a_backup_controller_that_hangs(tmp_path: Path, slurm: FailoverSlurm) -> None:
    """`scontrol show config` pings each controller, and waits for the one that hangs for as long as MessageTimeout."""
    slurm.pause(BACKUP)
    host = SlurmHost(tmp_path, slurm, gpus=4)
    host.configure_slurm(more='timeout = "3s"')
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: slurm.reason("n1") == REASON, "the drain")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:failure"], "the status to show it")
        slurm.scontrol("update", "NodeName=n1", "State=UNDRAIN")
        daemon.wait(lambda: "a moment ago" in str(acting_of(daemon)["blocked"]), "to see that somebody lifted it")
