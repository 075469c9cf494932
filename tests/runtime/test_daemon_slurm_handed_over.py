"""A failed node is handed over to SageMaker HyperPod by the program in the documentation: on a real Slurm, without a HyperPod."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.needs import needed
from support.slurm import SLURM, Slurm
from support.slurm_hosts import SlurmHost, excluded_by

pytestmark = [*SLURM, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs/use/exclusion.md"
WORD = "Action:Reboot"  # of an Xid 95, whose advice is a reset of the GPU


def program(folder: Path) -> Path:
    """The program of the page. `calls` has a line for each of its runs."""
    needed("jq")
    (text,) = [block for block in PAGE.read_text().split("```")[1::2] if "repair.hyperpod" in block]
    file = folder / "gpuwarden-hyperpod"
    file.write_text(
        text.removeprefix("sh\n").replace("message=$(cat)\n", f"message=$(cat); echo run >>{folder}/calls\n")
    )
    file.chmod(0o755)
    return file


@pytest.fixture
def host(tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> SlurmHost:
    found = SlurmHost(tmp_path, slurm)
    found.config.write_text(
        found.config.read_text().replace('node = "node7"', 'node = "n1"')
        + f'[notify.exec.hyperpod]\ncommand = ["{program(tmp_path)}"]\nevents = ["exclusion"]\n'
    )
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/usr/bin:/sbin:/bin")
    return found


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


def test_mode_observe_hands_over_nothing(host: SlurmHost, slurm: Slurm) -> None:
    with host.acting("observe") as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait((host.folder / "calls").exists, "the program to be told what would be done")
        daemon.wait_passes(5)
        assert slurm.state("n1") == {"IDLE"}


def test_an_operators_exclusion_hands_over_nothing(host: SlurmHost, slurm: Slurm) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        done = host.command("exclude", "--reason", "new fan", "--run-dir", host.run_dir)
        assert done.returncode == 0, done.stderr
        daemon.wait(host.is_drained, "the drain")
        daemon.wait((host.folder / "calls").exists, "the program to be told")
        daemon.wait_passes(5)
        assert "FAIL" not in slurm.state("n1")
        assert slurm.reason("n1").startswith("gpuwarden: operator ")
