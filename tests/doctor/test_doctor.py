"""The doctor shows what is wrong with a host and what to change, and changes nothing itself."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.doctor_main import _EXIT
from gpuwarden.config.model import Config
from gpuwarden.doctor.examination import _CHECKS, _in_time
from gpuwarden.doctor.row import Grade, Row, fail, ok, warn, worst
from gpuwarden.doctor.running import Running
from gpuwarden.features.slurm.settings import settings
from gpuwarden_collectors.slurm.options import SlurmOptions
from gpuwarden_collectors.slurm.settings import parse_config
from support.commands import environment
from support.control_server import result, serving
from support.daemons import FakeHost
from support.hung_mounts import hung_mount
from support.slurm_hooks import SCRIPTS

Rows = dict[str, dict[str, Any]]
OF_THIS_MACHINE = {"host clock", "host libcuda", "host PTX compiler", "host uvm"}
"""What no test can have its way: nobody may steer the clock here, and there is no driver for CUDA."""
ORDER = [
    "configuration", "daemon", "unit", "versions", "rights", "clock", "driver", "nvml", "pci", "kernel log", "dcgm", "run directory",
    "state directory", "port", "web", "scrapes", "prometheus", "job socket", "metadata service", "shutdown budget", "job signals",
    "container labels", "libcuda", "PTX compiler", "uvm", "address space", "workers of tests", "GPUs to test", "slurm.conf",
]  # fmt: skip
"""Configuration, daemon, what it runs on, what it reads, what it publishes and to whom, and whom it acts on: one needs the other."""


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path, 2)
    proc = tmp_path / "proc"
    (proc / "driver/nvidia").mkdir(parents=True)
    (proc / "driver/nvidia/version").write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue\n")
    (proc / "sys/kernel/random").mkdir(parents=True)
    configure(host)
    return host


def configure(host: FakeHost, more: str = "") -> None:
    host.configure(more)
    text = host.config.read_text().replace("[paths]\n", f'[paths]\nproc = "{host.folder}/proc"\n')
    host.config.write_text(text)


def examine(host: FakeHost) -> tuple[int, Rows]:
    done = host.command("doctor", "--json", "--config", host.config)
    assert done.returncode in (0, 1, 2), done.stderr
    document = json.loads(done.stdout)
    assert {"ok": 0, "warn": 1, "fail": 2}[document["worst"]] == done.returncode
    return done.returncode, {f"{row['area']} {row['check']}": row for row in document["rows"]}


def everything(folder: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_good_host_has_only_the_daemon_missing_and_is_left_as_it_was(host: FakeHost) -> None:
    before = everything(host.folder)
    _, rows = examine(host)
    bad = {name for name, row in rows.items() if row["grade"] != "ok"} - OF_THIS_MACHINE
    assert bad == {"host daemon"}, rows
    assert rows["host driver"]["found"] == "version 550.163.01 is loaded"
    assert rows["host pci"]["found"].startswith("2 NVIDIA functions")
    assert rows["host nvml"]["found"].startswith("2 GPUs")
    assert re.search(r" from /\S+/libnvidia-ml\.so", rows["host nvml"]["found"])
    assert rows["host GPUs to test"]["found"] == "all 2 GPUs are idle"
    assert everything(host.folder) == before
    assert [name.partition(" ")[2] for name in rows] == ORDER


@pytest.mark.slow
def test_a_running_daemon_answers(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        _, before = examine(host)
        daemon.get("/metrics")
        assert "scraped" not in daemon.status(), "who scrapes is for operators"
        _, rows = examine(host)
    assert rows["host daemon"]["found"] == f"answers at {host.run_dir}: healthy, mode observe"
    assert before["host scrapes"]["found"] == "no client has read /metrics since the daemon started"
    assert rows["host scrapes"]["found"].endswith("ago by a program without a name")
    assert {name for name, row in rows.items() if row["grade"] != "ok"} <= OF_THIS_MACHINE


def test_the_state_directory_is_that_of_the_daemon_that_answers(tmp_path: Path) -> None:
    """An option or a variable of its unit names it, which is not in the configuration that the doctor reads."""
    host = FakeHost(tmp_path, 2)
    its_own, configured = tmp_path / "elsewhere", tmp_path / "configured"
    answer = {"state_dir": str(its_own)}
    host.configure()
    with serving(host.run_dir, lambda asked: result(answer)):
        _, rows = examine(host)
        named = host.command("doctor", "--json", "--config", host.config, "--state-dir", configured)
    assert rows["host state directory"]["found"].startswith(f"{its_own} ")
    (row,) = (row for row in json.loads(named.stdout)["rows"] if row["check"] == "state directory")
    assert row["found"].startswith(f"{configured} ")


@pytest.mark.slow
def test_each_fault_of_the_host_is_a_row_of_its_own(host: FakeHost) -> None:
    (host.folder / "proc/driver/nvidia/version").unlink()
    host.run_dir.mkdir(mode=0o777)
    host.run_dir.chmod(0o777)
    host.state_dir.write_text("in the way")
    host.kmsg.unlink()
    code, rows = examine(host)
    assert code == 2
    assert "modprobe nvidia" in rows["host driver"]["to_do"]
    assert rows["host nvml"]["found"] == "not read: the driver is not loaded"
    assert "every user" in rows["host run directory"]["found"]
    assert "not a folder" in rows["host state directory"]["found"]
    assert "Xids are not read" in rows["host kernel log"]["to_do"]


@pytest.mark.slow
def test_a_faulty_configuration_is_reported_and_the_rest_is_checked(host: FakeHost) -> None:
    host.config.write_text("mode = 'sometimes'\n")
    code, rows = examine(host)
    assert code == 2
    assert "mode" in rows["host configuration"]["found"]
    assert "host kernel log" in rows


@pytest.mark.slow
def test_the_table_shows_what_to_do_below_what_was_found(host: FakeHost) -> None:
    done = host.command("doctor", "--config", host.config)
    lines = done.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("warn  host daemon"))
    assert "to do: systemctl start gpuwarden" in lines[at + 1]
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("name", "area"), [("pci", "host"), ("slurm", "slurm"), ("kubernetes", "kubernetes"), ("dstack", "dstack")]
)
async def test_each_row_is_in_the_area_of_its_check(name: str, area: str) -> None:
    async def one(_: Running, __: Config) -> list[Row]:
        return [ok("a", "b")]

    async def broken(_: Running, __: Config) -> list[Row]:
        raise ValueError("a bug")

    async def hangs(_: Running, __: Config) -> list[Row]:
        await asyncio.Event().wait()
        return []

    for rows in (one, broken, hangs):
        check = replace(_CHECKS[name], rows=rows, within=0.05)
        assert [row.area for row in await _in_time(name, check, Running(folder=Path(), status={}), Config())] == [area]


@pytest.mark.parametrize(
    ("rows", "grade", "code"),
    [
        ([], Grade.OK, 0),
        ([ok("b", "c"), ok("d", "disabled")], Grade.OK, 0),
        ([ok("b", "c"), warn("b", "c", "d")], Grade.WARN, 1),
        ([warn("b", "c", "d"), fail("b", "c", "d"), ok("b", "c")], Grade.FAIL, 2),
    ],
)
def test_the_worst_row_is_the_exit_code_and_0_is_a_host_on_which_all_is_well(
    rows: list[Row], grade: Grade, code: int
) -> None:
    assert (worst(rows), _EXIT[worst(rows)]) == (grade, code)


GOOD = {
    "SLURM_VERSION": "22.05.8", "HealthCheckProgram": "/usr/libexec/gpuwarden-slurm-healthcheck",
    "HealthCheckInterval": "300 sec", "HealthCheckNodeState": "ANY", "Prolog": "/usr/libexec/gpuwarden-slurm-prolog",
    "PrologFlags": "Alloc,Contain", "SchedulerParameters": "bf_interval=5,nohold_on_prolog_fail",
    "Epilog": "/usr/libexec/gpuwarden-slurm-epilog", "ProctrackType": "proctrack/cgroup",
}  # fmt: skip


def graded(keys: Mapping[str, str], **options: Any) -> dict[str, Row]:
    return {row.check: row for row in settings(keys, SlurmOptions(enabled=True, **options))}


def test_a_slurm_that_is_set_up_well_has_nothing_to_change() -> None:
    assert {row.grade for row in graded(GOOD).values()} == {Grade.OK}


@pytest.mark.parametrize(
    ("change", "options", "check", "grade"),
    [
        ({"SLURM_VERSION": "21.08.8"}, {}, "version", Grade.FAIL),
        ({"SLURM_VERSION": "26.05.0-rc1"}, {}, "version", Grade.OK),
        ({"SLURM_VERSION": ""}, {}, "version", Grade.WARN),
        ({"HealthCheckProgram": "(null)"}, {}, "HealthCheckProgram", Grade.WARN),
        ({"HealthCheckProgram": "(null)"}, {"drain_by": "hook"}, "HealthCheckProgram", Grade.FAIL),
        ({"HealthCheckInterval": "0 sec"}, {"drain_by": "hook"}, "HealthCheckProgram", Grade.FAIL),
        ({"HealthCheckProgram": "/usr/sbin/nhc"}, {}, "HealthCheckProgram", Grade.WARN),
        ({"HealthCheckNodeState": "IDLE,CYCLE"}, {}, "HealthCheckProgram", Grade.WARN),
        ({"Prolog": "(null)"}, {}, "Prolog", Grade.WARN),
        ({"PrologFlags": "(null)"}, {}, "PrologFlags", Grade.WARN),
        ({"SchedulerParameters": "(null)"}, {}, "SchedulerParameters", Grade.FAIL),
        ({}, {"on_stale": "refuse"}, "on_stale", Grade.WARN),
        ({"Epilog": "(null)"}, {}, "Epilog", Grade.WARN),
        ({"ProctrackType": "proctrack/linuxproc"}, {}, "ProctrackType", Grade.WARN),
    ],
)
def test_each_setting_that_the_hooks_need_is_graded(
    change: dict[str, str], options: dict[str, Any], check: str, grade: Grade
) -> None:
    row = graded({**GOOD, **change}, **options)[check]
    assert row.grade is grade
    assert bool(row.to_do) is (grade is not Grade.OK)


def test_a_script_that_calls_gpuwardens_hook_is_accepted(tmp_path: Path) -> None:
    mine = tmp_path / "prolog.sh"
    mine.write_text("#!/bin/sh\n/usr/libexec/gpuwarden-slurm-prolog || exit 1\n")
    assert graded({**GOOD, "Prolog": f"/etc/slurm/other,{mine}"})["Prolog"].grade is Grade.OK


def test_a_folder_of_scripts_is_read_as_slurm_expands_its_pattern(tmp_path: Path) -> None:
    """The names order the scripts; gpuwarden's is a link to its hook or calls it."""
    for name in ("prolog", "epilog"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "10-other").write_text("#!/bin/sh\n")
    patterns = {"Prolog": f"{tmp_path}/prolog/*", "Epilog": f"{tmp_path}/epilog/*"}
    assert [graded({**GOOD, **patterns})[key].grade for key in patterns] == [Grade.WARN, Grade.WARN]
    (tmp_path / "prolog/50-gpuwarden").write_text("#!/bin/sh\nexec /usr/libexec/gpuwarden/gpuwarden-slurm-prolog\n")
    (tmp_path / "epilog/50-gpuwarden").symlink_to(SCRIPTS / "gpuwarden-slurm-epilog")
    assert [graded({**GOOD, **patterns})[key].grade for key in patterns] == [Grade.OK, Grade.OK]


