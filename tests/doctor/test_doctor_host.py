"""The doctor on the system under the daemon: unit, rights, clocks, ports, who scrapes, Prometheus, bus, DCGM."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.base.addresses import Address
from gpuwarden.config.model import Config, Control, Publish, load
from gpuwarden.config.policy import BreakerOptions
from gpuwarden.config.secrets import SecretFile
from gpuwarden.config.sources import Sources
from gpuwarden.doctor import host as of_host
from gpuwarden.doctor import prometheus, running, system, unit
from gpuwarden.doctor.check import Check
from gpuwarden.doctor.examination import _in_time
from gpuwarden.doctor.row import Grade, Row
from gpuwarden.doctor.running import Running
from gpuwarden.doctor.web import web
from gpuwarden_collectors.simulated_pci import h100, write_tree
from gpuwarden_collectors.slurm.options import SlurmOptions
from support.commands import environment
from support.control_server import serving
from support.daemons import FakeHost, RunningDaemon, slots
from support.dcgm import BINDINGS, FakeDcgm, engine_process
from support.prometheus_script import api_server, plain, series, vector
from support.systemd import systemd

ROOT = Path(__file__).parents[2]
NOBODY = 65_534
NOW = 1_800_000_000.0
SILENT = Running(folder=Path("/run/gpuwarden"), status={}, why="no daemon answers")


def a_daemon(**fields: Any) -> Running:
    about = {"status": "healthy", "mode": "observe", "node": Config().node, "version": "0", **fields}
    return Running(folder=Path("/run/gpuwarden"), status=about, pid=os.getpid(), uid=os.geteuid())


# --- as the user who runs it

_AS_NOBODY = f"""
import contextlib, io, os, sys
from gpuwarden.cli.main import main
with contextlib.redirect_stdout(io.StringIO()):
    main(sys.argv[1:])  # as root: loads what another user may not read here
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.needs("root")
def test_a_user_without_permissions_is_shown_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 1)
    tmp_path.chmod(0o755)
    host.kmsg.chmod(0o600)
    host.run_dir.mkdir(mode=0o755)
    host.state_dir.mkdir(mode=0o700)
    host.config.write_text(f'mode = "enforce"\n{host.config.read_text()}[control]\ngroup = "root"\n')
    words = [sys.executable, "-c", _AS_NOBODY, "doctor", "--json", "--config", str(host.config)]
    variables = environment(tmp_path, host.fake.environment)
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    rows = {row["check"]: row for row in json.loads(done.stdout)["rows"]}
    assert [rows[name]["grade"] for name in ("kernel log", "run directory", "state directory")] == ["fail"] * 3, rows
    assert "CAP_SYSLOG" in rows["kernel log"]["to_do"]
    assert (rows["rights"]["grade"], "signal the processes of jobs" in rows["rights"]["found"]) == ("warn", True)
    assert "not a member" in rows["control group"]["found"]


def test_a_daemon_of_another_user_is_reported_with_the_command_to_run_as_that_one() -> None:
    other = replace(a_daemon(), uid=4_242)
    row = next(row for row in system.permissions(other, Config()) if row.check == "permissions")
    assert (row.grade, "uid 4242" in row.found) == (Grade.WARN, True)
    assert row.to_do.endswith("sudo -u '#4242' gpuwarden doctor")


def test_a_control_group_that_there_is_not_fails() -> None:
    rows = {row.check: row for row in system.permissions(SILENT, Config(control=Control("no-such-group")))}
    assert rows["control group"].grade is Grade.FAIL


# --- the daemon, its port, who scrapes


@pytest.mark.parametrize(
    ("fields", "grade", "phrase"),
    [
        ({}, Grade.WARN, "it is version 0"),
        ({"version": None}, Grade.WARN, "it is version None"),
    ],
)
def test_a_daemon_of_another_version_is_reported_first(fields: dict[str, Any], grade: Grade, phrase: str) -> None:
    row = running.daemon(a_daemon(**fields), Config())
    assert (row.grade, phrase in row.found, "systemctl restart" in row.to_do) == (grade, True, True)


def test_a_daemon_that_runs_in_another_mode_than_is_configured_is_reported() -> None:
    daemon = a_daemon(version=version("gpuwarden"))
    assert running.daemon(daemon, Config()).grade is Grade.OK
    row = running.daemon(daemon, Config(mode="enforce"))
    assert (row.grade, "the configuration has mode enforce" in row.found) == (Grade.WARN, True)


