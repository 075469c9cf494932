"""Root's doctor judges as the daemon does: its user, with its capabilities."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from support.daemons import FakeHost, RunningDaemon
from support.needs import unmet

OTHER = 65534
CAPABILITIES = "+syslog,+dac_read_search"
AS_OTHER = (
    "setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}",
    "--bounding-set=-all,+syslog,+dac_read_search",
)  # fmt: skip
"""As the profile observe has it."""


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        unmet("it takes root, and setpriv of util-linux, to run a daemon as another user")
    host = FakeHost(tmp_path, 2)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    return host


def test_roots_doctor_judges_as_the_user_of_the_daemon(host: FakeHost) -> None:
    host.configure("[collectors.kernel_log]\nenabled = false\n")
    daemon = RunningDaemon(host, prefix=AS_OTHER)
    try:
        daemon.find_port()
        daemon.wait_status("healthy")
        done = host.command("doctor", "--json", "--config", host.config, "--state-dir", host.state_dir)
        rows = {row["check"]: row for row in json.loads(done.stdout)["rows"]}
    finally:
        daemon.kill()
    assert "permissions" not in rows, rows["permissions"]
    assert rows["rights"]["grade"] == "ok"
    assert f"uid {OTHER}" in rows["rights"]["found"]
    assert "signal the processes of jobs" in rows["rights"]["found"], "root itself could"
    assert (rows["kernel log"]["grade"], rows["kernel log"]["found"]) == ("ok", "disabled")
    assert rows["state directory"]["grade"] == "ok"
    assert rows["port"]["grade"] == "ok"


def test_the_state_directory_can_be_named(host: FakeHost) -> None:
    named = host.folder / "elsewhere"
    done = host.command("doctor", "--json", "--config", host.config, "--state-dir", named)
    rows = {row["check"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["state directory"]["found"].startswith(f"{named} ")
