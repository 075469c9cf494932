"""Containers of a real dockerd are signalled as their labels declare."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from support.daemons import FakeHost, RunningDaemon
from support.docker import DOCKER, Container, Docker, wait
from support.ranks import SCRIPT

pytestmark = DOCKER
PYTHON = "/opt/gpuwarden/bin/python3"


def rank(docker: Docker, image: str, *labels: str) -> Container:
    """A process that catches TERM and USR1 and prints which it got."""
    label_flags = [part for label in labels for part in ("--label", label)]
    flags = ["--entrypoint", PYTHON, "--env", "RANK=0", "--name", f"rank-{len(labels)}", *label_flags]
    container = docker.start(image, "-I", "-c", SCRIPT, "TERM,USR1", "0", flags=flags)
    wait(lambda: "ready" in container.logs(), "the rank to be ready", container.logs)
    return container


@pytest.mark.slow
def test_a_container_gets_the_signal_of_its_label_and_is_named_by_dstacks(
    docker: Docker, image: str, tmp_path: Path
) -> None:
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    host.configure(f'[jobs]\ndocker = "{docker.socket}"\n')
    with ExitStack() as stack:
        labelled = stack.enter_context(rank(docker, image, "gpuwarden.signal=USR1", "ai.dstack.shim.task-id=task-1"))
        plain = stack.enter_context(rank(docker, image))
        for number, container in enumerate((labelled, plain)):
            (pid,) = container.processes()
            host.admit(pid)
            host.fake.process(number, pid, 1 << 30)
        daemon = RunningDaemon(host, more={"GPUWARDEN_MODE": "enforce"})
        stack.callback(daemon.kill)
        daemon.find_port()
        daemon.wait_status("healthy")
        announces = ("notify-termination", "--in", "300s", "--reason", "spot")  # a busy host may not be scanned in time
        wait(lambda: "2 jobs are signalled" in host.order(*announces).stdout, "both to be signalled", daemon.lines)
        wait(lambda: labelled.logs().split() == ["ready", "USR1"], "the declared signal", daemon.lines)
        wait(lambda: plain.logs().split() == ["ready", "TERM"], "the signal of who declares none", daemon.lines)
        (departure,) = daemon.status()["jobs"]["departures"]
        assert {job["job"] for job in departure["jobs"]} == {"container/task-1", f"container/{plain.id}"}
