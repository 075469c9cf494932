"""`gpuwarden test` on a node of a real Slurm: who else is here, and when all of the memory may be taken."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.active_test_hosts import PASSES, ActiveHost, ended, gone, wait
from support.daemons import PATIENCE, Json
from support.fake_nvml_library import uuid_of
from support.slurm import GPUS, SLURM, Slurm

pytestmark = SLURM
SLEEPS = "sleep 300"


class SlurmNode(ActiveHost):
    """n1, whose GPUs are the fake library's."""

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        super().__init__(folder, GPUS)
        self.slurm = slurm
        self.configure(f'[slurm]\nenabled = true\nnode = "n1"\ntimeout = "10s"\nconf = "{slurm.conf}"\n')
        self.more = {"PATH": slurm.environment["PATH"], "SLURM_CONF": str(slurm.conf)}

    def answers(self) -> list[str]:
        return [answer for _, answer, _ in self.note(0)["answers"]]

    def busy(self, *words: str) -> str:
        """Run a test that must not begin since the GPUs are busy, and return its text."""
        code, document = self.test(*words)
        assert (code, {gpu["obstacle"] for gpu in document["gpus"]}, self.workers) == (3, {"busy"}, [])
        text: str = document["gpus"][0]["text"]
        return text

    def job(self, script: str, *options: str) -> int:
        job = self.slurm.submit(script, "--nodelist=n1", *options, user="root")
        self.slurm.wait(lambda: self.slurm.job_state(job) == "RUNNING", f"job {job} to run")
        return job

    def submit_test(self, *options: str) -> tuple[int, Path]:
        """A job that is `gpuwarden test`, and where its document is written."""
        result = self.folder / "result.json"
        variables = {name: value for name, value in self.variables.items() if not name.startswith("SLURM")}
        variables["SLURM_CONF"] = str(self.slurm.conf)
        env = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        script = f"exec env {env} {shlex.join(self.argv('--json'))} > {result}"
        return self.slurm.submit(script, "--nodelist=n1", *options, user="root"), result


@pytest.fixture
def node(tmp_path: Path, slurm: Slurm) -> Iterator[SlurmNode]:
    node = SlurmNode(tmp_path, slurm)
    yield node
    node.end()


def finished(node: SlurmNode, job: int, result: Path) -> Json:
    node.slurm.wait(lambda: node.slurm.has_ended(job), f"job {job} to end")
    document: Json = json.loads(result.read_text())
    return document


@pytest.mark.slow
def test_an_idle_node_is_tested_at_level_gate_only_since_a_job_may_start(node: SlurmNode) -> None:
    assert "Slurm may start a job on n1 at any moment: gpuwarden exclude" in node.busy("--level", "quick")
    assert node.test("--level", "gate")[0] == 0
    assert node.answers() == ["part"]


@pytest.mark.slow
def test_on_a_drained_node_without_a_job_all_memory_is_taken(node: SlurmNode) -> None:
    node.slurm.drain("n1", "new board")
    assert node.test("--level", "standard")[0] == 0
    assert node.answers() == ["all"]


@pytest.mark.slow
def test_a_node_with_a_job_is_left_alone_also_a_drained_one(node: SlurmNode) -> None:
    job = node.job(SLEEPS)
    assert f"Slurm has jobs here ({job} of root)" in node.busy("--level", "gate")
    node.slurm.drain("n1", "new board")
    assert f"Slurm has jobs here ({job} of root)" in node.busy("--level", "gate")


@pytest.mark.slow
def test_a_suspended_job_counts_though_the_node_is_idle(node: SlurmNode) -> None:
    job = node.job(SLEEPS)
    node.slurm.scontrol("suspend", str(job))
    try:
        assert "Slurm has jobs here" in node.busy("--level", "gate")
    finally:
        node.slurm.scontrol("resume", str(job))


@pytest.mark.slow
def test_a_job_that_starts_before_the_memory_is_taken_keeps_it(node: SlurmNode) -> None:
    started = node.folder / "started"
    node.script({"*": [{"write": {"phase": "int8"}}, {"wait": str(started)}, *PASSES]})
    process = node.begin("--json", "--level", "gate", "--gpu", "0")
    node.wait_note(0)
    job = node.job(SLEEPS)
    started.touch()
    code, document = ended(process)
    assert (code, document["gpus"][0]["obstacle"]) == (3, "busy")
    assert f"Slurm has jobs here ({job} of root)" in document["gpus"][0]["text"]
    assert node.answers() == ["none"]


