"""A test and the real daemon: its lease, its results, what ends it; kept over a kill, refused to others, bounded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.publish.sockets.control import LINE_LIMIT
from gpuwarden_collectors.active_test.facts import (
    MISMATCHES_KEPT,
    Deviation,
    GpuTest,
    Growth,
    Mismatch,
    Outlier,
    PeerMeasured,
)
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.facts import Stamp
from support.active_tests import healthy, wrong_words
from support.daemons import FakeHost, RunningDaemon, slots
from support.mounts import ext4, frozen
from support.orders import given, send

WORKER = 1234
"""The process that lines of `FakeHost.xid` name."""
ENDED_BY: tuple[tuple[dict[str, Any], str], ...] = (
    ({"verb": "exclude", "reason": "a fan"}, "an operator excluded the node"),
    ({"verb": "reload"}, "the configuration was reloaded"),
    ({"verb": "notify-termination", "within": 600, "reason": "power works"}, "the end of this machine is announced"),
)


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


@pytest.fixture
def daemon(host: FakeHost) -> Iterator[RunningDaemon]:
    with host.daemon() as running:
        running.wait_status("healthy")
        yield running


@pytest.fixture(scope="module")
def refusing() -> Iterator[RunningDaemon]:
    """Run one daemon for all requests that are refused: none of them leaves a trace in it, as each test asserts."""
    with tempfile.TemporaryDirectory(prefix="gw-") as folder, FakeHost(Path(folder), gpus=2).daemon() as running:
        running.wait_status("healthy")
        yield running


def uuids(daemon: RunningDaemon) -> list[str]:
    return [gpu["uuid"] for gpu in daemon.status()["gpus"]]


def begin(daemon: RunningDaemon, **more: Any) -> dict[str, Any]:
    request = {"verb": "test-begin", "pid": os.getpid(), "level": "quick", "gpus": uuids(daemon), "seconds": 1800}
    return given(daemon.host, {**request, **more})


def lease(daemon: RunningDaemon) -> str:
    answer = begin(daemon)
    assert answer["result"]["end"] is None, answer
    return str(answer["result"]["lease"])


def of(daemon: RunningDaemon, gpu: int, test: GpuTest | None = None) -> GpuTest:
    """A result of now, about a GPU of this host."""
    now = Stamp(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
    return replace(test or healthy(), uuid=uuids(daemon)[gpu], slot=slots(gpu + 1)[gpu], started=now)


def result(daemon: RunningDaemon, name: str, *tests: GpuTest, workers: tuple[int, ...] = ()) -> dict[str, Any]:
    wire = [to_wire(test) for test in tests]
    return given(daemon.host, {"verb": "test-result", "lease": name, "workers": list(workers), "tests": wire})


def metrics(daemon: RunningDaemon) -> list[str]:
    lines = daemon.get("/metrics")[1].decode().splitlines()
    return [line for line in lines if line.startswith("gpuwarden_test_")]


def kinds(daemon: RunningDaemon) -> list[str]:
    answer = send(daemon.host, {"verb": "events", "since": None, "limit": 1000})
    return [event["kind"] for event in answer["result"] if event["kind"].startswith("test")]


@pytest.mark.slow
def test_a_test_is_announced_judged_and_kept_over_a_kill(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        name = lease(daemon)
        assert daemon.status()["tests"]["running"]["gpus"] == uuids(daemon)
        answer = result(daemon, name, of(daemon, 0), of(daemon, 1, wrong_words(healthy(), (0, 0x40))))
        outcomes = answer["result"]["outcomes"]
        assert [outcomes[uuid]["verdict"] for uuid in uuids(daemon)] == ["nothing_found", "failure"]
        (finding,) = outcomes[uuids(daemon)[1]]["findings"]
        assert (finding["code"], finding["detail"], finding["severity"]) == ("test_failed", "memory", "failure")
        daemon.process.kill()
    with host.daemon() as daemon:
        daemon.wait_status("failure", "test_failed.memory")
        assert begin(daemon, lease=name)["result"] == {"lease": name, "end": None}
        assert daemon.status()["tests"]["running"]["level"] == "quick"
        daemon.wait_passes(2)
        status = daemon.status()
        assert [row["result"] for row in status["tests"]["results"]] == ["nothing_found", "failure"]
        assert "level that found it" in next(f for f in status["findings"] if f["check"] == "test_failed")["ends_when"]
        text = host.order("status").stdout
        assert "active tests:" in text
        assert "GPU 1: failure (level quick" in text
        lines = metrics(daemon)
        assert 'gpuwarden_test_runs_total{level="quick",result="failure"} 1' in lines
        assert 'gpuwarden_test_runs_total{level="standard",result="warning"} 0' in lines
        assert any(
            line.startswith('gpuwarden_test_figure{gpu="0"')
            and float(line.split()[-1]) == 3.058e12
            and 'figure="verify"' in line
            for line in lines
        )
        assert any(
            line.startswith('gpuwarden_test_result{gpu="1"') and line.endswith('result="failure"} 1') for line in lines
        )
        assert send(host, {"verb": "test-end", "lease": name})["result"] == "ended"
        daemon.wait(lambda: daemon.status()["tests"]["running"] is None, "the end of the lease")
        result(daemon, "", of(daemon, 1))
        daemon.wait_status("healthy")


@pytest.mark.slow
def test_of_one_result_handed_in_twice_the_answer_is_the_same_and_one_is_kept(daemon: RunningDaemon) -> None:
    name, test = lease(daemon), of(daemon, 0, wrong_words(healthy(ecc=False), (0, 0x40)))
    first = result(daemon, name, test)
    assert result(daemon, name, test) == first
    assert kinds(daemon).count("tested") == 1


@pytest.mark.slow
def test_a_lease_that_is_not_renewed_ends_soon_also_after_a_kill_of_the_daemon(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        lease(daemon)
        daemon.wait(lambda: "test_begun" in kinds(daemon), "the lease in the ledger")
        daemon.process.kill()
    with host.daemon() as daemon:
        daemon.wait(lambda: "test_ended" in kinds(daemon), "the end of the lease")
        daemon.wait(lambda: daemon.status()["tests"]["running"] is None, "status to show it")


@pytest.mark.slow
def test_an_exclusion_a_reload_and_a_notice_end_a_running_test_and_after_the_notice_none_begins(
    daemon: RunningDaemon,
) -> None:
    """An excluded node may be tested: each test here but the first."""
    for verb, why in ENDED_BY:
        name = lease(daemon)
        assert begin(daemon, lease=name, workers=[77])["result"] == {"lease": name, "end": None}
        assert given(daemon.host, verb)["ok"]
        daemon.wait(lambda: begin(daemon, lease=name)["result"]["end"] == why, why)  # noqa: B023 - called at once
        send(daemon.host, {"verb": "test-end", "lease": name})
    daemon.wait(lambda: begin(daemon)["result"]["end"], "the refusal")
    send(daemon.host, {"verb": "test-end", "lease": begin(daemon)["result"]["lease"]})
    send(daemon.host, {"verb": "notify-termination", "cancel": True})
    daemon.wait(lambda: begin(daemon)["result"]["end"] is None, "a lease")


@pytest.mark.slow
def test_what_lets_work_back_onto_the_node_ends_a_running_test(host: FakeHost) -> None:
    host.configure(f'[breaker]\nuncounted = "allow"\n[file]\npath = "{host.folder}/out"\n')
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        assert given(host, {"verb": "exclude", "reason": "to be tested"})["ok"]
        name = lease(daemon)
        assert given(host, {"verb": "restore"})["ok"]
        why = "gpuwarden restores the node"
        daemon.wait(lambda: begin(daemon, lease=name)["result"]["end"] == why, why)


@pytest.mark.slow
@pytest.mark.disposable
def test_a_running_test_is_ended_also_while_the_disk_takes_nothing(host: FakeHost) -> None:
    with ext4(host.folder / "disk") as disk:
        host.state_dir = disk / "state"
        host.configure()
        with host.daemon() as daemon:
            daemon.wait_status("healthy")
            name = lease(daemon)
            with frozen(disk):
                assert begin(daemon, lease=name, workers=[77])["result"]["end"] is None
                send(host, {"verb": "exclude", "reason": "a fan"})
                assert begin(daemon, lease=name)["result"]["end"] == "an operator excluded the node"


@pytest.mark.slow
def test_a_lease_holds_no_longer_than_its_test_was_to_take_however_often_it_is_renewed(daemon: RunningDaemon) -> None:
    answer = begin(daemon, seconds=1)["result"]
    why = "it takes longer than announced"
    daemon.wait(lambda: begin(daemon, seconds=1, lease=answer["lease"])["result"]["end"] == why, why)
    daemon.wait(lambda: daemon.status()["tests"]["running"] is None, "status to show it")


@pytest.mark.slow
def test_of_two_tests_the_later_one_has_the_lease_and_the_other_ends(daemon: RunningDaemon) -> None:
    first, second = lease(daemon), lease(daemon)
    assert begin(daemon, lease=first)["result"]["end"] == f"another test began (pid {os.getpid()})"
    assert begin(daemon, lease=second)["result"]["end"] is None
    daemon.wait(lambda: kinds(daemon).count("test_begun") == 2, "both leases in the ledger")


@pytest.mark.slow
def test_xids_of_a_worker_are_shown_and_not_counted(host: FakeHost, daemon: RunningDaemon) -> None:
    name = lease(daemon)
    begin(daemon, lease=name, workers=[WORKER])
    host.xid(0, 43)
    daemon.wait(lambda: "test_xid" in kinds(daemon), "the Xid")
    outcome = result(daemon, name, of(daemon, 0), workers=(WORKER,))["result"]["outcomes"][uuids(daemon)[0]]
    assert (outcome["verdict"], outcome["text"]) == ("no_verdict", "Xid 43 of the test's own process")
    assert 'xid="43"' not in daemon.get("/metrics")[1].decode()


@pytest.mark.slow
@pytest.mark.xdist_group("refused requests")
@pytest.mark.parametrize(
    "wrong",
    [
        {"pid": 0}, {"pid": "7"}, {"pid": True}, {"level": "soak"}, {"level": None}, {"gpus": []}, {"gpus": ["GPU-unknown"]}, {"gpus": "GPU"},
        {"gpus": ["x"] * 1000}, {"gpus": [7]}, {"seconds": 0}, {"seconds": -1}, {"seconds": "60"}, {"seconds": True}, {"lease": 5},
        {"lease": "../x"}, {"workers": [0]}, {"workers": 7}, {"workers": [1] * 1000}, {"workers": ["7"]},
    ],
    ids=str,
)  # fmt: skip
def test_a_request_that_means_nothing_is_refused(refusing: RunningDaemon, wrong: dict[str, Any]) -> None:
    answer = begin(refusing, **wrong)
    assert (answer["ok"], answer["code"]) == (False, 64), answer
    assert refusing.status()["tests"]["running"] is None
    assert kinds(refusing) == []


@pytest.mark.xdist_group("refused requests")
@pytest.mark.parametrize(
    "tests", [None, [], {}, [7], [{}], [{"uuid": 3}], [{}] * 1000], ids=lambda tests: str(tests)[:20]
)
def test_results_of_another_form_are_refused(refusing: RunningDaemon, tests: Any) -> None:
    answer = send(refusing.host, {"verb": "test-result", "lease": "", "tests": tests})
    assert (answer["ok"], answer["code"]) == (False, 64), answer
    assert kinds(refusing) == []


@pytest.mark.xdist_group("refused requests")
def test_results_of_gpus_that_are_not_here_are_judged_and_not_kept(refusing: RunningDaemon) -> None:
    answer = result(refusing, "", healthy())
    assert answer["result"]["outcomes"][healthy().uuid]["verdict"] == "nothing_found"
    assert kinds(refusing) == []


@pytest.mark.slow
@pytest.mark.needs("root")
def test_results_are_believed_from_root_and_gpuwarden_only(host: FakeHost) -> None:
    """Members of the control group may do what operators may; a healthy GPU by their word is not among it."""
    host.configure('[control]\ngroup = "nogroup"\n')
    script = (
        "import json, os, socket, sys\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "client = socket.socket(socket.AF_UNIX); client.connect(sys.argv[1])\n"
        "client.sendall(sys.argv[2].encode() + b'\\n'); print(client.makefile().readline())"
    )
    folder = host.folder
    while folder != Path("/tmp") and folder != folder.parent:
        folder.chmod(0o755)
        folder = folder.parent
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        for verb in ("test-begin", "test-result", "test-end", "status"):
            request = json.dumps({"verb": verb})
            command = [sys.executable, "-I", "-c", script, str(host.run_dir / "control.sock"), request]
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            answer = json.loads(done.stdout)
            assert answer["ok"] is (verb == "status")
            if verb != "status":
                assert answer["code"] == 77
                assert "accepted from root and gpuwarden only" in answer["error"]


def test_all_that_16_gpus_may_report_fits_one_request() -> None:
    many = range(MISMATCHES_KEPT)
    test = healthy(level=Level.STANDARD)
    assert test.memory is not None
    first = tuple(Mismatch(march=9_999, offset=2**37 + n, expected=2**32 - 1, found=2**32 - 2) for n in many)
    kernels = tuple(
        replace(
            kernel, deviations=tuple(Deviation(sm=100 + n, chunks=999, warps=9_999) for n in many), deviating=132,
            outliers=tuple(Outlier(sm=100 + n, chunks=999, worst=-0.0123456789) for n in many),
        )
        for kernel in test.kernels
    )  # fmt: skip
    fullest = replace(
        test, memory=replace(test.memory, first=first, mismatches=2**40), kernels=kernels, text="x" * 200,
        peers=tuple(PeerMeasured(peer="GPU-" + "0" * 36, speed=1.23456789e11) for _ in range(15)),
        growth=tuple(Growth(reading="ecc_uncorrected_aggregate_register", by=10**9) for _ in range(30)),
    )  # fmt: skip
    request = {"verb": "test-result", "lease": "0" * 16, "workers": [2**22] * 64, "tests": [to_wire(fullest)] * 16}
    assert len(json.dumps(request)) < LINE_LIMIT