def schedulers(daemon: RunningDaemon) -> list[dict[str, Any]]:
    """Return what the daemon knows of its actuators."""
    return list(daemon.status()["actions"]["schedulers"])


@pytest.mark.slow
def test_an_actuator_that_cannot_act_is_reported_before_the_node_fails(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 1)
    host.configure(f'[file]\npath = "{tmp_path}/none/out"\n[exec.exclude]\ncommand = ["{tmp_path}/none"]\n')
    with host.daemon() as daemon:
        daemon.wait(
            lambda: "not read yet" not in [scheduler["error"] for scheduler in schedulers(daemon)], "a reading of both"
        )
        done = host.command("doctor", "--json", "--config", host.config)
        status = daemon.status()
    rows = {row["check"]: row for row in json.loads(done.stdout)["rows"]}
    assert [rows[f"actuator {name}"]["grade"] for name in ("file", "exec")] == ["warn"] * 2
    assert f"cannot read {tmp_path}/none/out: No such file or directory" in rows["actuator file"]["found"]
    assert "exits with 127" in rows["actuator exec"]["found"]
    enforcing = list(running.actuators(Running(folder=host.run_dir, status=status), Config(mode="enforce")))
    assert [row.grade for row in enforcing] == [Grade.FAIL] * 2


@pytest.mark.slow
def test_a_daemon_that_listens_and_does_not_answer_is_not_to_be_started_but_restarted(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 1)
    with serving(host.run_dir, None), socket.create_server(("127.0.0.1", 0)) as its_port:
        number = its_port.getsockname()[1]
        host.config.write_text(host.config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{number}"))
        done = host.command("doctor", "--json", "--config", host.config)
    rows = {row["check"]: row for row in json.loads(done.stdout)["rows"]}
    assert "has not responded within 5 s" in rows["daemon"]["found"]
    assert f"process {os.getpid()}" in rows["daemon"]["to_do"]
    assert rows["daemon"]["to_do"].endswith("systemctl restart gpuwarden")
    assert (rows["port"]["grade"], rows["port"]["found"]) == ("ok", f"127.0.0.1:{number} is the daemon's")


@pytest.mark.slow
@pytest.mark.needs("root")
def test_a_user_who_may_not_ask_the_daemon_is_told_so_and_not_to_start_it_or_to_end_it(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 1)
    tmp_path.chmod(0o755)
    with serving(host.run_dir, None), socket.create_server(("127.0.0.1", 0)) as its_port:
        (host.run_dir / "control.sock").chmod(0o660)
        number = its_port.getsockname()[1]
        host.config.write_text(host.config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{number}"))
        words = [sys.executable, "-c", _AS_NOBODY, "doctor", "--json", "--config", str(host.config)]
        variables = environment(tmp_path, host.fake.environment)
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=120, check=False)
    rows = {row["check"]: row for row in json.loads(done.stdout)["rows"]}
    assert "no permission to connect" in rows["daemon"]["found"], done.stderr
    assert rows["daemon"]["to_do"].startswith("run the doctor as root")
    assert (rows["port"]["grade"], "is in use" in rows["port"]["found"]) == ("ok", True), rows["port"]


def port_row(daemon: Running, number: int, host: str = "127.0.0.1") -> Row:
    (row,) = running.port(daemon, Config(publish=Publish(listen=Address(host, number))))
    return row


def test_a_port_is_free_or_the_daemon_s_or_a_stranger_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        number = stranger.getsockname()[1]
        row = port_row(SILENT, number)
        assert (row.grade, f"pid {os.getpid()}" in row.found, "ss -ltnp" in row.to_do) == (Grade.FAIL, True, True)
        assert port_row(replace(a_daemon(), pid=1), number).grade is Grade.FAIL, "a daemon runs, and it is not it"
        assert port_row(a_daemon(), number).grade is Grade.OK, "as if this process were the daemon"
    assert port_row(SILENT, number).found == f"127.0.0.1:{number} is free"
    assert port_row(SILENT, 0).grade is Grade.OK
    assert port_row(SILENT, number, "192.0.2.1").grade is Grade.FAIL, "no address of this host"


def test_a_stranger_on_the_port_may_have_any_name() -> None:
    """A program chooses its name: 15 bytes, in no encoding."""
    comm = Path("/proc/self/comm")
    before = comm.read_bytes()
    comm.write_bytes(b"\xff\xfe\n")
    try:
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            row = port_row(SILENT, stranger.getsockname()[1])
    finally:
        comm.write_bytes(before)
    assert (row.grade, f"pid {os.getpid()}" in row.found) == (Grade.FAIL, True)


@pytest.mark.slow
def test_the_port_of_a_real_daemon_is_its_own(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 1)
    with host.daemon() as daemon:
        text = host.config.read_text().replace("127.0.0.1:0", f"127.0.0.1:{daemon.port}")
        host.config.write_text(text)
        done = host.command("doctor", "--json", "--config", host.config)
    rows = {row["check"]: row for row in json.loads(done.stdout)["rows"]}
    assert (rows["port"]["grade"], rows["port"]["found"]) == ("ok", f"127.0.0.1:{daemon.port} is the daemon's")


@pytest.mark.parametrize(
    ("last", "grade", "phrase"),
    [
        (None, Grade.WARN, "no client has read"),
        ({"age_seconds": 12.3, "by": "Prometheus/2.42.0"}, Grade.OK, "12s ago by Prometheus/2.42.0"),
        ({"age_seconds": 4_000.0, "by": "Prometheus/2.42.0"}, Grade.WARN, "ago by Prometheus"),
    ],
)
def test_the_age_and_the_client_of_the_last_scrape_are_shown(last: object, grade: Grade, phrase: str) -> None:
    (row,) = running.scraped(a_daemon(scraped=last), Config())
    assert (row.grade, phrase in row.found) == (grade, True), row


# --- the Prometheus of the breaker


def counts(us: int | None) -> Callable[[str, str, dict[str, str]], Any]:
    def respond(path: str, query: str, headers: dict[str, str]) -> Any:
        if headers.get("authorization") != "Bearer s3cret":
            return plain(401, b"who are you")
        number = us if "node=" in query or "node%3D" in query else 8
        return vector([] if number is None else [series(time.time(), number, {})])

    return respond


@pytest.mark.parametrize(("us", "grade"), [(1, Grade.OK), (None, Grade.WARN)])
def test_the_prometheus_that_counts_must_answer_and_know_this_node(
    tmp_path: Path, us: int | None, grade: Grade
) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o640)
    with api_server(counts(us)) as number:
        options = BreakerOptions(prometheus=f"http://127.0.0.1:{number}", prometheus_token=SecretFile(str(token)))
        (row,) = prometheus.prometheus(Config(breaker=options))
        assert (row.grade, "has 8 nodes" in row.found) == (grade, True), row
        token.chmod(0o644)
        *_, open_to_all = prometheus.prometheus(Config(breaker=options))
        assert (open_to_all.grade, f"chmod o-rw,g-w {token}" in open_to_all.to_do) == (Grade.WARN, True)
        token.write_text("wrong\n")
        refused, _ = prometheus.prometheus(Config(breaker=options))
    assert (refused.grade, "wrong" in str(refused)) == (Grade.FAIL, False), "a secret is never shown"


