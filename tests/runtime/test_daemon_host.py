"""The daemon beside its GPUs: site checks that are real programs, mounts that are real mounts."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.health.host.detectors import BOOT_GRACE
from support.daemons import QUIET, FakeHost, RunningDaemon, alive
from support.hung_mounts import hung_mount
from support.mounts import tmpfs
from support.responders import waited
from support.trees import plant


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


def script(host: FakeHost, name: str, text: str) -> Path:
    """Written under another name and moved: a program that is being written cannot be run."""
    path = host.folder / name
    draft = path.with_suffix(".draft")
    draft.write_text(f"#!/bin/sh\n{text}\n")
    draft.chmod(0o755)
    return draft.rename(path)


def site_check(name: str, program: Path, more: str = "") -> str:
    return f'[plugins.{name}]\ncommand = ["{program}"]\ninterval = "1s"\n{more}\n'


def findings(running: RunningDaemon) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(running.get("/v1/findings")[1])["findings"]
    return rows


def finding(running: RunningDaemon, code: str) -> dict[str, Any]:
    return next((f for f in findings(running) if f["check"] == code), {})


@pytest.mark.slow
def test_a_site_check_takes_the_node_out_and_brings_it_back(host: FakeHost) -> None:
    program = script(host, "nhc", "echo 'disk sdb is failing | t=1'; exit 2")
    host.configure(site_check("nhc", program))
    with host.daemon() as running:
        running.wait_status("failure", "plugin_nhc")
        assert finding(running, "plugin_nhc")["evidence"] == {"text": "disk sdb is failing", "exit_code": 2}
        once = host.command("check", "--json", "--config", host.config)
        assert (once.returncode, "plugin_nhc" in once.stdout) == (2, True)
        script(host, "nhc", "echo fine")
        running.wait_status("healthy")
        assert running.stop() == 0
    assert host.command("check", "--config", host.config).returncode == 0


@pytest.mark.slow
def test_containers_are_read_only_where_the_site_wants_them_watched(host: FakeHost) -> None:
    for wanted in (False, True):
        host.configure(f"[jobs]\nstalled_containers = {str(wanted).lower()}\n")
        with host.daemon() as running:
            running.wait_status("healthy")
            if wanted:
                running.wait(lambda: outcomes(running).get("containers") == "observed", "a pass over the containers")
            assert ("containers" in outcomes(running)) is wanted
            running.wait(lambda: outcomes(running).get("workloads") == "observed", "a pass over what runs on the GPUs")
            assert running.stop() == 0


@pytest.mark.slow
def test_a_kill_for_want_of_memory_is_logged_and_kept_and_the_node_stays_healthy(host: FakeHost) -> None:
    group = "/slurm/uid_1001/job_7"
    with host.daemon() as running:
        running.wait_status("healthy")
        host.kernel_line(
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group},"
            f"task_memcg={group}/step_0,task=secret-project,pid=4711,uid=1001"
        )
        running.wait(lambda: "oom_kill.limit@job/slurm/7" in running.lines(), "the line of the log")
        running.wait_status("healthy")
        assert "secret-project" not in running.lines()
        assert running.stop() == 0
    shown = host.command("events", "--json", "--state-dir", host.state_dir).stdout
    assert '"oom_kill"' in shown
    assert "secret-project" not in shown


def outcomes(running: RunningDaemon) -> dict[str, str]:
    return {collector["name"]: collector["outcome"] for collector in running.status()["collectors"]}


@pytest.mark.slow
def test_what_is_in_the_shadow_is_logged_as_such_and_notified_to_nobody(host: FakeHost) -> None:
    """A finding that is not in the shadow is beside it, and its notification comes after it."""
    spool = host.folder / "spool"
    notifies = script(host, "notifies", f"cat >>{spool}; echo >>{spool}")
    host.configure(
        site_check("new", script(host, "new", "exit 2"))
        + "[checks.plugin_new]\nshadow = true\n"
        + f'[notify.exec.log]\ncommand = ["{notifies}"]\nevents = ["finding"]\n'
    )
    with host.daemon() as running:
        running.wait(lambda: finding(running, "plugin_new"), "the finding in the shadow")
        running.wait_status("healthy")
        host.xid(0, 95)
        running.wait(lambda: spool.exists() and "xid.95" in spool.read_text(), "the notification of the other")
        script(host, "new", "exit 0")
        running.wait(lambda: not finding(running, "plugin_new"), "its end")
        host.xid(1, 95)
        running.wait(lambda: spool.read_text().count('"raised"') == 2, "the notification of the third")
        assert running.stop() == 0
        assert "finding raised (shadow: only reported)" in running.lines()
    assert "plugin_new" not in spool.read_text()


WILD = {
    "flood": "trap '' TERM; yes x & yes y >&2",
    "fork": "trap '' TERM; for n in 1 2 3 4 5; do (trap '' TERM; echo $$ >> PIDS; exec sleep 1000) & done; wait",
    "endless": "trap '' TERM; while :; do sleep 1000; done",
    "daemon": "(sleep 1000 &) ; sleep 1000",
}


@pytest.mark.slow
def test_wild_site_checks_slow_nobody_down_and_leave_nothing_behind(host: FakeHost) -> None:
    pids = host.folder / "pids"
    programs = {
        name: script(host, name, f"echo $$ >> {pids}\n{text}".replace("PIDS", str(pids))) for name, text in WILD.items()
    }
    checks = "".join(site_check(name, program, 'timeout = "500ms"') for name, program in programs.items())
    host.configure(checks + "[collectors.plugin]\nlimit = 2\n")
    with host.daemon() as running:
        running.wait_status("healthy")
        begun = running.heartbeat()["sequence"]

        def all_failed() -> object:
            return sum(f["check"] == "plugin_failed" for f in findings(running)) == len(WILD)

        running.wait(all_failed, "each of them to fail three times")
        assert running.is_now("warning", "plugin_failed")
        running.wait(lambda: running.heartbeat()["sequence"] > begun + 3, "passes to go on beside them")
        assert running.stop() == 0
    waited(lambda: not any(map(alive, map(int, pids.read_text().split()))), "what they started to end")
    waited(lambda: not _processes_below(host.folder), f"all of them to end: {_processes_below(host.folder)}")


def _processes_below(folder: Path) -> list[str]:
    """Command lines of what still runs a program of this test's own."""
    shown = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it ended
            shown.append(file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in shown if str(folder) in line and "pytest" not in line]


