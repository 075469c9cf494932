"""A real daemon with its black box: faults, kills and a folder that cannot be written."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwarden.base.paths import black_box
from gpuwarden.features.black_box.ring import Ring
from support.daemons import FakeHost, Json, RunningDaemon
from support.quick import first_quick


def gone(host: FakeHost) -> None:
    host.fake.lost(1)
    host.plug(2, missing=frozenset({1}))


FAULTS: dict[str, Callable[[FakeHost], object]] = {
    "uncontained ECC error": lambda host: host.xid(1, 95),
    "GPU gone": gone,
    "double-bit errors": lambda host: host.fake.reading(1, "ecc_uncorrected_volatile", 3),
}


def kept(daemon: RunningDaemon) -> list[Json]:
    boxes: list[Json] = (daemon.status()["black_box"] or {}).get("kept", [])
    return boxes


def replayed(host: FakeHost, file: str | Path) -> tuple[int, Json]:
    """Return the exit code of a replay, and the last lines that it prints: what the box says of itself, and the summary."""
    done = host.command("replay", "--json", str(file))
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return done.returncode, {name: value for line in lines[-2:] for name, value in line.items()}


@pytest.mark.parametrize("fault", first_quick(0, FAULTS))
def test_the_box_of_a_failure_outlives_a_kill_and_gives_the_verdict_again(fault: str, tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 2)
    with host.daemon() as daemon:
        daemon.wait_passes(3)
        FAULTS[fault](host)
        daemon.wait(lambda: kept(daemon), "a frozen box")
        daemon.kill()
    folder = black_box(host.state_dir)
    (path,) = folder.glob("frozen-*")
    code, said = replayed(host, path)
    assert code == 0
    assert said["box"]["health"] == "failure"
    assert sorted(said["box"]["findings"]) == sorted(finding["id"] for finding in said["summary"]["findings"])
    assert "(nothing was recorded before)" in said["box"]["missing"]
    assert [stat.S_IMODE(entry.stat().st_mode) for entry in (folder, path)] == [0o700, 0o600]
    with host.daemon() as daemon:
        daemon.wait(lambda: kept(daemon), "the box of the daemon before")
        assert kept(daemon)[0]["file"] == str(path)
        assert daemon.stop() == 0
    left = Ring(folder)
    left.open()
    assert len(left.segments) >= 2
    assert replayed(host, left.segments[0].path)[0] == 0


@pytest.mark.slow
def test_a_box_that_cannot_be_written_is_a_warning_and_watching_goes_on(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 2)
    folder = black_box(host.state_dir)
    folder.parent.mkdir()
    folder.write_text("a file, and no folder")
    with host.daemon() as daemon:
        daemon.wait_status("warning", "output_failed.black_box")
        assert f"black box: cannot write {folder}: File exists" in " ".join(daemon.status()["errors"])
        host.xid(1, 95)
        daemon.wait_status("failure", "xid.95")


@pytest.mark.slow
def test_switched_off_it_leaves_no_file(tmp_path: Path) -> None:
    host = FakeHost(tmp_path, 2)
    host.configure("[black_box]\nenabled = false\n")
    with host.daemon() as daemon:
        daemon.wait_passes(2)
        assert daemon.status()["black_box"] is None
    assert not black_box(host.state_dir).exists()
