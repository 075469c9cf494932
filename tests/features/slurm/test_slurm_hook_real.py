"""The scripts as a real Slurm runs them: it calls the check, a refused job runs elsewhere, nothing drains a node by mistake."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwarden_collectors.slurm.jobs_register import registered
from support.slurm import SLURM, Slurm, require_slurm, running
from support.slurm_rig_hooks import Rig

pytestmark = SLURM

OWN_REASON = "gpuwarden: failure gpu=3 gpu_missing"


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder:
        slurm = Slurm(Path(folder))
        rig = Rig(slurm)
        slurm.more = rig.prepare()
        with running(slurm):
            yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    (module_rig.folder / "gate").unlink(missing_ok=True)
    (module_rig.folder / "waiting").unlink(missing_ok=True)
    module_rig.slurm.clear()
    for name in module_rig.slurm.names:
        (module_rig.folder / f"run-{name}/verdict").unlink(missing_ok=True)
    return module_rig


@pytest.mark.slow
def test_slurmd_calls_the_check_at_its_start_and_again_and_again(rig: Rig) -> None:
    rig.verdict("n1", state="healthy", node_state="healthy", excluded=0, reason="")
    rig.slurm.wait(lambda: rig.output("healthcheck", "n1").count("gpuwarden: healthy\n") > 1, "two checks of n1")
    rig.slurm.wait(lambda: "there is no verdict" in rig.output("healthcheck", "n2"), "a check of n2")
    rig.verdict("n1")
    rig.slurm.wait(lambda: "failure: driver_unresponsive; excluded=1" in rig.output("healthcheck", "n1"), "a failure")
    assert rig.slurm.state("n1") == {"IDLE"}, "the hook prints it, the daemon acts"


@pytest.mark.slow
def test_a_refused_job_runs_elsewhere_and_is_not_held(rig: Rig) -> None:
    """The job was given the node just before the daemon drained it."""
    slurm = rig.slurm
    for node in ("n2", "n3"):
        slurm.drain(node, "only for a moment")
    (rig.folder / "gate").touch()
    job = slurm.submit("hostname; echo restart=$SLURM_RESTART_COUNT on=$SLURMD_NODENAME", "--gres=gpu:1", "--requeue")
    slurm.wait((rig.folder / "waiting").exists, "the job to be given to n1")
    slurm.drain("n1", OWN_REASON)
    for node in ("n2", "n3"):
        slurm.scontrol("update", f"NodeName={node}", "State=UNDRAIN")
    rig.verdict("n1")
    (rig.folder / "gate").unlink()
    slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", f"the job to run elsewhere; it is {slurm.job(job)}")
    slurm.wait(lambda: "restart=1" in slurm.output(job), "its output")
    assert "on=n2" in slurm.output(job) or "on=n3" in slurm.output(job)
    assert slurm.reason("n1") == OWN_REASON, "Slurm's own drain must not be what is left"
    assert f"job {job}: refused: this node is bad: driver_unresponsive" in rig.output("prolog", "n1")
    noted = {node: (rig.notes(node) / str(job)).read_text() for node in ("n1", slurm.job(job)["BatchHost"])}
    assert ["refused=1\n" in note for note in noted.values()] == [True, False]
    assert "held" not in slurm.job(job).get("Reason", "").lower()


STARTS: dict[str, dict[str, object] | None] = {
    "a missing verdict": None,
    "a stale verdict": {"stamp": 1, "fresh_for": 15},
    "a verdict of another boot": {"boot_id": "x"},
    "an unreadable verdict": {"stamp": "08"},
    "observe mode": {"mode": "observe"},
    "an open breaker": {"breaker": 1},
    "a node that is not excluded": {"excluded": 0},
    "simulated GPUs": {"simulated": 1},
    "a GPU that another job has": {"node_state": "healthy", "gres.3": "failure"},
}


@pytest.mark.slow
def test_whatever_else_is_the_case_the_job_runs_and_the_node_is_not_drained(rig: Rig) -> None:
    for case, keys in STARTS.items():
        if keys is None:
            (rig.folder / "run-n1/verdict").unlink(missing_ok=True)
        else:
            rig.verdict("n1", **keys)
        output = rig.slurm.command("srun", "-w", "n1", "--gres=gpu:1", "sh", "-c", "echo ran on $SLURMD_NODENAME")
        assert "ran on n1" in output, case
        assert not rig.slurm.state("n1") & {"DRAIN", "DOWN", "FAIL"}, case


@pytest.mark.slow
def test_the_prolog_and_the_epilog_leave_a_note_for_the_daemon(rig: Rig) -> None:
    job = rig.slurm.submit("true", "--gres=gpu:2", "-w", "n2")
    note = rig.notes("n2") / str(job)
    rig.slurm.wait(lambda: note.exists() and "ended=" in note.read_text(), "the end of the job to be noted")
    assert "uid=65534 gpus=0,1 started=" in note.read_text()
    assert "stall" not in note.read_text()
    assert rig.slurm.state("n2") <= {"IDLE", "COMPLETING", "MIXED", "ALLOCATED"}


@pytest.mark.slow
def test_the_note_has_that_the_comment_of_the_job_opts_out(rig: Rig) -> None:
    job = rig.slurm.submit("true", "--gres=gpu:2", "-w", "n2", "--comment=run 7; gpuwarden:stall=ignore")
    note = rig.notes("n2") / str(job)
    rig.slurm.wait(lambda: note.exists() and "ended=" in note.read_text(), "the end of the job to be noted")
    assert not registered(note.parent, float("inf"))[job].watched
