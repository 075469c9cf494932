"""What keeps tests of one node apart, and who cannot keep a test away."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuwarden.base.paths import RUN_DIR
from gpuwarden.cli.sources import filed_run_dir
from gpuwarden.features.active_test.tester import lock
from gpuwarden.features.active_test.tester.lock import NAME, Held, node_lock
from support.commands import PATIENCE

PROC = Path("/proc")
ROOT = pytest.mark.needs("root")
TAKEN = "name = socket.socket(socket.AF_UNIX); name.bind(chr(0) + sys.argv[1]); name.listen()"
TEST = """
import sys
from pathlib import Path
from gpuwarden.features.active_test.tester import lock
lock.NODE = sys.argv[1]
with lock.node_lock(Path(sys.argv[2]), Path(sys.argv[2]), Path("/proc")) as stranger:
    print(stranger)
"""


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of this test's own host: hosts of tests are none of each other's."""
    name = f"gpuwarden-test{tmp_path}"[:107]
    monkeypatch.setattr(lock, "NODE", name)
    return name


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    folder = tmp_path / "configured"
    folder.mkdir()
    return folder


@contextmanager
def name_taken(node: str, locked: Path | None = None, before: tuple[str, ...] = ()) -> Iterator[int]:
    """Start a process that has the name and the lock of a file until the end of the block. Gives its number."""
    held = "" if locked is None else f"file = open({str(locked)!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX); "
    script = f"import fcntl, socket, sys; {held}{TAKEN}; print(1, flush=True); sys.stdin.read()"
    argv = [*before, sys.executable, "-S", "-c", script, node]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline()
        yield stranger.pid
        stranger.communicate(timeout=PATIENCE)


def test_a_lock_file_of_the_same_name_in_any_folder_makes_no_test_of_who_has_the_name(
    node: str, own: Path, configured: Path, tmp_path: Path
) -> None:
    with name_taken(node, tmp_path / NAME) as pid, node_lock(own, configured, PROC) as stranger:
        assert stranger.startswith(f"process {pid} (")
        assert f"without the lock of {own} or {configured}, and was ignored" in stranger


@ROOT
def test_a_process_whose_files_are_not_shown_is_no_test_for_holding_some_lock(
    node: str, own: Path, tmp_path: Path
) -> None:
    """The gate's service may not see the open files of a process with more capabilities."""
    fewer = ["setpriv", "--bounding-set=-sys_ptrace", sys.executable, "-c", TEST, node, str(own)]
    with name_taken(node, tmp_path / "any.lock") as pid:
        done = subprocess.run(fewer, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"process {pid} (")


@ROOT
def test_a_process_of_another_pid_namespace_keeps_no_test_away_by_the_name(node: str, own: Path) -> None:
    """The process has no number for a test in a namespace of its own."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", TEST, node, str(own)]
    with name_taken(node):
        done = subprocess.run(inside, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"a process of uid {os.geteuid()} in another PID namespace has taken the name")


@pytest.mark.parametrize("first", ["configured", "another"])
def test_a_test_with_another_run_directory_and_one_with_the_configured_are_kept_apart(
    own: Path, configured: Path, first: str
) -> None:
    run_dirs = [configured, own] if first == "configured" else [own, configured]
    with (
        node_lock(run_dirs[0], configured, PROC),
        pytest.raises(Held) as held,
        node_lock(run_dirs[1], configured, PROC),
    ):
        pass
    assert held.value.holder.pid == os.getpid()


def test_tests_with_the_configured_run_directory_are_kept_apart_without_the_name(
    own: Path, configured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests in two network namespaces do not share the name."""
    with node_lock(own, configured, PROC):
        monkeypatch.setattr(lock, "NODE", f"{lock.NODE[:100]}-other")
        with pytest.raises(Held), node_lock(configured, configured, PROC):
            pass


def test_the_same_run_directory_by_another_name_is_locked_once(own: Path, configured: Path) -> None:
    own.symlink_to(configured)
    with node_lock(own, configured, PROC) as stranger:
        assert stranger == ""


def test_a_run_directory_that_does_not_exist_is_not_made_for_a_test_with_another(own: Path, tmp_path: Path) -> None:
    with node_lock(own, tmp_path / "absent", PROC):
        assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("locked", [True, False], ids=["held", "free"])
def test_a_configured_lock_that_cannot_be_opened_counts_if_the_kernel_shows_its_holder(own: Path, locked: bool) -> None:
    """Files of other users cannot be opened. Run directories are on a tmpfs, which has one device."""
    with TemporaryDirectory(dir="/dev/shm") as folder, (Path(folder) / NAME).open("w") as file:
        configured = Path(folder)
        os.link(configured / NAME, configured / "another name")
        if locked:
            fcntl.flock(file, fcntl.LOCK_EX)
            with pytest.raises(Held) as held, node_lock(own, configured, PROC):
                pass
            assert held.value.holder.pid == os.getpid()
        else:
            with node_lock(own, configured, PROC) as stranger:
                assert stranger == ""


def test_a_name_that_nobody_listens_on_keeps_no_test_away(node: str, own: Path) -> None:
    with socket.socket(socket.AF_UNIX) as name:
        name.bind(f"\0{node}")
        with node_lock(own, own, PROC) as stranger:
            assert stranger.startswith("a process has taken the name of the socket")


def test_the_configured_run_directory_is_that_of_the_files_whatever_the_command_line_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "gpuwarden.toml"
    file.write_text('[run]\ndir = "/run/named"\n')
    monkeypatch.setenv("GPUWARDEN_RUN_DIR", "/run/of-the-environment")
    assert filed_run_dir(Namespace(config=file, run_dir="/run/of-the-command-line")) == Path("/run/named")
    file.write_text("")
    assert filed_run_dir(Namespace(config=file, run_dir=None)) == RUN_DIR
