"""The scripts as a real Slurm runs them: it calls the check, a refused job runs elsewhere, nothing drains a node by mistake."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.slurm import SLURM, Slurm, require_slurm, running
from support.slurm_hooks import SCRIPTS, boot, uptime

pytestmark = SLURM

OURS = "gpuwarden: failure gpu=3 gpu_missing"
FAILED: Mapping[str, object] = {
    "format": 1, "boot_id": boot(), "stamp": 0, "fresh_for": 9999, "mode": "enforce", "simulated": 0, "state": "failure",
    "node_state": "failure", "schedulable": 0, "excluded": 1, "excluded_by": "slurm:failure",
    "breaker": 0, "reason": "driver_unresponsive",
}  # fmt: skip


class Rig:
    """Each node of the Slurm has a run directory of its own: a wrapper finds it by the name that slurmd gives."""

    def __init__(self, slurm: Slurm) -> None:
        self.slurm = slurm
        self.folder = slurm.folder

    def prepare(self) -> str:
        """The lines of slurm.conf."""
        for name in self.slurm.names:
            (self.folder / f"run-{name}/jobs").mkdir(parents=True, exist_ok=True)
            (self.folder / f"state-{name}").mkdir(exist_ok=True)
        for script in ("healthcheck", "prolog", "epilog"):
            self._wrap(script)
        return (
            f"HealthCheckProgram={self.folder}/healthcheck\nHealthCheckInterval=2\nHealthCheckNodeState=ANY\n"
            f"Prolog={self.folder}/prolog\nEpilog={self.folder}/epilog\nPrologFlags=Alloc\n"
        )

    def _wrap(self, script: str) -> None:
        """It waits in the middle for as long as the test holds the gate, and notes what the script printed."""
        copy = self.folder / f"gpuwarden-slurm-{script}"
        shutil.copy(SCRIPTS / copy.name, copy)
        wrapper = self.folder / script
        wrapper.write_text(
            "#!/bin/sh\n"
            f"GPUWARDEN_RUN_DIR={self.folder}/run-$SLURMD_NODENAME GPUWARDEN_STATE_DIR={self.folder}/state-$SLURMD_NODENAME\n"
            "export GPUWARDEN_RUN_DIR GPUWARDEN_STATE_DIR\n"
            f"while [ {script} = prolog ] && [ -e {self.folder}/gate ]; do echo >{self.folder}/waiting; /bin/sleep 0.05; done\n"
            f"{copy} >>{self.folder}/{script}-$SLURMD_NODENAME 2>&1\n"
        )
        wrapper.chmod(0o755)

    def verdict(self, node: str, **keys: object) -> None:
        lines = {**FAILED, "stamp": uptime(), **keys}
        path = self.folder / f"run-{node}/verdict"
        new = path.with_name("verdict.new")
        new.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        new.replace(path)

    def said(self, script: str, node: str) -> str:
        path = self.folder / f"{script}-{node}"
        return path.read_text() if path.exists() else ""


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


def test_slurmd_calls_the_check_at_its_start_and_again_and_again(rig: Rig) -> None:
    rig.verdict("n1", state="healthy", node_state="healthy", excluded=0, reason="")
    rig.slurm.wait(lambda: rig.said("healthcheck", "n1").count("gpuwarden: healthy\n") > 1, "two checks of n1")
    assert "there is no verdict" in rig.said("healthcheck", "n2")
    rig.verdict("n1")
    rig.slurm.wait(lambda: "failure: driver_unresponsive; excluded=1" in rig.said("healthcheck", "n1"), "a failure")
    assert rig.slurm.state("n1") == {"IDLE"}, "the hook says it, the daemon acts"


def test_a_refused_job_runs_elsewhere_and_is_not_held(rig: Rig) -> None:
    """It was given the node just before the daemon drained it."""
    slurm = rig.slurm
    for node in ("n2", "n3"):
        slurm.drain(node, "only for a moment")
    (rig.folder / "gate").touch()
    job = slurm.submit("hostname; echo restart=$SLURM_RESTART_COUNT on=$SLURMD_NODENAME", "--gres=gpu:1", "--requeue")
    slurm.wait((rig.folder / "waiting").exists, "the job to be given to n1")
    slurm.drain("n1", OURS)
    for node in ("n2", "n3"):
        slurm.scontrol("update", f"NodeName={node}", "State=UNDRAIN")
    rig.verdict("n1")
    (rig.folder / "gate").unlink()
    slurm.wait(lambda: slurm.job_state(job) == "COMPLETED", f"the job to run elsewhere; it is {slurm.job(job)}")
    slurm.wait(lambda: "restart=1" in slurm.output(job), "its output")
    assert "on=n2" in slurm.output(job) or "on=n3" in slurm.output(job)
    assert slurm.reason("n1") == OURS, "Slurm's own drain must not be what is left"
    assert f"job {job}: refused: this node is bad: driver_unresponsive" in rig.said("prolog", "n1")
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


def test_whatever_else_is_the_case_the_job_runs_and_the_node_is_not_drained(rig: Rig) -> None:
    for case, keys in STARTS.items():
        if keys is None:
            (rig.folder / "run-n1/verdict").unlink(missing_ok=True)
        else:
            rig.verdict("n1", **keys)
        said = rig.slurm.command("srun", "-w", "n1", "--gres=gpu:1", "sh", "-c", "echo ran on $SLURMD_NODENAME")
        assert "ran on n1" in said, case
        assert not rig.slurm.state("n1") & {"DRAIN", "DOWN", "FAIL"}, case


def test_the_prolog_and_the_epilog_leave_word_for_the_daemon(rig: Rig) -> None:
    job = rig.slurm.submit("true", "--gres=gpu:2", "-w", "n2")
    note = rig.folder / f"run-n2/jobs/{job}"
    rig.slurm.wait(lambda: note.exists() and "ended=" in note.read_text(), "the end of the job to be noted")
    assert "uid=65534 gpus=0,1 started=" in note.read_text()
    assert rig.slurm.state("n2") <= {"IDLE", "COMPLETING", "MIXED", "ALLOCATED"}
