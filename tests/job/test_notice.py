"""What a job makes of the notice file: three answers, and never an exception."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_job import CheckpointGuard, Ranks
from gpuwarden_job.notice import Unknown, boottime, read
from support.job_world import give_notice

BOOT = "0f8fad5b-d9cb-469f-a165-70867728950e"
GOOD: dict[str, Any] = {"act": True, "id": "n-1", "boot_id": BOOT, "kind": "spot", "reason": "reclaimed"}


def parsed(tmp_path: Path, content: object) -> object:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / "notice.json").write_bytes(text)
    try:
        return read(tmp_path / "notice.json", BOOT)
    except Unknown as error:
        return error


@pytest.mark.parametrize(
    "content",
    [
        {**GOOD, "act": False}, {"act": False}, {**GOOD, "boot_id": "another"},
    ],
)  # fmt: skip
def test_a_notice_for_people_or_of_another_boot_is_none(tmp_path: Path, content: object) -> None:
    assert parsed(tmp_path, content) is None


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[" * 100_000, b"\xff\xfe", b"null", b"[]", b'"act"', b"1", {}, {"act": 1}, {**GOOD, "act": "true"},
        {**GOOD, "boot_id": None}, {**GOOD, "boot_id": [BOOT]}, {**GOOD, "id": None}, {**GOOD, "id": True},
        b'{"act": true, "id": "' + b"x" * (1 << 17) + b'"}', b"<html>log in</html>",
    ],
)  # fmt: skip
def test_an_unreadable_notice_is_neither_a_notice_nor_none(tmp_path: Path, content: object) -> None:
    assert isinstance(parsed(tmp_path, content), Unknown)


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({}, None),
        ({"deadline": None, "deadline_boottime": None}, None),
        ({"deadline_boottime": 1e999}, None), ({"deadline_boottime": "soon"}, None), ({"deadline_boottime": True}, None),
        ({"deadline_boottime": float("nan")}, None), ({"deadline": "2026-01-01T00:00:00"}, None),
        ({"deadline": "yesterday"}, None), ({"deadline": "9999-99-99T00:00:00Z"}, None),
        ({"deadline_boottime": "in 60"}, None),
    ],
)  # fmt: skip
def test_an_invalid_deadline_is_unknown_and_the_notice_is_in_force(tmp_path: Path, more: Any, left: object) -> None:
    notice = parsed(tmp_path, {**GOOD, **more})
    assert getattr(notice, "deadline", "?") is left


def test_a_deadline_is_that_of_the_steady_clock_else_of_the_other(tmp_path: Path) -> None:
    steady = parsed(tmp_path, {**GOOD, "deadline_boottime": boottime() + 90, "deadline": "1970-01-01T00:00:00Z"})
    assert getattr(steady, "deadline", 0.0) - boottime() == pytest.approx(90, abs=30)
    for wall in (time.time() + 90, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 90))):
        other = parsed(tmp_path, {**GOOD, "deadline": wall})
        assert getattr(other, "deadline", 0.0) - boottime() == pytest.approx(90, abs=30)


def test_a_pipe_or_a_folder_in_its_place_does_not_hold_the_training_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "notice.json")
    guard = CheckpointGuard(ranks=Ranks(), environ={"GPUWARDEN_RUN_DIR": str(tmp_path)}, poll=0)
    assert guard.check(0) is None
    (tmp_path / "notice.json").unlink()
    (tmp_path / "notice.json").mkdir()
    assert guard.check(1) is None
    (tmp_path / "notice.json").rmdir()
    give_notice(tmp_path)
    assert guard.check(2) is not None


def test_a_folder_in_its_place_uses_up_no_descriptors(tmp_path: Path) -> None:
    """A container engine makes one where a file that is to be mounted does not exist; each rank reads it once a second, for days."""
    (tmp_path / "notice.json").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(Unknown):
            read(tmp_path / "notice.json", BOOT)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