_IN_TIME = """
import asyncio, sys
from dataclasses import replace
from pathlib import Path
from gpuwarden.cli.doctor_main import _EXIT
from gpuwarden.config.model import Config
from gpuwarden_collectors.slurm.options import SlurmOptions
from gpuwarden.doctor import host
from gpuwarden.doctor.check import Check
from gpuwarden.doctor.examination import _in_time
from gpuwarden.doctor.running import Running
from gpuwarden.features.slurm.examination import SlurmDoctor
here, config = Path(sys.argv[1]), Config()
async def main():
    async def slurm(*_):
        return await SlurmDoctor(SlurmOptions(enabled=True, conf=here / "slurm.conf"), "n1", here, here).rows()
    async def nvml(*_):
        return await host.nvml(replace(config, paths=replace(config.paths, sysfs=here)))
    for name, check in (("slurm", Check(slurm, 0.5, "slurm")), ("nvml", Check(nvml, 0.5))):
        print(*await _in_time(name, check, Running(folder=here, status={}), config))
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.disposable
def test_a_slurm_conf_or_a_bus_that_hangs_is_a_row_and_not_the_end_of_all_others(tmp_path: Path) -> None:
    with hung_mount(tmp_path / "hangs") as folder:
        words = [sys.executable, "-c", _IN_TIME, str(folder)]
        done = subprocess.run(words, env=environment(tmp_path), capture_output=True, text=True, timeout=150, check=True)
    assert done.stdout.count("no response within 0 s") == 2
    assert "area='slurm'" in done.stdout


def test_the_keys_of_slurm_are_read_whatever_the_release_writes() -> None:
    keys = parse_config(
        "Configuration data as of 1700000000\nProlog[0]               = /a\nProlog[1]               = /b\nPrologFlags  = \n"
        "SchedulerParameters     = a=1,b=2\nSLURM_VERSION           = 25.05.2\n\nSlurmctld(primary) at x is UP\n"
    )
    assert keys == {
        "Prolog": "/a,/b", "PrologFlags": "", "SchedulerParameters": "a=1,b=2", "SLURM_VERSION": "25.05.2",
    }  # fmt: skip
