"""The epilog notes that the job ended and asks the daemon to read the jobs, without holding up Slurm and without ever failing."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.needs import root_rights
from support.slurm_hooks import NOBODY, PATIENCE, SCRIPTS, HookHost


def with_a_daemon(host: HookHost) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(host.run_dir / "control.sock"))
    return listener


def test_the_daemon_is_asked_and_the_end_is_noted(host: HookHost, shell: Sequence[str]) -> None:
    (host.notes / "4711").write_text("uid=1001 gpus=0 started=5 user=somebody\n")
    with with_a_daemon(host):
        done = host.run("epilog", shell, SLURM_JOB_ID="4711")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (host.notes / "4711").read_text().splitlines()[1].startswith("ended=")
    assert host.wait_for_call() == [f"slurm look --run-dir {host.run_dir}"]


@pytest.mark.parametrize(
    ("code", "noted"),
    [
        ("3:0", "exit=3:0"), ("0:9", "exit=0:9"), ("255:127", "exit=255:127"), ("", ""), ("3", ""), (":", ""), ("3:0 uid=0", ""), ("3:0\nx", ""),
        ("1:2:3", ""), ("-1:0", ""), ("1234:5678", ""), ("$(reboot):0", ""), ("*", ""),
    ],
)  # fmt: skip
def test_how_the_batch_script_ended_is_noted(host: HookHost, shell: Sequence[str], code: str, noted: str) -> None:
    done = host.run("epilog", shell, SLURM_JOB_ID="4711", SLURM_JOB_EXIT_CODE2=code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (line,) = (host.notes / "4711").read_text().splitlines()
    assert line.split()[1:] == noted.split()


def test_what_it_starts_outlives_its_process_group_and_holds_nothing(host: HookHost, tmp_path: Path) -> None:
    """After its end slurmd kills the group of the epilog, and waits until nobody has its output open any more."""
    host.answer(f"read -r end <{tmp_path}/gate; echo ended >>{host.calls}")
    os.mkfifo(tmp_path / "gate")
    with with_a_daemon(host):
        done = subprocess.Popen(
            ["/bin/sh", str(SCRIPTS / "gpuwarden-slurm-epilog")], env=host.environment(SLURM_JOB_ID="4711"),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        output, _ = done.communicate(timeout=PATIENCE)  # returns only when every holder of the pipe has closed it
        assert (done.returncode, output) == (0, b"")
        with pytest.raises(ProcessLookupError):
            os.killpg(done.pid, 15)  # nobody is left in the group that slurmd kills
        host.wait_for_call()
        (tmp_path / "gate").write_text("go\n")
        end = time.monotonic() + PATIENCE
        while "ended" not in host.called() and time.monotonic() < end:
            time.sleep(0.02)
    assert "ended" in host.called()


@pytest.mark.parametrize("job", ["", "x", "../1", "9" * 40])
def test_a_job_that_is_no_number_is_left_alone(host: HookHost, shell: Sequence[str], job: str) -> None:
    with with_a_daemon(host):
        assert host.run("epilog", shell, SLURM_JOB_ID=job).returncode == 0
    assert list(host.notes.iterdir()) == []


def test_it_never_fails_whatever_is_in_its_way(host: HookHost, shell: Sequence[str]) -> None:
    (host.notes / "4711").mkdir()
    host.command.unlink()
    with with_a_daemon(host):
        done = host.run("epilog", shell, SLURM_JOB_ID="4711")
    assert (done.returncode, done.stderr) == (0, "")


def test_in_a_run_directory_of_another_user_it_writes_nothing_and_asks_all_the_same(
    host: HookHost, shell: Sequence[str]
) -> None:
    root_rights()
    (host.run_dir / "jobs").mkdir()
    host.give_away()
    assert host.run("epilog", shell, SLURM_JOB_ID="4711").returncode == 0
    assert list((host.run_dir / "jobs").iterdir()) == []
    assert (host.notes / "4711").read_text().startswith("ended=")
    assert host.wait_for_call() == [f"slurm look --run-dir {host.run_dir}"]


def test_notes_of_another_user_are_not_written(host: HookHost, shell: Sequence[str]) -> None:
    root_rights()
    os.chown(host.notes.parent, NOBODY, NOBODY)
    assert host.run("epilog", shell, SLURM_JOB_ID="4711").returncode == 0
    assert list(host.notes.iterdir()) == []
