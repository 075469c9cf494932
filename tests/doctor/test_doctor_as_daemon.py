"""Root's doctor judges as the daemon does: its user, with its capabilities."""

from __future__ import annotations

import grp
import json
import os
import pwd
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden.doctor.as_daemon import become_user_of_unit
from gpuwarden.doctor.unit import identity
from support.daemons import FakeHost, RunningDaemon
from support.needs import needed, python_of_all, root_rights

OTHER = 65534
CAPABILITIES = "+syslog,+dac_read_search"
AS_OTHER = (
    "setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", f"--inh-caps={CAPABILITIES}", f"--ambient-caps={CAPABILITIES}",
    "--bounding-set=-all,+syslog,+dac_read_search",
)  # fmt: skip
"""As the profile jobs has it."""
AS_USER = ("setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", "--bounding-set=-all")
"""As the profile observe has it, but for the kernel log."""


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    root_rights()
    needed("setpriv")
    host = FakeHost(tmp_path, 2)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, OTHER, OTHER, follow_symlinks=False)
    return host


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_file_of_the_configuration_that_only_root_can_read_is_a_fault(host: FakeHost) -> None:
    python_of_all()
    host.configure("[collectors.kernel_log]\nenabled = false\n")
    drop_in = host.config.parent / "conf.d/20-site.toml"
    drop_in.parent.mkdir()
    daemon = RunningDaemon(host, prefix=AS_USER)
    try:
        daemon.find_port()
        daemon.wait_status("healthy")
        drop_in.write_text('[log]\nlevel = "info"\n')
        drop_in.chmod(0o600)
        done = host.command("doctor", "--json", "--config", host.config, "--state-dir", host.state_dir)
    finally:
        daemon.kill()
    row = next(row for row in json.loads(done.stdout)["rows"] if row["check"] == "configuration")
    assert row["grade"] == "fail"
    assert f"uid {OTHER}, the daemon's user: {drop_in}: cannot be read: Permission denied" in row["found"]
    assert f"chgrp {grp.getgrgid(OTHER).gr_name}" in row["to_do"]


def test_a_port_that_the_daemon_says_it_lacks_is_not_taken_for_the_daemons(host: FakeHost) -> None:
    """The daemon's user cannot see whose it is: nobody but its owner and root can."""
    with socket.create_server(("127.0.0.1", 0)) as another:
        script = (
            "import os\nfrom pathlib import Path\nfrom gpuwarden.base.addresses import Address\n"
            "from gpuwarden.config.model import Config, Publish\nfrom gpuwarden.doctor.running import Running, port\n"
            f"config = Config(publish=Publish(listen=Address('127.0.0.1', {another.getsockname()[1]})))\n"
            "def row(*errors):\n"
            "    return port(Running(folder=Path('/run'), status={'errors': errors}, pid=1), config)\n"
            "list(row())\n"  # loads what another user may not read where Python is root's
            f"os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})\n"
            "print(*row())\nprint(*row('port: cannot listen'))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    without, with_error = done.stdout.splitlines()
    assert "is the daemon's" in without
    assert "is taken by another program" in with_error


def test_without_a_daemon_roots_doctor_judges_as_the_user_that_the_unit_names(host: FakeHost) -> None:
    script = (
        "import os\nfrom gpuwarden.base.capabilities import lacking\nfrom gpuwarden.doctor.as_daemon import become_user_of_unit\n"
        f"become_user_of_unit({{'User': '{OTHER}', 'SupplementaryGroups': 'video', 'AmbientCapabilities': 'cap_syslog'}})\n"
        "print(os.getuid(), os.getgroups(), [each.name for each in lacking()])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    groups = sorted({pwd.getpwuid(OTHER).pw_gid, grp.getgrnam("video").gr_gid})
    assert done.stdout.strip() == f"{OTHER} {groups} ['DAC_READ_SEARCH', 'SYS_PTRACE', 'KILL']"


def test_a_unit_whose_user_does_not_exist_is_reported(host: FakeHost) -> None:
    with pytest.raises(KeyError, match="gpuwarden-nobody"):
        become_user_of_unit({"User": "gpuwarden-nobody"})


def test_a_stopped_service_is_judged_as_its_user(tmp_path: Path) -> None:
    (tmp_path / "systemd/system").mkdir(parents=True)
    shown = tmp_path / "systemctl"
    shown.write_text("#!/bin/sh\nprintf 'User=gpuwarden\\nAmbientCapabilities=cap_syslog\\n'\n")
    shown.chmod(0o755)
    assert identity(tmp_path, (str(shown),)) == {"User": "gpuwarden", "AmbientCapabilities": "cap_syslog"}
    assert identity(tmp_path / "none", (str(shown),)) == {}
    assert identity(tmp_path, (str(tmp_path / "missing"),)) == {}


@pytest.mark.slow
def test_the_state_directory_can_be_named(host: FakeHost) -> None:
    named = host.folder / "elsewhere"
    done = host.command("doctor", "--json", "--config", host.config, "--state-dir", named)
    rows = {row["check"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["state directory"]["found"].startswith(f"{named} ")
