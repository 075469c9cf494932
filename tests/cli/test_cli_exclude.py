"""A person excludes a node, returns it, and announces its end: real daemon, real command line, no scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.daemons import FakeHost, RunningDaemon
from support.scrape import Scrape

BIG = "é\n|\"'`$(reboot) : " * 300


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


def order(host: FakeHost, *words: str) -> tuple[int, str]:
    done = host.order(*words)
    return done.returncode, done.stdout + done.stderr


def verdict_file(host: FakeHost) -> dict[str, str]:
    lines = (host.run_dir / "verdict").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.slow
def test_an_excluded_node_takes_no_work_until_a_person_restores_it_whatever_ends_the_daemon(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        done, output = order(host, "exclude", "--reason", "replacing a fan")
        assert (done, output.startswith("excluded:"), "no scheduler is configured" in output) == (0, True, True)
        daemon.wait(lambda: daemon.get("/heartbeat")[0] == 503, "the heartbeat to show it")
        daemon.wait(lambda: verdict_file(host)["excluded"] == "1", "the verdict file to show it")
        assert verdict_file(host)["schedulable"] == "0"
        daemon.wait(lambda: any(e["kind"] == "ordered" for e in events(daemon, host)), "the order to be on disk")
        daemon.kill()
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        beat = daemon.heartbeat()
        assert (beat["excluded_by"], beat["schedulable"]) == (["operator"], False)
        scrape = Scrape(daemon.get("/metrics")[1])
        assert scrape.value("gpuwarden_excluded", actuator="", owner="gpuwarden", cause="operator") == 1.0
        assert scrape.value("gpuwarden_schedulable") == 0.0
        shown = order(host, "status")[1]
        assert "gpuwarden restore" in shown
        assert "replacing a fan" in shown
        done, output = order(host, "restore")
        assert (done, output.startswith("no longer excluded")) == (0, True)
        daemon.wait(lambda: daemon.get("/heartbeat")[0] == 200, "the heartbeat to show it")
        daemon.wait(lambda: verdict_file(host)["excluded"] == "0", "the verdict file to show it")


def events(daemon: RunningDaemon, host: FakeHost) -> list[dict[str, object]]:
    done = host.command("events", "--json", "--run-dir", host.run_dir)
    assert daemon.process.poll() is None
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_notice_is_in_the_heartbeat_at_once_outlives_the_daemon_and_can_be_called_off(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        assert order(host, "notify-termination", "--cancel")[0] == 64
        assert order(host, "notify-termination", "--in", "5m", "--reason", "host maintenance")[0] == 0
        daemon.wait(lambda: daemon.heartbeat()["notice"], "the notice")
        daemon.wait(lambda: any(e["kind"] == "noticed" for e in events(daemon, host)), "the notice to be on disk")
        daemon.kill()
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        beat = daemon.heartbeat()
        assert (beat["schedulable"], beat["notice"]["source"]) == (False, "operator")
        assert "host maintenance" in beat["notice"]["reason"]
        refused, output = order(host, "restore")
        assert (refused, "notify-termination --cancel" in output) == (64, True)
        assert order(host, "notify-termination", "--cancel")[0] == 0
        daemon.wait(lambda: daemon.get("/heartbeat")[0] == 200, "the heartbeat to show it")


NONSENSE: tuple[tuple[str, ...], ...] = (
    ("exclude",), ("exclude", "--reason", ""), ("notify-termination",), ("notify-termination", "--in", "soon"),
    ("notify-termination", "--in", "-5"), ("notify-termination", "--in", "99999999"),
    ("notify-termination", "--in", "5", "--cancel"), ("exclude", "--reason", "x" * 11_000),
)  # fmt: skip


@pytest.mark.slow
def test_an_order_that_makes_no_sense_changes_nothing_and_whatever_a_person_writes_as_reason_does_no_harm(
    host: FakeHost,
) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        assert [order(host, *words)[0] for words in NONSENSE] == [64] * len(NONSENSE)
        beat = daemon.heartbeat()
        assert (beat["excluded_by"], beat["notice"]) == ([], None)
        assert order(host, "exclude", "--reason", BIG)[0] == 0
        daemon.wait(lambda: daemon.heartbeat()["excluded_by"], "the exclusion")
        assert order(host, "notify-termination", "--in", "60", "--reason", BIG)[0] == 0
        daemon.wait(lambda: daemon.heartbeat()["notice"], "the notice")
        assert "\n" not in daemon.heartbeat()["notice"]["reason"]
        assert verdict_file(host)["state"] == "healthy"
