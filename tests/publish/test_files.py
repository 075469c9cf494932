"""The verdict file has what a prolog script needs, and is whole at every moment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.health.model import GpuVerdict, Health, Verdict
from gpuwarden.publish.files.verdict import VerdictFile, verdict_text
from gpuwarden.publish.notices import NoticeFile
from gpuwarden.publish.snapshot import Enforced, Service, Snapshot
from gpuwarden_collectors.base import host_clock
from gpuwarden_collectors.facts import Stamp
from support.disposable import require_disposable_host
from support.mounts import fill, remount, tmpfs

NOW = Stamp(1_000.9, 1_800_000_000.0)


def snapshot(health: Health = Health.HEALTHY, *, at: Stamp = NOW, reasons: tuple[str, ...] = ()) -> Snapshot:
    service = Service(
        node="n1",
        boot_id="0b3c",
        started=at,
        version="1",
        mode="observe",
        simulated=False,
        interval=5.0,
        fresh_for=15.5,
    )
    gpus = (
        GpuVerdict(slot="0000:01:00.0", health=Health.HEALTHY, index=0),
        GpuVerdict(slot="0000:02:00.0", health=Health.FAILURE, index=None, present=False),
        GpuVerdict(slot="0000:03:00.0", health=Health.WARNING, index=1),
    )
    verdict = Verdict(at=at, health=health, reasons=reasons, gpus=gpus)
    return Snapshot(service=service, sequence=1, made=at, observed=at, verdict=verdict)


def names_in(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def file(run_dir: Path) -> Iterator[VerdictFile]:
    file = VerdictFile(run_dir)
    yield file
    assert file.close(60)


def test_the_verdict_of_a_healthy_node() -> None:
    assert verdict_text(snapshot(), NOW) == (
        "format=1\nboot_id=0b3c\nstamp=1000\nfresh_for=16\nmode=observe\nsimulated=0\nstate=healthy\nschedulable=1\n"
        "excluded=0\nbreaker=0\nreason=\nnode_state=healthy\nexcluded_by=\n"
        "gres.0=healthy\ngres.1=failure\ngres.2=warning\ngpu.0=healthy\ngpu.1=warning\n"
    )


def test_a_failure_gives_its_reasons() -> None:
    text = verdict_text(snapshot(Health.FAILURE, reasons=("gpu_missing", "xid.79")), NOW)
    assert "\nstate=failure\nschedulable=0\n" in text
    assert "\nreason=gpu_missing xid.79\n" in text


def test_the_reason_for_unknown_is_given_once() -> None:
    shown = snapshot(Health.UNKNOWN, reasons=("nvml_not_answering",))
    shown = replace(shown, verdict=replace(shown.verdict, unknown=("nvml_not_answering",)))
    assert "\nreason=nvml_not_answering\n" in verdict_text(shown, NOW)


def test_an_excluded_node_is_marked_and_takes_no_work() -> None:
    text = verdict_text(replace(snapshot(), enforced=Enforced(excluded=(("slurm", "failure"),))), NOW)
    assert "\nschedulable=0\nexcluded=1\n" in text


def test_nothing_seen_for_too_long_is_unknown() -> None:
    assert "\nstate=unknown\nschedulable=0\n" in verdict_text(snapshot(), Stamp(1_016.5, NOW.wall))


def test_before_the_first_observation_the_stamp_is_zero_and_the_state_unknown() -> None:
    text = verdict_text(replace(snapshot(), observed=None), NOW)
    assert "\nstamp=0\n" in text
    assert "\nstate=unknown\n" in text


def test_a_simulated_verdict_is_marked() -> None:
    made_up = snapshot()
    text = verdict_text(replace(made_up, service=replace(made_up.service, simulated=True)), NOW)
    assert "\nsimulated=1\n" in text


def test_no_value_can_add_a_line_of_its_own() -> None:
    text = verdict_text(snapshot(Health.FAILURE, reasons=("a\nstate=healthy", "b" * 10_000)), NOW)
    assert [line for line in text.splitlines() if line.startswith("state=")] == ["state=failure"]
    assert max(map(len, text.splitlines())) < 250


async def test_a_shell_distinguishes_fresh_from_stale_by_uptime(file: VerdictFile, run_dir: Path) -> None:
    file.publish(snapshot(at=host_clock()))
    assert await file.flush(60)
    script = f"""
        while IFS='=' read -r key value; do case $key in stamp) stamp=$value;; fresh_for) fresh=$value;; esac; done < {run_dir}/verdict
        read -r up rest < /proc/uptime
        [ $((${{up%%.*}} - stamp)) -le "$fresh" ]
    """
    assert await asyncio.to_thread(subprocess.call, ["/bin/sh", "-c", script]) == 0


async def test_everybody_may_read_it_whatever_the_umask(file: VerdictFile, run_dir: Path) -> None:
    umask = os.umask(0o077)
    try:
        file.publish(snapshot())
        assert await file.flush(60)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((run_dir / "verdict").stat().st_mode) == 0o644


async def test_a_reader_never_sees_half_a_verdict(file: VerdictFile, run_dir: Path) -> None:
    file.publish(snapshot())
    assert await file.flush(60)
    for number in itertools.count():
        file.publish(snapshot(reasons=("x" * (number % 150),)))
        text = (run_dir / "verdict").read_text()
        assert text.startswith("format=1\n")
        assert text.endswith("gpu.1=warning\n")
        await asyncio.sleep(0)
        if number == 500:
            break
    assert await file.flush(60)
    assert names_in(run_dir) == ["verdict"]


async def test_a_directory_that_cannot_be_written_is_reported_and_then_forgotten(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where the directory should be")
    file = VerdictFile(tmp_path / "run")
    file.publish(snapshot())
    assert await file.flush(60)
    assert str(tmp_path / "run/verdict") in file.error(host_clock())
    (tmp_path / "run").unlink()
    file.publish(snapshot())
    assert await file.flush(60)
    assert file.error(host_clock()) == ""
    assert file.close(60)


def test_a_leftover_of_a_killed_daemon_is_in_nobody_s_way(run_dir: Path) -> None:
    run_dir.mkdir()
    (run_dir / ".verdict.new").write_text("format=1\nboot")
    file = VerdictFile(run_dir)
    file.publish(snapshot())
    assert file.close(60)
    assert (run_dir / "verdict").read_text().endswith("gpu.1=warning\n")
    assert names_in(run_dir) == ["verdict"]


# --- a run directory that is full or read-only


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB, as the run directory."""
    require_disposable_host()
    with tmpfs(tmp_path / "disk", "64k") as mounted:
        yield mounted


