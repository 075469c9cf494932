"""A changed configuration under a running daemon: taken over as a whole, or not at all."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.config import Config, Inventory, Log
from gpuwarden.config_catalogue import CheckOptions, XidOptions
from gpuwarden.health.view import CheckRule, Rules, XidRule
from gpuwarden.reload import in_force, reloaded
from support.daemons import FakeHost


def test_what_is_said_of_conditions_xids_and_gpus_is_taken_over() -> None:
    given = Config(
        inventory=Inventory(expected_gpus=4),
        checks={"thermal_limit": CheckOptions(shadow=True)},
        xids={"79": XidOptions(severity="warning")},
    )
    news = reloaded(Rules(nvml_fresh_for=7.0), Config(), given)
    assert news.rules.expected_gpus == 4
    assert news.rules.checks == {"thermal_limit": CheckRule(shadow=True)}
    assert news.rules.xids == {"79": XidRule(severity="warning")}
    assert news.rules.nvml_fresh_for == 7.0
    assert news.taken == ("inventory.expected_gpus", "checks.thermal_limit", "xids.79")
    assert news.waiting == ()


def test_everything_else_is_named_as_waiting_for_a_restart_until_it_is_restarted() -> None:
    running, given = Config(), replace(Config(), mode="enforce", log=Log("debug"))
    first = reloaded(Rules(), running, given)
    again = reloaded(first.rules, in_force(running, given), given)
    assert first.waiting == again.waiting == ("mode", "log.level")
    assert str(again) == "waiting for a restart: mode, log.level"


def test_an_unchanged_configuration_changes_nothing() -> None:
    rules = Rules(expected_gpus=None)
    assert str(reloaded(rules, Config(), Config())) == "nothing has changed"
    assert reloaded(rules, Config(), Config()).rules == rules


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


def test_a_running_daemon_takes_over_what_an_xid_means_here(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.configure("[xids.79]\nseverity = 'record'\n")
        done = host.command("reload", "--run-dir", host.run_dir)
        assert (done.returncode, done.stdout) == (0, "taken over: xids.79\n")
        host.xid(1, 79)
        daemon.wait(lambda: 'xid="79"} 1' in daemon.get("/metrics")[1].decode(), "the Xid to be counted")
        assert daemon.heartbeat()["status"] == "healthy"


def test_slips_are_told_all_at_once_and_the_daemon_keeps_what_it_had(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.configure("[xids.79]\nseverity = 'recrod'\n[checks.gpu_mising]\nshadow = true\n")
        done = host.command("reload", "--run-dir", host.run_dir)
        assert done.returncode == 64
        assert "did you mean 'record'" in done.stderr
        assert "did you mean 'gpu_missing'" in done.stderr
        os.kill(daemon.process.pid, signal.SIGHUP)
        daemon.wait(lambda: "the configuration is not taken over" in daemon.lines(), "the log to say so")
        host.xid(1, 79)
        daemon.wait_status("failure", "xid.79")