@pytest.mark.slow
def test_an_exclusive_job_with_all_gpus_is_alone(node: SlurmNode) -> None:
    job, result = node.submit_test("--exclusive", f"--gres=gpu:{GPUS}")
    document = finished(node, job, result)
    assert document["exit_code"] == 0
    assert node.answers() == ["all"]


@pytest.mark.slow
def test_a_job_that_others_may_run_beside_is_not_alone(node: SlurmNode) -> None:
    document = finished(node, *node.submit_test("--gres=gpu:2"))
    assert document["exit_code"] == 3
    text = f"has 2 of {GPUS} GPUs, not exclusively: add --exclusive and --gres=gpu:{GPUS}"
    assert text in document["gpus"][0]["text"]
    assert node.workers == []


@pytest.mark.slow
def test_a_variable_of_an_exclusive_job_without_being_in_it_is_not_believed(node: SlurmNode) -> None:
    job = node.job(SLEEPS, "--exclusive", f"--gres=gpu:{GPUS}")
    node.more["SLURM_JOB_ID"] = str(job)
    assert "Slurm has jobs here" in node.busy("--level", "gate")


@pytest.mark.slow
def test_a_job_that_is_cancelled_leaves_a_report_and_no_worker(node: SlurmNode) -> None:
    node.script({"*": [{"ask": "memory"}, {"sleep": 300}]})
    job, result = node.submit_test("--exclusive", f"--gres=gpu:{GPUS}")
    wait(lambda: len(node.workers) == GPUS and node.note(GPUS - 1)["answers"], "all workers in their last phase")
    node.slurm.command("scancel", str(job))
    document = finished(node, job, result)
    assert {gpu["obstacle"] for gpu in document["gpus"]} == {"interrupted"}
    assert "ended by SIGTERM" in document["gpus"][0]["text"]
    assert all(gone(node.note(gpu)["pid"]) for gpu in range(GPUS))


@pytest.mark.slow
def test_a_controller_that_does_not_answer_counts_as_occupied(node: SlurmNode) -> None:
    node.slurm.drain("n1", "new board")
    node.slurm.pause("slurmctld")
    assert "Slurm does not list the jobs here" in node.busy("--level", "gate")


@pytest.mark.slow
def test_a_controller_that_hangs_does_not_hold_up_a_signal(node: SlurmNode) -> None:
    node.slurm.drain("n1", "new board")
    node.slurm.pause("slurmctld")
    process = node.begin("--json", "--level", "gate")
    node.slurm.wait(lambda: _children_of(process), "the command of Slurm")
    process.terminate()
    code, document = ended(process)
    assert (code, {gpu["obstacle"] for gpu in document["gpus"]}) == (3, {"interrupted"})


def _children_of(process: subprocess.Popen[str]) -> bool:
    listing = subprocess.run(
        ["ps", "--ppid", str(process.pid), "-o", "comm="], capture_output=True, text=True, check=False
    )
    return any(name in listing.stdout for name in ("sinfo", "squeue"))


@pytest.mark.slow
def test_the_order_that_nobody_is_here_is_refused(node: SlurmNode) -> None:
    process = node.begin("--i-know-nobody-is-here")
    assert process.wait(PATIENCE) == 64
    process.communicate()
    assert uuid_of(0) not in "".join(node.workers)


@pytest.mark.slow
def test_a_node_that_gpuwarden_excludes_is_tested_as_soon_as_it_is_drained(node: SlurmNode) -> None:
    node.script({"*": [{"write": {"phase": "int8"}}, {"sleep": 4}, *PASSES]})
    with node.daemon(more={"GPUWARDEN_MODE": "enforce"}) as daemon:
        daemon.wait_status("healthy")
        assert node.order("exclude", "--reason", "testing").returncode == 0
        code, document = node.test("--gpu", "0")
        while code == 3 and not node.workers:  # not drained yet
            code, document = node.test("--gpu", "0")
        assert (code, document["verdict"], document["notes"]) == (0, "nothing_found", [])
        assert node.order("restore").returncode == 0
        node.slurm.wait(lambda: "DRAIN" not in node.slurm.state("n1"), "the node to be back")