def now(health: Health = Health.HEALTHY, *, reasons: tuple[str, ...] = ()) -> Snapshot:
    return snapshot(health, at=host_clock(), reasons=reasons)


async def test_on_a_full_disk_a_failure_takes_the_place_of_the_verdict_before(disk: Path) -> None:
    file = VerdictFile(disk)
    file.publish(now())
    assert await file.flush(60)
    filler = fill(disk)
    file.publish(now(Health.FAILURE, reasons=("gpu_missing",)))
    assert await file.flush(60)
    assert "\nstate=failure\n" in (disk / "verdict").read_text()
    assert "No space left" in file.error(host_clock()), "the next change may find no room"
    file.publish(now(Health.FAILURE, reasons=("gpu_missing", "xid.79")))
    assert await file.flush(60)
    assert "\nreason=gpu_missing xid.79\n" in (disk / "verdict").read_text()
    filler.unlink()
    file.publish(now())
    assert await file.flush(60)
    assert "\nstate=healthy\n" in (disk / "verdict").read_text()
    assert file.error(host_clock()) == ""
    assert file.close(60)


async def test_where_another_process_takes_the_last_page_no_verdict_calls_a_failed_node_healthy(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = VerdictFile(disk)
    file.publish(now())
    assert await file.flush(60)
    fill(disk)
    unlink = Path.unlink

    def and_somebody_is_quicker(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        with contextlib.suppress(OSError), (disk / "filler").open("ab", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)

    monkeypatch.setattr(Path, "unlink", and_somebody_is_quicker)
    file.publish(now(Health.FAILURE))
    assert await file.flush(60)
    verdict = disk / "verdict"
    assert not verdict.exists() or verdict.read_text() == ""
    assert "No space left" in file.error(host_clock())
    assert file.close(60)


async def test_what_is_still_true_stays_until_it_is_old(disk: Path) -> None:
    """A missing verdict refuses jobs if on_stale is "refuse", which must not follow from one write that fails."""
    file = VerdictFile(disk)
    file.publish(now())
    assert await file.flush(60)
    before = (disk / "verdict").read_text()
    fill(disk)
    file.publish(now(Health.UNKNOWN))
    assert await file.flush(60)
    assert (disk / "verdict").read_text() == before
    assert file.close(60)


async def test_on_a_read_only_disk_the_verdict_stays_and_is_reported_as_old(disk: Path) -> None:
    file = VerdictFile(disk)
    file.publish(now())
    assert await file.flush(60)
    remount(disk, "ro")
    file.publish(now(Health.FAILURE))
    assert await file.flush(60)
    assert "Read-only file system" in file.error(host_clock())
    remount(disk, "rw")
    file.publish(now(Health.FAILURE))
    assert await file.flush(60)
    assert "\nstate=failure\n" in (disk / "verdict").read_text()
    assert file.error(host_clock()) == ""
    assert file.close(60)


async def test_a_notice_that_could_not_be_written_is_written_as_soon_as_it_can_be(disk: Path) -> None:
    file = NoticeFile(disk)
    filler = fill(disk)

    async def published(body: bytes) -> str:
        file.publish(body, imminent=False)
        assert await file.flush(60)
        return file.error(host_clock())

    assert "No space left" in await published(b"{}")
    filler.unlink()
    assert await published(b"{}") == ""
    assert (disk / "notice.json").read_text() == "{}\n"
    before = (disk / "notice.json").stat().st_ino
    await published(b"{}")
    assert (disk / "notice.json").stat().st_ino == before, "what does not change is not written again"
    fill(disk)
    file.publish(b'{"act":true}', imminent=True)
    assert await file.flush(60)
    assert (disk / "notice.json").read_text() == '{"act":true}\n', "jobs are notified all the same"
    assert file.close(60)
