"""A daemon that is killed while it signals a job of two nodes of a real Slurm, and the one that is started after it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.daemons import RunningDaemon
from support.slurm import SLURM_BESIDE, Slurm
from support.slurm_hosts import SlurmHost, remove
from support.slurm_trainings import Training

pytestmark = SLURM_BESIDE

OWN_SIGNAL = "USR1"
"""Declared by the job: what Slurm sends besides is another one."""


class Killed:
    """A training with the signal only, and the node that goes. `hanging`: a command of Slurm's that the first daemon never gets
    past when it has `argument` among its arguments.
    """

    def __init__(self, slurm: Slurm, hanging: str, argument: str) -> None:
        self.slurm = slurm
        self.training = Training(slurm, answers=False, declares=OWN_SIGNAL)
        self.node = min(self.training.nodes())
        self.folder = slurm.folder / "hosts" / self.node
        self.folder.mkdir(parents=True)
        self.host = SlurmHost(self.folder, slurm, self.node)
        self.host.seclude()
        self.reached = self.folder / "reached"
        self._programs = self._made(hanging, argument)

    def _made(self, hanging: str, argument: str) -> Path:
        programs = self.folder / "programs"
        programs.mkdir()
        os.mkfifo(self.folder / "never")
        for name in ("squeue", "scontrol", "scancel", "sinfo", "sacct"):
            if (real := shutil.which(name)) is None:
                continue
            hangs = f'case "$*" in *{argument}*) echo $$ >{self.reached}; read line <{self.folder}/never;; esac\n'
            (programs / name).write_text(f'#!/bin/sh\n{hangs if name == hanging else ""}exec {real} "$@"\n')
            (programs / name).chmod(0o755)
        return programs

    def dies(self, *, with_command: bool = True) -> None:
        """The daemon, in that command, and the command with it, as in a container that ends."""
        self.configures(f'folder = "{self._programs}"')
        with self.host.acting() as daemon:
            daemon.wait_status("healthy")
            done = self.host.order("notify-termination", "--in", "300s")
            assert done.returncode == 0, done.stderr
            daemon.wait(lambda: self.reached.exists() and self.reached.read_text(), "the command to hang")
            daemon.wait(lambda: b'"departing"' in daemon.get("/v1/events")[1], "the notice to be on disk")
            daemon.process.kill()
            daemon.process.wait()
            if with_command:
                os.kill(int(self.reached.read_text()), signal.SIGKILL)

    def configures(self, slurm: str = "", jobs: str = "") -> None:
        self.host.configure_slurm(more=slurm)
        self.host.config.write_text(f"{self.host.config.read_text()}[jobs]\nrequeue = false\n{jobs}\n")

    def signals(self) -> list[int]:
        return [self.training.signals(rank).count(f"SIG{OWN_SIGNAL}") for rank in range(2)]

    def job(self, daemon: RunningDaemon) -> dict[str, Any]:
        jobs = [job for departure in daemon.status()["jobs"]["departures"] for job in departure["jobs"]]
        return next((job for job in jobs if job["job"] == f"slurm/{self.training.job}"), {})


@pytest.fixture
def before_the_mark(slurm: Slurm) -> Iterator[Killed]:
    yield Killed(slurm, "scontrol", "AdminComment=gpuwarden")
    remove(slurm.folder / "hosts")


@pytest.fixture
def in_the_send(slurm: Slurm) -> Iterator[Killed]:
    yield Killed(slurm, "scancel", f"--signal={OWN_SIGNAL}")
    remove(slurm.folder / "hosts")


@pytest.mark.slow
def test_a_job_whose_daemon_was_killed_before_it_was_marked_is_signalled_as_a_whole(before_the_mark: Killed) -> None:
    killed = before_the_mark
    killed.dies()
    assert killed.signals() == [0, 0]
    killed.configures()
    with killed.host.acting() as daemon:
        daemon.wait(lambda: killed.signals() == [1, 1], "both ranks to be signalled")
        daemon.wait(lambda: killed.job(daemon).get("result") == "sent", "the status to show it")
        assert killed.job(daemon)["way"] == "job_wide"
        daemon.wait_passes(5)
    assert killed.signals() == [1, 1]


@pytest.mark.slow
def test_a_job_whose_daemon_was_killed_in_the_send_is_left_to_the_operator(in_the_send: Killed) -> None:
    killed = in_the_send
    killed.dies()
    killed.configures()
    with killed.host.acting() as daemon:
        daemon.wait(lambda: "killed while it sent" in killed.job(daemon).get("text", ""), "the status to show it")
        assert killed.job(daemon)["result"] == "unknown"
        shown = killed.host.order("status").stdout
        assert f"scancel --signal={OWN_SIGNAL} {killed.training.job}.STEP" in shown
        daemon.wait_passes(10)
    assert killed.signals() == [0, 0]


@pytest.mark.slow
def test_a_command_that_goes_on_behind_a_killed_daemon_is_awaited_and_counts_as_what_it_came_to(
    in_the_send: Killed,
) -> None:
    killed = in_the_send
    killed.dies(with_command=False)
    killed.configures(jobs="signal_again = true")
    with killed.host.acting() as daemon:
        daemon.wait(lambda: killed.job(daemon).get("result") == "unknown", "the job to be known")
        daemon.wait_passes(10)
        assert "killed while it sent" not in killed.job(daemon)["text"]
        assert killed.signals() == [0, 0]
        (killed.folder / "never").write_text("go on\n")
        daemon.wait(lambda: killed.signals() == [1, 1], "both ranks to be signalled")
        daemon.wait(lambda: killed.job(daemon).get("result") == "sent", "the status to show it")
        daemon.wait_passes(10)
    assert killed.signals() == [1, 1]
