"""A feature with a bug costs the node neither its watching nor its exclusion, and never consents to a return."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.daemons import FakeHost, RunningDaemon
from support.faulty_tables import beside_the_real_ones
from support.scrape import Scrape

BAD = 1
EACH_STEP = ("seen", "step", "shown", "publish", "outputs", "source", "news")
ALL = (*EACH_STEP, "run", "reloaded", "stop", "close", "verbs", "fold", "rebuilding", "checkpoint", "settled", "announced", "metrics", "status", "snapshot", "after", "events", "metrics", "status", "snapshot")  # fmt: skip
SOON = '[policy]\nrestore_passes = 2\nrestore_after = "0s"\nlook_often = "5s"\n[checks.feature_failed]\nrise = "0s"\n'


class Host(FakeHost):
    """One whose gpuwarden has the feature, and whose actuator is a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, gpus=2)
        self.calls = folder / "calls"
        (folder / "site").mkdir()
        self.made_up = beside_the_real_ones(folder / "site", self.calls)
        self.marker = folder / "out"
        self.configure(f'{SOON}[breaker]\nuncounted = "allow"\n[file]\npath = "{self.marker}"\n')
        self.config.write_text(f'mode = "enforce"\n{self.config.read_text()}')
        self.raises()

    @property
    def environment(self) -> Mapping[str, str]:
        return {**super().environment, **self.made_up}

    def raises(self, *calls: str) -> None:
        self.calls.write_text(" ".join(calls))

    def breaks(self) -> None:
        self.xid(BAD, 95)

    def is_mended(self) -> None:
        self.kernel_line("nvidia 0000:28:00.0: reset done")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def errors(daemon: RunningDaemon) -> str:
    return " ".join(daemon.status()["errors"])


def counted(daemon: RunningDaemon, feature: str = "faulty") -> float:
    value = Scrape(daemon.get("/metrics")[1]).value("gpuwarden_feature_errors_total", feature=feature)
    return math.nan if value is None else value


@pytest.mark.slow
def test_a_feature_whose_every_call_raises_is_reported_and_the_node_is_watched_and_excluded(host: Host) -> None:
    host.raises(*ALL)
    with host.daemon() as daemon:
        daemon.wait_status("warning", "feature_failed")
        assert "faulty: shown failed: LookupError: a bug in shown" in errors(daemon)
        host.breaks()
        daemon.wait_status("failure", "xid.95")
        daemon.wait(host.marker.exists, "the exclusion")
        daemon.process.send_signal(signal.SIGHUP)
        daemon.wait(lambda: "configuration reloaded" in daemon.lines(), "the reload")
        assert (counted(daemon) > len(EACH_STEP), counted(daemon, "active_test")) == (True, 0.0)
        before = counted(daemon)
        daemon.wait(lambda: counted(daemon) > before + 2 * len(EACH_STEP), "two more steps")
        page = Scrape(daemon.get("/metrics")[1])
        assert page.value("gpuwarden_component_up", component="feature") == 0.0
        assert page.values("gpuwarden_faulty") == []
        assert "faulty: its part of the status failed: LookupError: a bug in status" in errors(daemon)
        assert "faulty fails: whether it works is not known" in errors(daemon)
        assert "faulty" in host.command("doctor", "--config", host.config).stdout
        assert daemon.stop() == 0
        lines = [json.loads(line) for line in daemon.lines().splitlines()]
    logged = [line["call"] for line in lines if line.get("feature") == "faulty"]
    assert len(logged) == len(set(logged))
    assert {"seen", "step", "shown", "publish", "outputs", "run", "reloaded", "stop", "close"} <= set(logged)
    assert all("Traceback" in line["exception"] for line in lines if line.get("feature") == "faulty")
    assert "step failed" not in str(lines)


@pytest.mark.slow
def test_a_feature_that_is_well_again_is_reported_no_longer(host: Host) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.raises(*EACH_STEP)
        daemon.wait_status("warning", "feature_failed")
        host.raises()
        daemon.wait_status("healthy")
        assert (errors(daemon), daemon.status()["faulty"]) == ("", "well")
        assert Scrape(daemon.get("/metrics")[1]).values("gpuwarden_faulty") == [1.0]


@pytest.mark.parametrize("calls", [("seen",), pytest.param(("step", "applies"), marks=pytest.mark.slow)], ids=" ".join)
def test_a_node_is_not_restored_while_a_feature_that_may_demand_something_raises(
    host: Host, calls: tuple[str, ...]
) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.breaks()
        daemon.wait(host.marker.exists, "the exclusion")
        host.raises(*calls)
        host.is_mended()
        daemon.wait_status("warning", "feature_failed")
        daemon.wait(lambda: "faulty fails" in str(daemon.status()["actions"]), "the objection")
        daemon.wait_passes(10)
        assert host.marker.exists()
        host.raises()
        daemon.wait(lambda: not host.marker.exists(), "the return")


@pytest.mark.parametrize("call", ["part", pytest.param("after", marks=pytest.mark.slow)])
def test_what_a_feature_demands_is_not_forgotten_because_it_could_not_be_made_or_missed_an_event(
    host: Host, call: str
) -> None:
    """A restart alone folds the ledger again, and may show what it demands."""
    host.raises(call)
    with host.daemon() as daemon:
        daemon.wait_status("warning", "feature_failed")
        host.breaks()
        daemon.wait(host.marker.exists, "the exclusion")
        host.raises()
        host.is_mended()
        daemon.wait(lambda: "faulty fails" in str(daemon.status()["actions"]), "the objection")
        refused = host.command("restore", "--run-dir", host.run_dir)
        assert (refused.returncode != 0, "--untested" in refused.stdout + refused.stderr) == (True, True)
        assert host.marker.exists()
        assert daemon.stop() == 0
    with host.daemon() as daemon:
        daemon.wait(lambda: not host.marker.exists(), "the return")
