"""The epilog that tests the GPUs of the job that ended: never an exit code, never longer than its limit, nobody else's GPU."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpuwarden.features.active_test.tester.ended_job import NoEndedJob, ended_job
from support.active_test_hosts import ActiveHost
from support.daemons import RunningDaemon
from support.fake_nvml_library import uuid_of
from support.hosts import Host
from support.slurm_hooks import SCRIPTS, SHELLS, HookHost

JOB = {"SLURM_JOB_ID": "4711", "SLURM_JOB_GPUS": "1", "SLURM_SCRIPT_CONTEXT": "epilog_slurmd"}


@pytest.fixture(params=SHELLS.values(), ids=list(SHELLS))
def shell(request: pytest.FixtureRequest) -> Sequence[str]:
    words: Sequence[str] = request.param
    return words


@pytest.mark.parametrize("code", [0, 2, 3, 64])
def test_it_succeeds_whatever_the_test_finds(tmp_path: Path, shell: Sequence[str], code: int) -> None:
    host = HookHost(tmp_path)
    host.answer(f"exit {code}")
    assert host.run("epilog-test", shell, **JOB).returncode == 0
    assert host.wait_for_call() == [f"test --of-ended-job --run-dir {host.run_dir}"]


@pytest.mark.parametrize("changed", [{"SLURM_JOB_GPUS": ""}, {"SLURM_JOB_GPUS": "0;x"}, {"SLURM_JOB_ID": "x"}])
def test_a_job_without_gpus_is_left_alone(tmp_path: Path, shell: Sequence[str], changed: dict[str, str]) -> None:
    host = HookHost(tmp_path)
    assert host.run("epilog-test", shell, **{**JOB, **changed}).returncode == 0
    assert not host.calls.exists()


@pytest.mark.slow
def test_a_test_that_does_not_end_is_killed_and_not_waited_for(tmp_path: Path, shell: Sequence[str]) -> None:
    host = HookHost(tmp_path)
    host.answer(f"trap '' TERM\necho $$ >{tmp_path}/pid\nwhile :; do sleep 1; done")
    script = tmp_path / "epilog-test"
    script.write_text((SCRIPTS / "gpuwarden-slurm-epilog-test").read_text().replace("within=25", "within=5"))
    done = subprocess.run([*shell, str(script)], env=host.environment(**JOB), timeout=60, check=False)
    assert done.returncode == 0
    gone_by = time.monotonic() + 30
    while Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists():
        assert time.monotonic() < gone_by
        time.sleep(0.05)


def test_a_job_is_left_alone_where_the_controller_would_have_to_be_asked_for_its_gpus(tmp_path: Path) -> None:
    """Numbers of GPUs of several types depend on slurm.conf: another job's GPU could be tested."""
    conf = tmp_path / "slurm.conf"
    job = ended_job({**JOB, "SLURMD_NODENAME": "n1"}, tmp_path / "run", conf, time.monotonic)
    gpus = tuple(Host(2).gpus.values())
    due = frozenset(gpu.slot for gpu in gpus)
    gres_conf = conf.with_name("gres.conf")
    gres_conf.write_text("Name=gpu File=/dev/nvidia[0-1]\n")
    assert job.among(gpus, due) == gpus[1:]
    gres_conf.write_text("Name=gpu Type=a File=/dev/nvidia0\nName=gpu Type=b File=/dev/nvidia1\n")
    with pytest.raises(NoEndedJob, match=r"several types, whose order only slurm\.conf has"):
        job.among(gpus, due)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[RunningDaemon]:
    host = ActiveHost(tmp_path)
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        yield daemon
    host.end()


@pytest.mark.slow
def test_only_the_ended_jobs_own_gpus_are_tested_and_not_again_before_they_are_due(daemon: RunningDaemon) -> None:
    host: ActiveHost = daemon.host
    notes = host.run_dir.with_name("run-slurm") / "jobs"
    notes.mkdir(parents=True, exist_ok=True)
    command = host.folder / "gpuwarden"
    command.write_text(f'#!/bin/sh\n[ "$1" = test ] || exit 1\nshift\nexec {shlex.join(host.argv())} "$@"\n')
    command.chmod(0o755)
    variables = {**host.variables, **JOB, "GPUWARDEN_RUN_DIR": str(host.run_dir), "GPUWARDEN_COMMAND": str(command)}

    def ends() -> None:
        script = SCRIPTS / "gpuwarden-slurm-epilog-test"
        assert subprocess.run([script], env=variables, timeout=60, check=False).returncode == 0

    ends()
    assert host.workers == []  # the prolog left no note of the job: nobody knows who else is there
    (notes / "4711").write_text("uid=1001 gpus=1 started=5 user=a\nended=9\n")
    (notes / "4712").write_text("uid=1002 gpus=0,1 started=6 user=b\n")
    ends()
    assert host.workers == []  # another job shares the GPU
    (notes / "4712").write_text("uid=1002 gpus=0 started=6 user=b\n")
    ends()
    assert host.workers == [f"{uuid_of(1)}.0"]
    assert [answer for _, answer, _ in host.note(1)["answers"]] == ["part"]
    ends()
    assert host.workers == [f"{uuid_of(1)}.0"]
