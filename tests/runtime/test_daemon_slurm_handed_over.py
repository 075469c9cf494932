"""A failed node is handed over to SageMaker HyperPod by the program in the documentation: on a real Slurm, without a HyperPod.

What it does not act on is in `tests/notify/test_hyperpod_program.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.hyperpod import program
from support.slurm import SLURM, Slurm
from support.slurm_hosts import SlurmHost, excluded_by

pytestmark = [*SLURM, pytest.mark.slow]

WORD = "Action:Reboot"  # of an Xid 95, whose advice is a reset of the GPU


@pytest.fixture
def host(tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> SlurmHost:
    slurm_host = SlurmHost(tmp_path, slurm)
    often = '[policy]\nlook_every = "1m"\n'  # else a drain of others is read every 20 minutes, once nothing is wanted
    slurm_host.config.write_text(
        slurm_host.config.read_text().replace('node = "node7"', 'node = "n1"').replace("[policy]\n", often)
        + f'[notify.exec.hyperpod]\ncommand = ["{program(tmp_path)}"]\nevents = ["exclusion"]\n'
    )
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin")
    return slurm_host


def handed_over(slurm: Slurm) -> bool:
    return "FAIL" in slurm.state("n1") and slurm.reason("n1") == WORD


def test_a_failed_node_is_handed_over_once_and_is_not_gpuwardens_from_then_on(host: SlurmHost, slurm: Slurm) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: handed_over(slurm), "the node to be handed over")
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:foreign"], "to see whose it is")
        host.is_mended()
        daemon.wait_status("healthy")
        daemon.wait_passes(5)
        assert handed_over(slurm), "it is HyperPod's to bring the node back"
        slurm.scontrol("update", "NodeName=n1", "State=RESUME")
        daemon.wait(lambda: excluded_by(daemon) == [], "the node to be back")


def test_a_restart_of_the_daemon_hands_over_nothing_again(host: SlurmHost, slurm: Slurm) -> None:
    """The daemon notifies again after a start, as after the reboot that was asked for, what lasts."""
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(lambda: handed_over(slurm), "the node to be handed over")
        daemon.kill()
    calls = len((host.folder / "calls").read_text().splitlines())
    slurm.drain("n1", "looked at by the vendor")
    (host.run_dir / "notified-again").unlink(missing_ok=True)
    with host.acting() as daemon:
        daemon.wait(lambda: excluded_by(daemon) == ["slurm:foreign"], "to see whose it is")
        daemon.wait(
            lambda: len((host.folder / "calls").read_text().splitlines()) > calls, "the program to be told again"
        )
        daemon.wait_passes(5)
        assert slurm.reason("n1") == "looked at by the vendor"
