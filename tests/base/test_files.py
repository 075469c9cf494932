"""A file is replaced as a whole, or not at all; what is no file is not waited for, and a lock is its holder's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuwarden.base.files import lock, read_regular, replace_file


@pytest.mark.parametrize("synced", [False, True])
def test_it_has_the_new_content_and_its_mode_and_nothing_is_left_beside_it(tmp_path: Path, *, synced: bool) -> None:
    path = tmp_path / "verdict"
    path.write_text("old")
    replace_file(path, "neü \udcff", mode=0o604, synced=synced)
    assert path.read_bytes() == "neü \\udcff".encode()
    assert (path.stat().st_mode & 0o777, list(tmp_path.iterdir())) == (0o604, [path])


def test_what_lies_in_the_place_of_the_new_file_is_not_written_to(tmp_path: Path) -> None:
    """A link that another user planted, or a file that another process has open."""
    path, victim, beside = tmp_path / "verdict", tmp_path / "victim", tmp_path / ".verdict.new"
    victim.write_text("untouched")
    for plant in (beside.symlink_to, beside.hardlink_to):
        plant(victim)
        replace_file(path, b"new", mode=0o600)
        assert (path.read_text(), victim.read_text()) == ("new", "untouched")


def test_after_an_error_the_old_content_stays_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "verdict"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, "new", mode=0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "nowhere/verdict", "new", mode=0o600)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_regular_file_is_refused_at_once_and_leaves_no_descriptor_open(tmp_path: Path, make: object) -> None:
    """A container engine makes a folder where a secret that is to be mounted does not exist; it is read for each connection."""
    path = tmp_path / "token"
    assert callable(make)
    make(path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with pytest.raises(OSError, match=r"Is a directory|not a regular file"):
            read_regular(path, 100)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_link_is_followed_only_where_it_may_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    link = tmp_path / "link"
    link.symlink_to("file")
    assert read_regular(link, 4) == b"0123"
    with pytest.raises(OSError, match="symbolic link"):
        read_regular(link, 4, follow=False)


def test_a_lock_has_one_holder_and_is_waited_for_as_long_as_one_says(tmp_path: Path) -> None:
    with lock(tmp_path / "lock") as first:
        assert first is not None
        with lock(tmp_path / "lock", 0.12) as second:
            assert second is None
    with lock(tmp_path / "lock") as third:
        assert third is not None
