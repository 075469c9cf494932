"""A changed configuration under a running daemon: taken over as a whole, or not at all."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gpuwarden.base.log import LogOutput
from gpuwarden.base.sd_notify import ServiceManager
from gpuwarden.config.model import Config, Control, Inventory, Log, Run, State
from gpuwarden.config.policy import BreakerOptions
from gpuwarden.engine.reload import TAKEN_OVER, in_force, reloaded
from gpuwarden.health.host.limits import DiskLimits, Limits, SwapLimits
from gpuwarden.health.view import CheckRule, Rules, XidRule
from gpuwarden.policy.model import Settings
from gpuwarden.runtime.app import Daemon
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.slurm.options import SlurmOptions
from support.daemons import FakeHost


def test_rules_for_conditions_xids_and_gpus_are_reloaded() -> None:
    latest = Config(
        inventory=Inventory(expected_gpus=4),
        checks={"thermal_limit": CheckRule(shadow=True)},
        xids={"95": XidRule(severity="warning")},
        disk=DiskLimits(used_percent=90),
        swap=SwapLimits(used_percent=50),
    )
    outcome = reloaded(Rules(nvml_fresh_for=7.0), Config(), latest)
    assert outcome.rules.expected_gpus == 4
    assert outcome.rules.checks == {"thermal_limit": CheckRule(shadow=True)}
    assert outcome.rules.xids == {"95": XidRule(severity="warning")}
    assert outcome.rules.limits == Limits(disk=DiskLimits(used_percent=90), swap=SwapLimits(used_percent=50))
    assert outcome.rules.nvml_fresh_for == 7.0
    assert outcome.taken == (
        "inventory.expected_gpus",
        "disk.used_percent",
        "swap.used_percent",
        "checks.thermal_limit",
        "xids.95",
    )
    assert outcome.waiting == ()


def test_everything_else_is_named_as_waiting_for_a_restart_until_it_is_restarted() -> None:
    running, latest = Config(), replace(Config(), mode="enforce", log=Log("debug"))
    first = reloaded(Rules(), running, latest)
    again = reloaded(first.rules, in_force(running, latest), latest)
    assert first.waiting == again.waiting == ("mode", "log.level")
    assert str(again) == "waiting for a restart: mode, log.level"


def test_plain_values_of_policy_and_breaker_are_taken_over_and_nothing_beside_them() -> None:
    policy = Settings(restore_passes=99, look_often=7.0)
    latest = replace(Config(), policy=policy, breaker=BreakerOptions(count=3), slurm=SlurmOptions(enabled=True))
    outcome, held = reloaded(Rules(), Config(), latest), in_force(Config(), latest)
    assert outcome.taken == ("policy.restore_passes", "policy.look_often", "breaker.count")
    assert outcome.waiting == ("slurm.enabled",)
    assert held == replace(latest, slurm=SlurmOptions())


def test_every_key_is_taken_over_or_named_as_waiting() -> None:
    """The configuration in force after a reload differs from the given one by the keys that wait, and by no other."""
    latest = replace(
        Config(), mode="enforce", node="other", inventory=Inventory(8), policy=Settings(on_unknown="exclude"),
        breaker=BreakerOptions(percent=1, count=1, window=60.0, recount_after=5.0), control=Control("adm"), log=Log("debug"),
        checks={"thermal_limit": CheckRule(enabled=False)}, sxids={"20": XidRule(severity="record")},
    )  # fmt: skip
    outcome, held = reloaded(Rules(), Config(), latest), in_force(Config(), latest)
    assert reloaded(Rules(), held, latest).waiting == outcome.waiting == ("mode", "node", "control.group", "log.level")
    assert reloaded(Rules(), held, latest).taken == ()
    keys = {
        f"{table}.{field.name}"
        for table in ("inventory", "policy", "jobs", "breaker")
        for field in fields(getattr(latest, table))
    }
    assert {key for key in TAKEN_OVER if "." in key} <= keys, "each is a key that there is"


def test_an_unchanged_configuration_changes_nothing() -> None:
    rules = Rules(expected_gpus=None)
    assert str(reloaded(rules, Config(), Config())) == "nothing has changed"
    assert reloaded(rules, Config(), Config()).rules == rules


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


@pytest.mark.slow
def test_a_running_daemon_takes_over_what_an_xid_means_here(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.configure("[xids.95]\nseverity = 'record'\n")
        done = host.command("reload", "--run-dir", host.run_dir)
        assert (done.returncode, done.stdout) == (0, "taken over: xids.95\n")
        host.xid(1, 95)
        daemon.wait(lambda: 'xid="95"} 1' in daemon.get("/metrics")[1].decode(), "the Xid to be counted")
        assert daemon.heartbeat()["status"] == "healthy"


@pytest.mark.slow
def test_faults_of_a_reload_are_reported_together_and_the_daemon_keeps_its_configuration(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.configure("[xids.95]\nseverity = 'recrod'\n[checks.gpu_mising]\nshadow = true\n")
        done = host.command("reload", "--run-dir", host.run_dir)
        assert done.returncode == 64
        assert "did you mean 'record'" in done.stderr
        assert "did you mean 'gpu_missing'" in done.stderr
        os.kill(daemon.process.pid, signal.SIGHUP)
        daemon.wait(lambda: "configuration not reloaded" in daemon.lines(), "the log to show it")
        host.xid(1, 95)
        daemon.wait_status("failure", "xid.95")


@pytest.mark.slow
def test_a_latched_failure_that_the_site_calls_a_warning_is_one_after_the_reload(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(1, 95)
        daemon.wait_status("failure", "xid.95")
        (before,) = daemon.status()["findings"]
        host.configure("[checks.xid]\nseverity = 'warning'\n")
        assert host.command("reload", "--run-dir", host.run_dir).stdout == "taken over: checks.xid\n"
        daemon.wait_status("warning", "xid.95")
        (after,) = daemon.status()["findings"]
        assert (after["id"], after["first_seen"]) == (before["id"], before["first_seen"])


@pytest.mark.slow
def test_a_reload_forgets_nothing_and_misses_no_kernel_line(host: FakeHost) -> None:
    """Good ones and refused ones by turns, while the kernel goes on logging."""
    reloads = 12
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.xid(1, 95)
        daemon.wait_status("failure", "xid.95")
        (before,), began = daemon.status()["findings"], daemon.heartbeat()
        for n in range(reloads):
            host.xid(0, 43)
            good = n % 2 == 0
            host.configure(
                f"[policy]\nrestore_passes = {n + 1 if good else 0}\n[checks.thermal_limit]\nshadow = true\n"
            )
            done = host.command("reload", "--run-dir", host.run_dir)
            assert done.returncode == (0 if good else 64), done.stderr
            assert ("policy.restore_passes" in done.stdout) is good
        daemon.wait(lambda: f'xid="43"}} {reloads}' in daemon.get("/metrics")[1].decode(), "every line to be counted")
        now = daemon.heartbeat()
        (after,) = [each for each in daemon.status()["findings"] if each["id"] == before["id"]]
        assert (after["first_seen"], after["count"]) == (before["first_seen"], before["count"])
        assert (now["started_at"], now["sequence"] > began["sequence"]) == (began["started_at"], True)


@pytest.mark.slow
def test_what_waits_for_a_restart_is_named_on_the_command_line_and_holds_after_it(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        host.configure("[slurm]\nnode = 'other'\n[policy]\nlook_often = '7s'\n")
        done = host.command("reload", "--run-dir", host.run_dir)
        assert (done.returncode, done.stdout) == (
            0, "taken over: policy.look_often; waiting for a restart: slurm.node\n",
        )  # fmt: skip
        again = host.command("reload", "--run-dir", host.run_dir)
        assert again.stdout == "waiting for a restart: slurm.node\n"
        assert daemon.stop() == 0
    with host.daemon() as daemon:
        assert host.command("reload", "--run-dir", host.run_dir).stdout == "nothing has changed\n"


@pytest.mark.slow
def test_a_fault_in_the_file_of_tls_and_users_is_refused_with_the_rest(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        web = host.folder / "web.yml"
        web.write_text("tls_server_config: 7\n")
        text = host.config.read_text().replace("[publish]\n", f'[publish]\nweb_config = "{web}"\n')
        host.config.write_text(text + "[xids.95]\nseverity = 'record'\n")
        done = host.command("reload", "--run-dir", host.run_dir)
        assert (done.returncode, "web.yml" in done.stderr) == (64, True), done.stderr
        host.xid(1, 95)
        daemon.wait_status("failure", "xid.95")


async def test_a_sighup_during_a_reload_is_followed_by_another_one(tmp_path: Path) -> None:
    """The first may have read the files before they were changed again."""
    config = Config(run=Run(tmp_path / "run"), state=State(tmp_path / "state"))
    nvml = replace(config.collectors.nvml, simulate=2)
    config = replace(config, collectors=replace(config.collectors, nvml=nvml))
    read, go_on = list[int](), threading.Event()

    def load() -> Config:
        read.append(1)
        assert go_on.wait(60)
        return config

    async def until_read(times: int) -> None:
        async with asyncio.timeout(60):
            while len(read) < times:
                await asyncio.sleep(0.01)

    output = LogOutput(2, [], 100)
    daemon = Daemon(Site.of(config), output, load, manager=ServiceManager())
    daemon.reload_soon()
    await until_read(1)
    for _ in range(3):
        daemon.reload_soon()
    go_on.set()
    await until_read(2)
    assert daemon._reloading is not None
    await daemon._reloading
    assert len(read) == 2
    output.close(1.0)
