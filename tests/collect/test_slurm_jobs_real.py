"""A daemon beside a real Slurm: who is on which GPU, what a job leaves behind, and what the health check has it do."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.slurm.jobs import JobsReader
from support.daemons import FakeHost, RunningDaemon
from support.disposable import require_disposable_host
from support.mounts import fill, tmpfs
from support.scrape import Scrape
from support.slurm import CONTROLLER, PATIENCE, SLURM_PARTS, Slurm, require_slurm, running
from support.slurm_rig_hooks import Rig
from support.whole_lines import whole_lines

pytestmark = SLURM_PARTS


@pytest.fixture(scope="module")
def module_rig() -> Iterator[Rig]:
    require_slurm()
    with tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder:
        rig = Rig(Slurm(Path(folder)))
        rig.slurm.more = rig.prepare()
        with running(rig.slurm):
            yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    module_rig.slurm.clear()
    module_rig.variables()
    return module_rig


@pytest.fixture
def host(rig: Rig, tmp_path: Path) -> FakeHost:
    """The GPUs of n1; its run and state directories are those that the scripts of n1 read."""
    host = FakeHost(tmp_path, 4)
    host.run_dir, host.state_dir = rig.folder / "run-n1", rig.folder / "state-n1"
    for folder in (host.run_dir, host.state_dir, rig.notes("n1")):
        shutil.rmtree(folder)
        folder.mkdir()
    configure(host, rig)
    return host


def configure(host: FakeHost, rig: Rig, slurm: str = "", more: str = "") -> None:
    host.configure(
        f'[slurm]\nenabled = true\nnode = "n1"\nconf = "{rig.slurm.conf}"\njobs_interval = "1s"\n{slurm}\n'
        f'[policy]\nlook_every = "60s"\nlook_often = "5s"\n[breaker]\npercent = 100\n'
        f'[checks.gpu_held_after_job]\nrise = "0s"\n{more}'
    )


def jobs_on(daemon: RunningDaemon) -> set[tuple[str, str]]:
    """Pairs of GPU and job that are published."""
    series = Scrape(daemon.get("/metrics")[1]).labels("gpuwarden_gpu_job_info")
    return {(labels["gpu"], labels["job"]) for labels in series}


def findings(daemon: RunningDaemon, code: str) -> list[dict[str, Any]]:
    return [f for f in daemon.status()["findings"] if f["check"] == code]


@pytest.mark.slow
def test_findings_and_dcgm_exporter_name_the_jobs_of_each_gpu(rig: Rig, host: FakeHost, tmp_path: Path) -> None:
    mapping = tmp_path / "hpc"
    configure(host, rig, f'job_mapping_dir = "{mapping}"')
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        job = rig.slurm.submit("sleep 600", "-w", "n1", "--gres=gpu:2")
        daemon.wait(lambda: jobs_on(daemon) == {("0", str(job)), ("1", str(job))}, "the job on its GPUs")
        daemon.wait(lambda: [whole_lines(mapping / gpu) for gpu in ("0", "1")] == [f"{job}\n"] * 2, "the mapping")
        host.xid(0, 95)
        daemon.wait(lambda: findings(daemon, "xid"), "the Xid")
        evidence = findings(daemon, "xid")[0]["evidence"]
        assert (evidence["job"], evidence["uid"]) == (str(job), "65534")
        rig.slurm.command("scancel", str(job))
        daemon.wait(lambda: not jobs_on(daemon) and not list(mapping.iterdir()), "the end of the job")
        assert findings(daemon, "xid")[0]["evidence"]["job"] == str(job), "it failed under that job"
        assert 'user="nobody"' not in daemon.get("/metrics")[1].decode()


@pytest.mark.slow
def test_a_process_that_outlives_its_job_is_a_finding_until_it_is_gone(rig: Rig, host: FakeHost) -> None:
    """Process tracking by parents misses a process that leaves its session."""
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        pid_file = rig.folder / "jobs/left"
        pid_file.unlink(missing_ok=True)
        command = (
            f"setsid -f sh -c 'echo $$ >{pid_file}; exec sleep 900'; while [ ! -s {pid_file} ]; do sleep 0.1; done"
        )
        job = rig.slurm.submit(command, "-w", "n1", "--gres=gpu:1")
        daemon.wait(lambda: pid_file.exists() and pid_file.read_text().strip(), "the process")
        pid = int(pid_file.read_text())
        host.fake.add(f"process 0 {pid} 1000000")
        try:
            daemon.wait(lambda: findings(daemon, "gpu_held_after_job"), "what the job left")
            (finding,) = findings(daemon, "gpu_held_after_job")
            assert (finding["evidence"]["job"], finding["evidence"]["pids"]) == (str(job), str(pid))
            assert finding["severity"] == "warning"
            shown = host.command("slurm", "jobs", "--run-dir", host.run_dir).stdout
            assert str(pid) in shown
            assert "held after its end" in shown
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        host.fake.clear()
        daemon.wait(lambda: not findings(daemon, "gpu_held_after_job"), "the end of it")


@pytest.mark.slow
@pytest.mark.parametrize(("how", "watched"), [("batch", True), ("batch, opted out", False), ("srun", False)], ids=str)
def test_a_batch_job_is_watched_and_what_opts_out_or_is_interactive_is_not(
    rig: Rig, how: str, *, watched: bool
) -> None:
    """The environment is that which a real Slurm gives to the processes of a job."""
    pid_file = rig.folder / "jobs/watched"
    pid_file.unlink(missing_ok=True)
    script = f"echo $$ >{pid_file}.new; mv {pid_file}.new {pid_file}; exec sleep 600"
    where, step = ("-w", "n1", "--gres=gpu:2"), ("srun", "sh", "-c", script)
    by_hand = None
    if how == "srun":
        words = ("runuser", "-u", "nobody", "--", "srun", *where, "--chdir=/tmp", *step[1:])
        by_hand = subprocess.Popen(words, env=rig.slurm.environment, stdin=subprocess.DEVNULL)
    else:
        # In the command: of --export, Slurm from 25.11 on asks the login shell, which nobody does not have.
        opted = "GPUWARDEN_STALL=ignore " if "opted" in how else ""
        rig.slurm.submit(opted + shlex.join(step), *where)
    try:
        rig.slurm.wait(pid_file.exists, "the step")
        pid = int(pid_file.read_text())
        reader = JobsReader(Path("/proc"), rig.notes("n1"), rig.slurm.conf, node="n1", pids=lambda: [pid])
        facts = reader.read()
        (process,) = facts.processes
        assert [job.watched for job in facts.jobs if job.id == process.job] == [watched]
        assert process.rank == 0
    finally:
        rig.slurm.command("scancel", *rig.slurm.command("squeue", "-h", "--format=%A").split())
        if by_hand is not None:
            by_hand.wait(PATIENCE)


@pytest.mark.slow
def test_with_drain_by_hook_the_node_is_drained_when_slurmd_asks(rig: Rig, host: FakeHost) -> None:
    configure(host, rig, 'drain_by = "hook"')
    host.config.write_text('mode = "enforce"\n' + host.config.read_text())
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.fake.clear()
        host.xid(3, 95)
        daemon.wait_status("failure", "xid.95")
        rig.slurm.wait(lambda: "DRAIN" in rig.slurm.state("n1"), "n1 to be drained")
    assert rig.slurm.reason("n1").startswith("gpuwarden: failure gpu=3")
    asked = "the daemon is asked to act"
    rig.slurm.wait(
        lambda: asked in rig.output("healthcheck", "n1"), "the health check's line, which follows what it asked for"
    )


@pytest.mark.slow
def test_with_drain_by_hook_a_node_with_full_disks_is_drained_too(rig: Rig, host: FakeHost) -> None:
    """Nothing that the health check goes by has to be written first."""
    require_disposable_host()
    configure(host, rig, 'drain_by = "hook"')
    host.config.write_text('mode = "enforce"\n' + host.config.read_text())
    for folder in (host.run_dir, host.state_dir):
        folder.rmdir()
    with tmpfs(host.run_dir, "256k"), tmpfs(host.state_dir, "256k"):
        fill(host.state_dir)
        with host.daemon() as daemon:
            daemon.wait_status("warning", "ledger_unavailable")
            fill(host.run_dir)
            host.fake.clear()
            host.xid(3, 95)
            daemon.wait_status("failure", "xid.95")
            rig.slurm.wait(lambda: "DRAIN" in rig.slurm.state("n1"), "n1 to be drained")


@pytest.mark.slow
def test_the_doctor_finds_this_slurm_in_order_but_for_what_is_not(rig: Rig, host: FakeHost) -> None:
    done = host.command("doctor", "--config", host.config)
    rows = [line for line in done.stdout.splitlines() if line[:4].strip()]
    grades = {line[6:].split("  ")[0]: line[:4].strip() for line in rows}
    good = (
        "controller",
        "scripts",
        "authority",
        "node name",
        "clock",
        "version",
        "Prolog",
        "PrologFlags",
        "SchedulerParameters",
        "Epilog",
    )
    assert {name: grades.get(f"slurm {name}") for name in good} == dict.fromkeys(good, "ok"), done.stdout
    assert grades["slurm ProctrackType"] == "warn"
    assert "slurm HealthCheckProgram" in grades


@pytest.mark.slow
def test_the_doctor_reports_an_unreachable_controller(rig: Rig, host: FakeHost) -> None:
    rig.slurm.stop(CONTROLLER)
    done = host.command("doctor", "--config", host.config)
    assert done.returncode == 2
    assert "fail  slurm controller" in done.stdout
    assert "slurm munge" in done.stdout
