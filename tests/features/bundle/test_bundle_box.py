"""The black box, read by root in a folder of the daemon's user: newest traces first, no links, bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwarden.features.bundle.boards import of_box, of_smi, together
from gpuwarden.features.bundle.box import NoBox, traces
from gpuwarden.features.bundle.series import series_of
from support.bundling import SERIAL, SLOT, SMI
from support.traces import story, write


def put(folder: Path, name: str, size: int, written: float) -> None:
    (folder / name).write_bytes(b"x" * size)
    os.utime(folder / name, (written, written))


def test_frozen_traces_come_before_those_of_the_ring_and_newer_before_older_ones(tmp_path: Path) -> None:
    folder = tmp_path / "black-box"
    folder.mkdir()
    put(folder, "ring-1.trace.gz", 40, 400.0)
    put(folder, "frozen-1.trace.gz", 40, 100.0)
    put(folder, "frozen-2.trace.gz", 40, 200.0)
    put(folder, "notes.txt", 1, 500.0)
    taken, left_out = traces(tmp_path, 100)
    assert ([trace.name for trace in taken], left_out) == (
        ["frozen-1.trace.gz", "frozen-2.trace.gz"],
        ["ring-1.trace.gz"],
    )
    assert [trace.name for trace in traces(tmp_path, 1000)[0]] == [
        "frozen-1.trace.gz",
        "frozen-2.trace.gz",
        "ring-1.trace.gz",
    ]


def test_root_follows_no_link_there_and_takes_no_file_of_another_name(tmp_path: Path) -> None:
    folder, secret = tmp_path / "black-box", tmp_path / "shadow"
    folder.mkdir()
    secret.write_text("hunter2")
    (folder / "frozen-1.trace.gz").symlink_to(secret)
    os.link(secret, folder / "frozen-2.trace.gz")
    os.mkfifo(folder / "frozen-3.trace.gz")
    (folder / "frozen-\x1b[2J.trace.gz").write_text("x")
    with pytest.raises(NoBox, match="has no traces"):
        traces(tmp_path, 1000)
    linked = tmp_path / "other"
    linked.mkdir()
    (linked / "black-box").symlink_to(folder)
    with pytest.raises(NoBox, match="cannot be read"):
        traces(linked, 1000)


def test_plots_and_boards_are_made_of_traces_up_to_their_damage(tmp_path: Path) -> None:
    folder = tmp_path / "black-box"
    folder.mkdir()
    whole = write(folder / "frozen-1.trace.gz", story("Xid 95", 30.0)).read_bytes()
    (folder / "frozen-2.trace.gz").write_bytes(whole[: len(whole) // 2])
    files, _ = traces(tmp_path, 1 << 20)
    series = series_of(files, tmp_path)
    assert {"Temperature, °C", "Power, W", "SM clock, MHz"} <= series.lines.keys()
    assert len(series.gpus) == 4
    (unread,) = series.unread
    assert unread.startswith("frozen-2.trace.gz, line ")
    assert {board.serial for board in of_box(series.gpus)} == {gpu.serial for gpu in series.gpus.values()}


def test_what_one_source_lacks_of_a_board_another_has() -> None:
    (board,) = together(of_smi(SMI.replace(SERIAL, "N/A")), of_smi(SMI.replace("692-2G520-0200-000", "1")))
    assert (board.slot, board.serial, board.part) == (SLOT, SERIAL, "692-2G520-0200-000")


@pytest.mark.parametrize(
    "text", ["", "No devices were found\n", "GPU 00000000:4E:00.0\n" * 3, "GPU \x00\n : :\n", SMI[:300]]
)
def test_whatever_nvidia_smi_prints_is_read(text: str) -> None:
    assert {board.slot for board in of_smi(text)} <= {SLOT}
