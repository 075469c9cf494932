"""Programs for an archive: whatever one does, it costs bounded time and memory, and what is missing of it is said."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import pytest

from gpuwarden.features.bundle import items
from gpuwarden.features.bundle.items import PROGRAMS, TOTAL_MOST
from gpuwarden.features.bundle.programs import LEFT, Done, program
from support.bundling import BundleHost
from support.daemons import alive
from support.disposable import require_disposable_host
from support.hung_mounts import hung_mount

MOST = 1000


def ran(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, deadline: float = 60.0) -> Done:
    host = BundleHost(folder, {"probe": text})
    monkeypatch.setenv("PATH", str(host.bin))
    return asyncio.run(program(("probe", "word"), name="probe", deadline=deadline, most=MOST))


@pytest.mark.parametrize(
    ("text", "output", "why"),
    [
        ('echo "$1"; echo noise >&2', b"word\n", ""),
        ("true", b"", ""),
        ("echo half; echo 'no  device' >&2; exit 9", b"half\n", "exit code 9: no device"),
        ("kill -9 $$", b"", "died by SIGKILL"),
        ("yes | head -c 300000", b"y\n" * (MOST // 2), "only the first 1000 bytes are kept"),
    ],
)
def test_what_it_wrote_is_kept_with_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, output: bytes, why: str
) -> None:
    done = ran(tmp_path, monkeypatch, text)
    assert (done.output, done.why, done.absent) == (output, why, False)


def test_one_that_is_not_installed_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = asyncio.run(program(("nvidia-smi", "-q"), name="smi", deadline=1.0, most=MOST))
    assert (done.output, done.why, done.absent) == (b"", "nvidia-smi is not installed", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["echo $$; exec sleep 600", "trap '' TERM; echo $$; while :; do sleep 600; done", "echo $$; yes"],
    ids=["hangs", "ignores", "floods"],
)
def test_one_that_does_not_end_is_killed_at_its_deadline_and_what_it_wrote_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    done = ran(tmp_path, monkeypatch, text, deadline=1.0)
    assert "has not ended within 1 s" in done.why
    first = done.output.split()[:1]
    assert not first or not alive(int(first[0]))


def test_a_file_that_it_fills_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwarden.features.bundle.programs._FILE_MOST", 4096)
    done = ran(tmp_path, monkeypatch, f"yes > {tmp_path}/file")
    assert done.why
    assert (tmp_path / "file").stat().st_size == 4096


@pytest.mark.slow
@pytest.mark.disposable
def test_one_that_cannot_be_killed_is_left_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_disposable_host()
    with hung_mount(tmp_path / "gone", killable=False) as gone:
        done = ran(tmp_path, monkeypatch, f"echo begun; exec /usr/bin/stat {gone}", deadline=1.0)
    match = re.fullmatch(
        r"has not ended within 1 s and cannot be killed \(pid \d+, stuck in the kernel\): it is left behind, in state D",
        done.why,
    )
    assert (done.output, match is not None) == (b"begun\n", True), done.why
    left = LEFT.pop()
    assert asyncio.run(left.ended(60.0)), "it ends with the mount"
    left.reap()


def test_an_archive_and_each_of_its_programs_are_bounded() -> None:
    of_ours = [most for name, most in vars(items).items() if name.endswith("_MOST") and name != "TOTAL_MOST"]
    assert len(of_ours) == 10
    assert sum(row.most for row in PROGRAMS) + sum(of_ours) <= TOTAL_MOST
    assert all(0 < row.deadline <= 300 for row in PROGRAMS)
    assert len({row.name for row in PROGRAMS}) == len(PROGRAMS)


def test_no_variable_of_the_caller_reaches_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "hunter2")
    done = ran(tmp_path, monkeypatch, "/usr/bin/env")
    assert b"hunter2" not in done.output
    assert b"LC_ALL=C" in done.output
    assert os.environ["API_TOKEN"] == "hunter2"