def test_a_prometheus_that_is_not_there_fails() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
    (row,) = prometheus.prometheus(Config(breaker=BreakerOptions(prometheus=f"http://127.0.0.1:{number}")))
    assert (row.grade, "[breaker] prometheus" in row.to_do) == (Grade.FAIL, True)


# --- clocks


@pytest.mark.parametrize(
    ("now", "state", "error", "grade"),
    [
        (NOW, 0, 0.02, Grade.OK),
        (NOW, 3, 0.02, Grade.OK),  # a leap second is near
        (NOW, 0, 3.0, Grade.WARN),
        (NOW, 5, 16.0, Grade.WARN),
        (NOW, None, 0.0, Grade.OK),
        (3_600.0, 0, 0.0, Grade.FAIL),  # 1970: a board without a battery
    ],
)
def test_an_unsynchronised_clock_is_reported(now: float, state: int | None, error: float, grade: Grade) -> None:
    row = system.wall_clock(now, state, error)
    assert (row.grade, bool(row.to_do)) == (grade, grade is not Grade.OK)


def test_a_boot_clock_that_is_not_the_host_s_fails(tmp_path: Path) -> None:
    """Scripts judge the verdict's age by /proc/uptime."""
    config = replace(Config(), paths=replace(Config().paths, proc=tmp_path))
    (tmp_path / "uptime").write_text("12.34 5.00\n")
    assert [row.grade for row in system.clock(config)][1:] == [Grade.FAIL]
    (tmp_path / "uptime").write_text(f"{time.clock_gettime(time.CLOCK_BOOTTIME):.2f} 5.00\n")
    assert len(list(system.clock(config))) == 1


