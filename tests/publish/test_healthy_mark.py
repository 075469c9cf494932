"""The mark of a healthy node is in force for no longer than its verdict, and only while that is healthy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.health.model import Health, Verdict
from gpuwarden.publish.files.healthy_mark import PERIOD, HealthyMark, mark_name
from gpuwarden.publish.files.verdict import VerdictFile
from gpuwarden.publish.snapshot import Service, Snapshot
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import Stamp
from support.disposable import require_disposable_host
from support.mounts import remount, tmpfs
from support.needs import root_rights
from support.slurm_hooks import SHELLS, HookHost, boot


def snapshot(
    health: Health = Health.HEALTHY, *, observed: Stamp | None = None, fresh_for: float = 15.0, simulated: bool = False
) -> Snapshot:
    at = observed or host_clock()
    service = Service(
        node="n1", boot_id=boot(), started=at, version="1", mode="observe", simulated=simulated, interval=5.0,
        fresh_for=fresh_for,
    )  # fmt: skip
    return Snapshot(service=service, sequence=1, made=at, observed=at, verdict=Verdict(at=at, health=health))


def marks(run_dir: Path) -> list[str]:
    return sorted(path.name for path in run_dir.glob(".healthy.*"))


@given(
    observed=st.floats(1.0, 1e7),
    age=st.floats(0.0, 200.0),
    fresh_for=st.floats(1.0, 200.0),
    later=st.floats(0.0, 400.0),
)
def test_a_mark_that_counts_is_never_older_than_the_verdict_may_be(
    observed: float, age: float, fresh_for: float, later: float
) -> None:
    """A script reads the mark `later`; the daemon made it `age` after the observation and never again."""
    shown = snapshot(observed=Stamp(observed, 0.0), fresh_for=fresh_for)
    name = mark_name(shown, Stamp(observed + age, 0.0))
    period = int(observed + age + later) // PERIOD
    if name and int(name.rpartition(".")[2]) in (period, period + 1):
        assert shown.health(Stamp(observed + age + later, 0.0)) is Health.HEALTHY


@given(observed=st.floats(1.0, 1e7), later=st.floats(0.0, 7.0))
def test_with_the_defaults_a_healthy_node_is_marked_without_a_gap(observed: float, later: float) -> None:
    """A pass comes every 5 s."""
    name = mark_name(snapshot(observed=Stamp(observed, 0.0)), Stamp(observed, 0.0))
    period = int(observed + later) // PERIOD
    assert int(name.rpartition(".")[2]) in (period, period + 1)


@pytest.mark.parametrize("health", [Health.WARNING, Health.FAILURE, Health.UNKNOWN])
def test_no_other_node_is_marked(health: Health) -> None:
    assert mark_name(snapshot(health), host_clock()) == ""


def test_neither_a_simulated_node_nor_one_that_was_never_observed_is_marked() -> None:
    assert mark_name(snapshot(simulated=True), host_clock()) == ""
    assert mark_name(replace(snapshot(), observed=None), host_clock()) == ""


async def test_the_mark_goes_with_the_health(tmp_path: Path) -> None:
    file = VerdictFile(tmp_path / "run")
    for health, count in ((Health.HEALTHY, 1), (Health.FAILURE, 0), (Health.HEALTHY, 1), (Health.WARNING, 0)):
        for _ in range(2):  # the first time there is no folder yet
            file.publish(snapshot(health))
            assert await file.flush(60)
        assert len(marks(tmp_path / "run")) == count
    assert file.close(60)


def test_marks_of_a_daemon_before_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".healthy.0badb007.12").symlink_to("verdict")
    HealthyMark(tmp_path).show("")
    assert marks(tmp_path) == []


def test_on_a_read_only_disk_nothing_is_raised_and_the_mark_goes_as_soon_as_it_can(tmp_path: Path) -> None:
    require_disposable_host()
    with tmpfs(tmp_path / "disk", "64k") as disk:
        mark = HealthyMark(disk)
        mark.show(".healthy.0badb007.12")
        remount(disk, "ro")
        mark.show("")
        remount(disk, "rw")
        assert marks(disk) != []
        mark.show("")
        assert marks(disk) == []


@pytest.mark.parametrize("shell", SHELLS.values(), ids=SHELLS)
async def test_the_health_check_believes_the_mark_that_the_daemon_makes(tmp_path: Path, shell: list[str]) -> None:
    root_rights()
    host = HookHost(tmp_path)
    host.give_away()
    file = VerdictFile(host.run_dir)
    file.publish(snapshot())
    assert await file.flush(60)
    (host.run_dir / "verdict").unlink()
    assert host.run("healthcheck", shell).stdout == "gpuwarden: healthy\n"
    file.publish(snapshot(Health.UNKNOWN))
    assert await file.flush(60)
    (host.run_dir / "verdict").unlink()
    assert host.run("healthcheck", shell).stdout.startswith("gpuwarden: there is no verdict")
    assert file.close(60)
