"""SIGTERM to a daemon that lives in a container: it signals the jobs first, and stops once they are done."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from support.daemons import PATIENCE, FakeHost, RunningDaemon
from support.ranks import rank

CONTAINER = '[termination]\nsources = ["container"]\n[termination.container]\nwindow = "300s"\n'


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path, gpus=2)
    host.seclude()
    host.configure(CONTAINER)
    return host


def started(host: FakeHost, mode: str = "enforce", **more: str) -> RunningDaemon:
    daemon = RunningDaemon(host, more={"GPUWARDEN_MODE": mode, **more})
    try:
        daemon.find_port()
        daemon.wait_status("healthy")
    except BaseException:
        daemon.kill()
        raise
    return daemon


def ended(daemon: RunningDaemon) -> int:
    return daemon.process.wait(PATIENCE)


def test_the_jobs_are_signalled_and_the_daemon_ends_when_they_have(host: FakeHost) -> None:
    with rank("TERM") as trainer:
        host.admit(trainer.pid)
        host.fake.process(0, trainer.pid, 1 << 30)
        daemon = started(host)
        try:
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait(lambda: "job signalled" in daemon.lines(), "it to be signalled")
            assert trainer.received() == "TERM"
            assert daemon.process.poll() is None  # it waits for the answer
            trainer.process.kill()
            assert ended(daemon) == 0
        finally:
            daemon.kill()
    lines = daemon.lines()
    assert '"source": "container"' in lines
    assert '"by": "exit"' in lines


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(host: FakeHost) -> None:
    """The job catches the signal, and goes on: it would be waited for until its time is up."""
    with rank("TERM") as trainer:
        host.admit(trainer.pid)
        host.fake.process(0, trainer.pid, 1 << 30)
        daemon = started(host)
        try:
            daemon.process.send_signal(signal.SIGTERM)
            daemon.wait(lambda: "job signalled" in daemon.lines(), "the job to be signalled")
            daemon.process.send_signal(signal.SIGTERM)
            assert ended(daemon) == 0
        finally:
            daemon.kill()


@pytest.mark.slow
def test_with_nobody_to_signal_it_ends_like_any_other(host: FakeHost) -> None:
    daemon = started(host)
    try:
        daemon.process.send_signal(signal.SIGTERM)
        assert ended(daemon) == 0
    finally:
        daemon.kill()
    assert "termination notice" in daemon.lines()


@pytest.mark.slow
def test_to_a_service_of_systemd_it_is_no_notice(host: FakeHost) -> None:
    daemon = started(host, INVOCATION_ID="0123456789abcdef0123456789abcdef")
    try:
        (source,) = daemon.status()["notice_sources"]
        daemon.wait(
            lambda: "service of systemd" in daemon.status()["notice_sources"][0]["error"], "the reason to be shown"
        )
        assert source["up"] is False
        daemon.process.send_signal(signal.SIGTERM)
        assert ended(daemon) == 0
    finally:
        daemon.kill()
    assert "was announced" not in daemon.lines()