# --- the unit

UNIT = {
    "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "UnitFileState": "enabled", "User": "root",
    "NRestarts": "0", "DropInPaths": "/etc/systemd/system/gpuwarden.service.d/enforce.conf", "After": "network.target",
    "TimeoutStopUSec": "20s", "KillMode": "process", "NeedDaemonReload": "no",
}  # fmt: skip
SLURM = replace(Config(), mode="enforce", slurm=SlurmOptions(enabled=True))


def test_a_unit_that_is_as_it_should_be_has_nothing_to_change() -> None:
    rows = list(unit.unit_rows(UNIT, SLURM))
    assert [(row.check, row.grade) for row in rows] == [(n, Grade.OK) for n in ("unit", "profile", "stop order")]
    assert "drop-ins: enforce" in rows[1].found


def test_the_unit_that_is_installed_stops_in_an_order_that_is_as_it_should_be() -> None:
    (after,) = re.findall(r"^After=(.+)$", (ROOT / "systemd/gpuwarden.service").read_text(), re.MULTILINE)
    (row,) = (row for row in unit.unit_rows({**UNIT, "After": after}, SLURM) if row.check == "stop order")
    assert (row.grade, row.to_do) == (Grade.OK, "")


@pytest.mark.parametrize(
    ("change", "check", "grade", "phrase"),
    [
        ({"LoadState": "not-found"}, "unit", Grade.WARN, "docs/use/systemd.md"),
        ({"LoadState": "masked"}, "unit", Grade.WARN, "systemctl unmask gpuwarden.service"),
        ({"LoadState": "bad-setting"}, "unit", Grade.WARN, "systemctl status gpuwarden.service"),
        ({"ActiveState": "failed", "Result": "watchdog"}, "unit", Grade.FAIL, "journalctl"),
        ({"ActiveState": "inactive", "SubState": "dead"}, "unit", Grade.WARN, "a mount that it needs may have failed"),
        ({"UnitFileState": "disabled"}, "unit", Grade.WARN, "systemctl enable --now"),
        ({"NeedDaemonReload": "yes"}, "unit", Grade.WARN, "daemon-reload"),
        ({"NRestarts": "7"}, "unit", Grade.WARN, "journalctl"),
        ({"User": "gpuwarden"}, "profile", Grade.WARN, "use the profile enforce"),
        ({"DropInPaths": ""}, "profile", Grade.WARN, "choose a profile"),
        ({"After": "basic.target"}, "stop order", Grade.WARN, "After=network.target"),
        ({"KillMode": "control-group"}, "stop order", Grade.WARN, "KillMode=process"),
    ],
)
def test_faults_of_the_unit_are_reported(change: dict[str, str], check: str, grade: Grade, phrase: str) -> None:
    row = next(row for row in unit.unit_rows({**UNIT, **change}, SLURM) if row.check == check)
    assert (row.grade, phrase in row.to_do) == (grade, True), row


STRICT = {**UNIT, "ProtectSystem": "strict", "StateDirectory": "gpuwarden gpuwarden-slurm"}


@pytest.mark.parametrize(
    ("folder", "writes", "missed"),
    [
        ("/var/lib/gpuwarden", "", []),
        ("/scratch/gpuwarden", "", ["state.dir = /scratch/gpuwarden is read-only for the daemon, by ProtectSystem of the unit"]),
        ("/scratch/gpuwarden", "-/scratch/gpuwarden -/scratch/gpuwarden-slurm", []),
        ("/scratch/gpuwarden", "/scratch", []),
    ],
)  # fmt: skip
def test_a_folder_that_the_sandbox_makes_read_only_is_reported(folder: str, writes: str, missed: list[str]) -> None:
    """The row of the state directory, which is read outside the sandbox, finds that it can be written."""
    config = replace(SLURM, state=replace(SLURM.state, dir=Path(folder)))
    rows = list(unit.unit_rows({**STRICT, "ReadWritePaths": writes}, config))
    assert [row.found for row in rows if row.grade is Grade.FAIL] == missed
    assert all("ReadWritePaths=-/scratch/gpuwarden" in row.to_do for row in rows if row.grade is Grade.FAIL)


