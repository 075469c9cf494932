"""What small processes read of what the daemon published."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwarden.actuators.marker_file import marker_text
from gpuwarden.base.paths import marker_path
from gpuwarden.integrations.published import Marker, Reader, parse_verdict
from gpuwarden.policy.model import Act, Intent, Why
from gpuwarden.publish.files.verdict import verdict_text
from gpuwarden_collectors.base import host_clock
from support.responders import BOOT, marker, verdict
from support.snapshots import UPTIME, at, snapshot

NAME = "dstack"


def reader(folder: Path) -> Reader:
    return Reader(folder, NAME, boot_id=BOOT)


def test_the_marker_that_the_actuator_writes_is_read(tmp_path: Path) -> None:
    reason = "gpuwarden: failure gpu_missing gpu=3"
    intent = Intent(act=Act.EXCLUDE, actuator=NAME, why=Why.FAILURE, reason=reason, key="k", at=host_clock())
    path = marker_path(tmp_path, NAME)
    path.parent.mkdir()
    path.write_text(marker_text(intent, node="n1", boot_id=BOOT, since=1.8e9))
    assert reader(tmp_path).read().marker == Marker("failure", reason, "gpu_missing")


def test_the_verdict_that_the_daemon_writes_is_read() -> None:
    published = parse_verdict(verdict_text(snapshot(), at(UPTIME)).encode(), boot_id="").at(UPTIME)
    assert (published.mode, published.state, published.stale) == ("observe", "healthy", "")


def test_a_verdict_is_valid_for_as_long_as_it_declares(tmp_path: Path) -> None:
    verdict(tmp_path, age=20, fresh_for=15)
    assert "more than 15 s old" in (reader(tmp_path).read().verdict or pytest.fail("none")).stale
    verdict(tmp_path, age=10, fresh_for=15)
    assert (reader(tmp_path).read().verdict or pytest.fail("none")).stale == ""


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"stamp": 0}, "only just started"), ({"stamp": "1e9"}, "no time"), ({"stamp": 10**10}, "future"),
        ({"fresh_for": ""}, "no time"), ({"fresh_for": -1}, "no time"),
    ],
)  # fmt: skip
def test_a_verdict_without_a_sound_time_is_stale(tmp_path: Path, fields: dict[str, object], why: str) -> None:
    verdict(tmp_path, **fields)  # type: ignore[arg-type]
    assert why in (reader(tmp_path).read().verdict or pytest.fail("none")).stale


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"boot_id": "other"}, "another boot"), ({"format": 2}, "cannot be parsed"),
        ({"state": "splendid"}, "cannot be parsed"), ({"mode": ""}, "cannot be parsed"),
    ],
)  # fmt: skip
def test_what_is_no_verdict_of_this_boot_is_none(tmp_path: Path, fields: dict[str, object], why: str) -> None:
    verdict(tmp_path, **fields)  # type: ignore[arg-type]
    published = reader(tmp_path).read()
    assert published.verdict is None
    assert why in published.missing


def test_a_marker_of_another_boot_is_void_and_one_of_a_later_format_is_in_force(tmp_path: Path) -> None:
    path = marker(tmp_path, NAME)
    path.write_text(path.read_text().replace('"format": 1', '"format": 2, "more": [1]'))
    assert reader(tmp_path).read().marker is not None
    path.write_text(path.read_text().replace(BOOT, "another boot"))
    assert reader(tmp_path).read().marker is None
    assert reader(tmp_path).read().doubt == ""


def test_what_is_no_marker_is_doubt_and_no_exclusion(tmp_path: Path) -> None:
    path = marker(tmp_path, NAME)
    for text in (
        "",
        "{",
        "[]",
        '{"owner":"somebody"}',
        '{"owner":"gpuwarden","actuator":"nvhcd","reason":""}',
        "[" * 9999,
    ):
        path.write_text(text)
        published = reader(tmp_path).read()
        assert published.marker is None
        assert "not a marker" in published.doubt


def test_nothing_waits_for_a_pipe_follows_a_link_or_reads_without_end(tmp_path: Path) -> None:
    path = marker(tmp_path, NAME)
    path.unlink()
    os.mkfifo(path)
    os.mkfifo(tmp_path / "verdict")
    published = reader(tmp_path).read()
    assert "not a regular file" in published.doubt
    assert "not a regular file" in published.missing
    path.unlink()
    path.symlink_to("/dev/zero")
    assert reader(tmp_path).read().doubt
    path.unlink()
    path.write_bytes(b"x" * (1 << 20))
    assert "more than" in reader(tmp_path).read().doubt


def test_a_folder_in_the_place_of_a_file_is_reported_and_uses_up_no_descriptors(tmp_path: Path) -> None:
    """A container engine makes one where a file that is to be mounted does not exist."""
    path = marker(tmp_path, NAME)
    path.unlink()
    path.mkdir()
    (tmp_path / "verdict").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        published = reader(tmp_path).read()
        assert "Is a directory" in published.doubt
        assert "Is a directory" in published.missing
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_without_anything_published_there_is_neither_verdict_nor_marker_nor_doubt(tmp_path: Path) -> None:
    published = reader(tmp_path / "nowhere").read()
    assert (published.verdict, published.marker, published.doubt) == (None, None, "")
    assert "there is no verdict" in published.missing


@given(st.binary(max_size=400) | st.text("=\nformat1odebs tvrefgi0", max_size=200).map(str.encode))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    try:
        parse_verdict(b"format=1\nmode=enforce\nstate=healthy\n" + data, boot_id="").at(time.monotonic())
    except ValueError as error:
        assert "gpuwarden" in str(error)  # noqa: PT017 - it is one of the two things that may occur