def only(collector: str, more: str, *codes: str) -> str:
    """The other collectors are off, and these conditions come and go quickly."""
    quick = "".join(f'[checks.{code}]\nrise = "1s"\nfall = "0s"\n' for code in codes)
    others = QUIET.replace(f"[collectors.{collector}]\nenabled = false\n", "")
    return f'{others}{quick}[collectors.{collector}]\ninterval = "1s"\n{more}\n'


@pytest.mark.slow
def test_what_a_port_once_was_is_known_after_a_restart(host: FakeHost) -> None:
    port = host.sysfs / "class/infiniband/mlx5_0/ports/1"
    plant(port, {"state": "4: ACTIVE", "link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)"})
    host.configure(beside=only("infiniband", "", "infiniband_rate_low"))
    with host.daemon() as running:
        running.wait(lambda: "host_learned" in running.get("/v1/events?since=0")[1].decode(), "the port")
        assert running.stop() == 0
    (port / "rate").write_text("100 Gb/sec (1X NDR)")
    with host.daemon() as running:
        running.wait_status("warning", "infiniband_rate_low")
        assert finding(running, "infiniband_rate_low")["evidence"] == {"gbps": 100.0, "gbps_before": 400.0}
        accepted = host.order("inventory", "accept")
        assert accepted.stdout == "now expected at their lower speed: mlx5_0/1\n", accepted.stderr
        running.wait_status("healthy")
        assert running.stop() == 0


def watching(mount: Path, *codes: str) -> str:
    """Return a configuration that expects this mount. Other mounts of this machine are probed, too."""
    return only("storage", f'patience = "1s"\nexpected = ["{mount}"]', *codes)


def of(mount: Path, running: RunningDaemon) -> dict[str, str]:
    """The severities of what is found of this mount."""
    return {f["check"]: f["severity"] for f in findings(running) if f["id"].endswith(f"@mount/{mount}")}


@pytest.mark.slow
@pytest.mark.disposable
def test_a_real_file_system_that_fills_up_warns_and_one_that_is_gone_fails(host: FakeHost) -> None:
    disk = host.folder / "scratch"
    host.configure(beside=watching(disk, "disk_full", "mount_missing"))
    with host.daemon() as running:
        with tmpfs(disk, "1m"):
            for _ in range(2):
                (disk / "file").write_bytes(bytes(1 << 20))
                running.wait(lambda: of(disk, running) == {"disk_full": "warning"}, "the full disk")
                (disk / "file").unlink()
                running.wait(lambda: not of(disk, running), "the emptied disk")
        if time.clock_gettime(time.CLOCK_BOOTTIME) > BOOT_GRACE:  # until then a mount may still come
            running.wait(lambda: of(disk, running) == {"mount_missing": "failure"}, "the missing mount")
        assert running.stop() == 0


@pytest.mark.slow
@pytest.mark.disposable
@pytest.mark.parametrize("killable", [True, False])
def test_a_mount_that_hangs_is_a_failure_and_hangs_nobody(host: FakeHost, *, killable: bool) -> None:
    mount = host.folder / "gone"
    host.configure(beside=watching(mount, "mount_hung", "mount_missing"))
    with host.daemon() as running, hung_mount(mount, killable=killable):
        running.wait_status("failure", "mount_hung")
        before = running.heartbeat()["sequence"]
        running.wait(lambda: running.heartbeat()["sequence"] > before + 10, "passes beside a hung mount")
        assert running.stop() == 0