def test_a_systemctl_that_fails_or_is_not_needed_is_reported(tmp_path: Path) -> None:
    (row,) = unit.unit(Config(), tmp_path)
    assert row.grade is Grade.OK
    (tmp_path / "systemd/system").mkdir(parents=True)
    for command in (("/bin/false",), (str(tmp_path / "none"),)):
        (row,) = unit.unit(Config(), tmp_path, command)
        assert row.grade is Grade.FAIL
    output = tmp_path / "output"
    output.write_text("".join(f"{key}={value}\n" for key, value in UNIT.items()))
    rows = list(unit.unit(SLURM, tmp_path, ("/bin/sh", "-c", f"cat {output}")))
    assert {row.grade for row in rows} == {Grade.OK}


@pytest.mark.disposable
def test_a_real_systemd_is_asked_what_it_made_of_the_unit(tmp_path: Path) -> None:
    units = {"gpuwarden": "ExecStart=/bin/sleep 1000\nKillMode=process\nTimeoutStopSec=20"}
    with systemd(tmp_path / "units", units) as own:
        rows = {row.check: row for row in unit.unit(Config(), own.run, own.command)}
    assert rows["unit"].found == "gpuwarden.service is inactive (dead), disabled"
    assert rows["unit"].to_do.startswith("systemctl enable --now gpuwarden.service")
    assert rows["profile"].found == "user root, drop-ins: none"
    assert rows["stop order"].found == "stops within 20s, possibly after the network"


# --- bus and DCGM


@pytest.mark.slow
def test_a_gpu_that_is_mute_on_the_bus_fails_by_its_address(tmp_path: Path) -> None:
    here, mute = slots(2)
    write_tree(tmp_path, [h100(here), replace(h100(mute), responds=False)])
    config = replace(Config(), paths=replace(Config().paths, sysfs=tmp_path))
    (row,) = of_host.pci(config)
    assert (row.grade, row.found) == (Grade.FAIL, f"no device responds at {mute}")


async def test_a_dcgm_engine_is_queried_and_described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake, place = FakeDcgm(tmp_path), tmp_path / "engine"
    monkeypatch.setattr(of_host, "RESPONSE_WITHIN", 300.0)  # a worker may be long in starting here
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "gpuwarden.toml"
    file.write_text(f'[collectors.dcgm]\naddress = "unix://{place}"\nbindings = "{BINDINGS}"\n')
    config = load(Sources(file=file, required=True))
    with engine_process(fake, place):
        (row,) = await of_host.dcgm(config)
        assert (row.grade, "answers at" in row.found, "2 GPUs" in row.found) == (Grade.OK, True, True), row
        file.write_text(f'[collectors.dcgm]\naddress = "unix://{place}"\nbindings = "{tmp_path}"\n')
        (row,) = await of_host.dcgm(load(Sources(file=file, required=True)))
        assert (row.grade, "pydcgm" in row.found) == (Grade.FAIL, True), row


# --- time


async def test_a_check_that_hangs_is_a_row_and_one_that_raises_is_too() -> None:
    async def hangs(_: Running, __: Config) -> list[Row]:
        await asyncio.sleep(3_600)
        return []

    async def breaks(_: Running, __: Config) -> list[Row]:
        raise RuntimeError("odd")

    (late,) = await _in_time("driver", Check(hangs, 0.05), Running(folder=Path(), status={}), Config())
    (odd,) = await _in_time("driver", Check(breaks, 60.0), Running(folder=Path(), status={}), Config())
    assert (late.grade, "no response within" in late.found) == (Grade.FAIL, True)
    assert (odd.grade, "RuntimeError: odd" in odd.found) == (Grade.FAIL, True)


# --- the web-config file


def test_a_faulty_web_config_file_ends_no_daemon_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "web.yml"
    path.write_text("tls_server_config: {cert_file: nowhere.crt, key_file: nowhere.key}\n")
    rows = list(web(replace(Config(), publish=replace(Publish(), web_config=path))))
    assert {row.grade for row in rows} == {Grade.FAIL}
    assert all("a running daemon keeps what it read before" in row.to_do for row in rows)
