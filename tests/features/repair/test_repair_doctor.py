"""The doctor says whether the steps that are allowed could be taken here, and what forbids them now."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.config.model import Config, load
from gpuwarden.config.sources import Layer, Sources
from gpuwarden.doctor.row import Grade, Row
from gpuwarden.doctor.running import Running
from gpuwarden.features.active_test.doctor import gate
from gpuwarden.features.repair.doctor import UNITS, now, repair
from support.repair_rig import world


def config_of(folder: Path, *steps: str) -> Config:
    options = {
        "mode": "enforce",
        "breaker": {"uncounted": "allow"},
        "file": {"path": str(folder / "out")},
        "test": {"gate_socket": str(folder / "test.sock")},
        "repair": {"steps": list(steps), "socket": str(folder / "repair.sock")},
    }
    return load(Sources(file=None, overrides=(Layer("test", options),)))


async def rows(folder: Path, config: Config, state: str = "clear") -> list[Row]:
    daemon = Running(folder=folder, status={"repair": {"state": state}})
    return await repair(daemon, config, (folder,))


async def test_where_no_step_is_allowed_it_says_nothing(tmp_path: Path) -> None:
    assert await rows(tmp_path, Config()) == []


async def test_without_the_helper_it_says_whether_its_units_are_installed(tmp_path: Path) -> None:
    config = config_of(tmp_path, "reset_gpu")
    (row,) = await rows(tmp_path, config)
    assert row.grade is Grade.FAIL
    assert row.found.startswith(f"{UNITS[0]} and {UNITS[1]} not installed")
    for unit in UNITS:
        (tmp_path / unit).touch()
    (row,) = await rows(tmp_path, config)
    assert row.to_do == "systemctl enable --now gpuwarden-repair.socket"
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(tmp_path / "repair.sock"))
        (row,) = await rows(tmp_path, config)
        assert "Connection refused" in row.found


async def test_each_step_is_named_with_what_this_host_lacks_for_it(tmp_path: Path) -> None:
    async with world(tmp_path) as host:
        host.helper.probe = {
            "able": ["restart_service", "reset_all"],
            "unable": {"reset_gpu": "no fabric manager runs", "reload_driver": "modprobe is not in /sbin: install it"},
        }
        doctor_rows = await rows(tmp_path, config_of(tmp_path, "restart_service", "reset_gpu", "reload_driver"))
        assert [(row.check, row.grade) for row in doctor_rows] == [
            ("repair helper", Grade.OK), ("restart_service", Grade.OK), ("reset_gpu", Grade.OK),
            ("reload_driver", Grade.WARN), ("repair now", Grade.OK),
        ]  # fmt: skip
        assert doctor_rows[2].found == "can be taken; one GPU alone cannot be: no fabric manager runs"
        assert doctor_rows[3].found == "cannot be taken: modprobe is not in /sbin: install it"
        assert doctor_rows[4].found == "nothing is to be repaired"


@pytest.mark.parametrize(
    ("shown", "mode", "quiet", "grade", "text"),
    [
        ({"state": "clear"}, "observe", True, "ok", "forbidden now: mode is observe and quiet hours"),
        ({"state": "running", "step": "reboot", "finding": "sxid"}, "enforce", False, "ok", "reboot runs, for sxid"),
        (
            {"state": "waiting", "step": "reboot", "finding": "sxid", "text": "jobs"}, "enforce", False, "warn",
            "reboot for sxid waits: jobs",
        ),
        ({"state": "waiting", "finding": "sxid", "text": "reboot ended"}, "enforce", False, "warn", "sxid waits: reboot ended"),
        ({"state": "person", "finding": "sxid", "text": "tried"}, "enforce", False, "warn", "needs an operator: tried"),
    ],
)  # fmt: skip
def test_what_forbids_a_step_now_is_said(shown: dict[str, Any], mode: str, quiet: bool, grade: str, text: str) -> None:
    (row,) = now(shown, mode, quiet=quiet)
    assert (row.grade.value, text in row.found) == (grade, True), row


def test_without_a_daemon_nothing_is_known_of_now() -> None:
    assert not list(now({}, "enforce", quiet=False))


def test_where_repairs_are_allowed_the_service_of_the_test_after_them_must_be_there(tmp_path: Path) -> None:
    assert not list(gate(Config()))
    (row,) = gate(config_of(tmp_path, "reset_gpu"))
    assert row.grade is Grade.WARN
    assert row.to_do.endswith("otherwise after a repair this node returns without a test")


def test_the_level_of_the_test_is_the_one_that_will_be_run(tmp_path: Path) -> None:
    config = config_of(tmp_path, "reset_gpu")
    path = tmp_path / "test.sock"
    slurm = replace(config.slurm, enabled=True)
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(path))
        assert [row.found for row in gate(config)] == [f"after a repair level gate, through {path}"]
        assert [row.found for row in gate(replace(config, slurm=slurm))] == [
            f"after a repair level quick, through {path}"
        ]
