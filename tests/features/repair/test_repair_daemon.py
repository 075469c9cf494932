"""The real daemon and a helper that is a stub: a failed GPU is reset once, while nothing of the daemon has it open, and is looked at after it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.daemons import FakeHost, RunningDaemon, children
from support.needs import host_pid_namespace
from support.repair_helpers import StubHelper

BAD = 1
DONE = {"done": True, "text": "the GPU was reset"}
SOON = '[policy]\nrestore_passes = 2\nrestore_after = "0s"\nlook_often = "5s"\n'


class RepairedHost(FakeHost):
    """Two GPUs and a file as the actuator; `helper` answers as root's helper."""

    def __init__(self, folder: Path) -> None:
        host_pid_namespace()
        super().__init__(folder, gpus=2)
        self.marker = folder / "out"
        socket = folder / "repair.sock"
        self.helper = StubHelper(socket, lambda _: DONE)
        self.configure(
            f'{SOON}[breaker]\nuncounted = "allow"\n[file]\npath = "{self.marker}"\n'
            f'[test]\ngate_socket = "{folder}/nobody.sock"\n'
            f'[repair]\nsteps = ["reset_gpu"]\nsocket = "{socket}"\n'
        )

    def acting(self) -> Any:
        return self.daemon(more={"GPUWARDEN_MODE": "enforce"})

    def fails(self) -> None:
        self.xid(BAD, 95)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RepairedHost]:
    host = RepairedHost(tmp_path)
    yield host
    host.helper.close()


def repairs(daemon: RunningDaemon) -> list[str]:
    """Return the events of repairs, `repair_ended` with its outcome."""
    events = json.loads(daemon.get("/v1/events?since=0")[1])["events"]
    return [
        " ".join(filter(None, (event["kind"], event["data"].get("outcome"))))
        for event in events
        if event["kind"] in ("repair_begun", "repair_ended")
    ]


def outcome(daemon: RunningDaemon) -> str | None:
    """Return the outcome of the last pass of the GPUs."""
    last_outcome: str | None = next(
        (collector["outcome"] for collector in daemon.status()["collectors"] if collector["name"] == "nvml"), None
    )
    return last_outcome


def finding(daemon: RunningDaemon) -> str:
    """Return the id of the failure."""
    name: str = next(failure["id"] for failure in daemon.status()["findings"] if failure["severity"] == "failure")
    return name


@pytest.mark.slow
def test_a_failed_gpu_is_reset_once_and_the_node_waits_for_a_look(host: RepairedHost) -> None:
    with host.acting() as daemon:
        readers: list[list[int]] = []

        def resets(_: Mapping[str, Any]) -> Mapping[str, Any]:
            readers.append(children(daemon.process.pid))
            host.kernel_line("nvidia 0000:28:00.0: reset done")
            return DONE

        host.helper.on_step = resets
        daemon.wait_status("healthy")
        host.fails()
        daemon.wait(lambda: repairs(daemon) == ["repair_begun", "repair_ended done"], "the repair")
        assert [(step["step"], step["slot"]) for step in host.helper.steps] == [("reset_gpu", "0000:28:00.0")]
        assert readers == [[]], "no process of the daemon has a GPU open meanwhile"
        daemon.wait_status("healthy")
        daemon.wait(lambda: "no Xid must come" in json.dumps(daemon.status()), "what it waits for")
        assert host.marker.exists()
        assert 'gpuwarden_repairs_total{step="reset_gpu",outcome="done"} 1' in daemon.get("/metrics")[1].decode()
        assert host.order("restore", "--untested").returncode == 0
        daemon.wait(lambda: not host.marker.exists(), "the node to be back")


@pytest.mark.slow
def test_the_last_step_has_three_minutes_to_show_what_it_cured_before_a_person_is_asked_for(host: RepairedHost) -> None:
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.fails()
        daemon.wait(lambda: repairs(daemon) == ["repair_begun", "repair_ended done"], "the repair, which cures nothing")
        daemon.wait(lambda: daemon.status()["repair"]["state"] == "waiting", "status to show it")
        daemon.wait_passes(5)
        repair = daemon.status()["repair"]
        assert (repair["state"], repair["step"]) == ("waiting", None)
        assert "and is given 180 s for its effect to show" in repair["text"]
        assert 'gpuwarden_repair_state{state="person"} 0' in daemon.get("/metrics")[1].decode()


@pytest.mark.slow
def test_daemons_that_end_in_a_step_open_no_gpu_and_do_not_do_it_again(host: RepairedHost) -> None:
    """The first is stopped, the second is killed while the step still runs, and the third learns what came of it."""
    host.helper.on_step = lambda _: None
    host.helper.results = {"state": "running", "text": ""}
    with host.acting() as daemon:
        daemon.wait_status("healthy")
        host.fails()
        daemon.wait(lambda: host.helper.steps, "the step")
        opened = host.fake.marks_init()
        assert daemon.stop() == 0
        assert not opened.exists()
    opened = host.fake.marks_init()
    with host.acting() as daemon:
        daemon.wait(host.helper.asked_again.is_set, "the look")
        daemon.wait(lambda: outcome(daemon) == "paused", "a pass that asks nothing")
        assert not opened.exists()
    host.helper.results = {"state": "done", "text": "the GPU was reset"}
    with host.acting() as daemon:
        daemon.wait(lambda: repairs(daemon) == ["repair_begun", "repair_ended done"], "the look")
        assert len(host.helper.steps) == 1


@pytest.mark.slow
def test_mode_observe_counts_what_it_would_do_and_an_operator_is_shown_what_forbids_it(host: RepairedHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.fails()
        daemon.wait(lambda: repairs(daemon) == ["repair_ended observed"], "the count")
        assert 'gpuwarden_repairs_total{step="reset_gpu",outcome="observed"} 1' in daemon.get("/metrics")[1].decode()
        shown = host.order("repair", finding(daemon), "--dry-run")
        assert shown.returncode == 3
        assert "next: reset_gpu 0000:28:00.0 (try 1 of 2 within a day)" in shown.stdout
        assert "forbidden: mode is observe [mode]" in shown.stdout
        unknown = host.order("repair", "xid.1@node", "--dry-run")
        assert (unknown.returncode, "there is no finding" in unknown.stderr) == (64, True)
        assert not host.helper.steps
