"""Acknowledgements that jobs leave as files, by real users: nothing is accepted that another user could have put there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.acknowledgements.exits import ended
from gpuwarden_collectors.acknowledgements.files import AcknowledgementFiles
from gpuwarden_collectors.acknowledgements.message import Acknowledgement
from gpuwarden_collectors.base import CollectorError
from gpuwarden_job.acknowledge import acknowledge
from support.mounts import remount, tmpfs
from support.ranks import NOBODY, rank

PATIENCE = 60.0
ME = os.geteuid()
ROOT_ONLY = pytest.mark.needs("root")
NOTICE = "aws/spot:stop@1000"
CONTENT = {"notice": NOTICE, "rank": 3, "saved": True, "step": 1200}


# --- files


@pytest.fixture
def files(tmp_path: Path) -> AcknowledgementFiles:
    return AcknowledgementFiles(tmp_path)


def put(run_dir: Path, document: object, name: str = "3.json") -> Path:
    path = run_dir / "ack" / "71" / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_the_library_of_the_job_side_is_read(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", ME)
    assert acknowledge(tmp_path, "71", NOTICE, 3, saved=True, step=1200)
    assert acknowledge(tmp_path, "71", NOTICE, 0, saved=False, step=None, all_ranks=True)
    result = files.read({"71": ME, "72": ME})
    assert result.acknowledgements["71"] == (
        Acknowledgement(notice=NOTICE, rank=0, saved=False, step=None, all_ranks=True), Acknowledgement(notice=NOTICE, rank=3, saved=True, step=1200),
    )  # fmt: skip
    assert (result.acknowledgements["72"], result.refused) == ((), ())
    assert files.remove_all() == ""
    assert files.read({"71": ME}).acknowledgements == {"71": ()}
    assert files.remove_all() == ""


def test_without_a_folder_nothing_is_reported(files: AcknowledgementFiles) -> None:
    assert files.read({"71": ME}).acknowledgements == {}
    assert files.read({"71": ME}).refused == ()
    assert files.remove_all() == ""


def test_a_folder_that_is_there_already_keeps_what_is_in_it(tmp_path: Path, files: AcknowledgementFiles) -> None:
    for _ in range(2):
        files.make("71", ME)
        put(tmp_path, CONTENT)
    assert len(files.read({"71": ME}).acknowledgements["71"]) == 1


@pytest.mark.slow
def test_a_folder_with_more_files_than_are_read_at_once_is_removed(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", ME)
    for number in range(10_000):
        (tmp_path / "ack/71" / f"left{number}").touch()
    assert files.remove_all() == ""
    assert list((tmp_path / "ack").iterdir()) == []


def test_what_an_earlier_daemon_left_is_removed(tmp_path: Path, files: AcknowledgementFiles) -> None:
    for job in ("70", "71", "72"):
        files.make(job, ME)
    put(tmp_path, CONTENT)
    assert files.remove_all() == ""
    assert list((tmp_path / "ack").iterdir()) == []


@pytest.mark.parametrize("job", ["", ".", "..", "../x", "a/b", ".hidden", "x" * 101, "a\0b", "a\n", "-"])
def test_a_name_that_is_none_for_a_folder_is_refused(tmp_path: Path, files: AcknowledgementFiles, job: str) -> None:
    with pytest.raises(CollectorError, match="name of a folder"):
        files.make(job, ME)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 4000, "not JSON"),
        ("x" * 4097, "4096 bytes"),
        ("[1]", "not a JSON object"),
        ("null", "not a JSON object"),
        (json.dumps({**CONTENT, "rank": 4}), "it is for rank 4"),
        (json.dumps({**CONTENT, "rank": True}), '"rank"'),
        (json.dumps({**CONTENT, "saved": 1}), '"saved"'),
        (json.dumps({**CONTENT, "step": float("nan")}), '"step"'),
        (json.dumps({**CONTENT, "step": 10**300}), '"step"'),
        (json.dumps({**CONTENT, "notice": ["x"]}), '"notice"'),
        (json.dumps({**CONTENT, "all_ranks": 1}), '"all_ranks"'),
    ],
)
def test_a_file_that_is_not_an_acknowledgement_is_refused(
    tmp_path: Path, files: AcknowledgementFiles, text: str, message: str
) -> None:
    files.make("71", ME)
    put(tmp_path, text)
    result = files.read({"71": ME})
    assert result.acknowledgements["71"] == ()
    assert result.refused[0].startswith("ack/71/3.json: ")
    assert message in result.refused[0]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300) | st.text().map(str.encode))
def test_whatever_is_in_a_file_the_others_are_read(tmp_path: Path, files: AcknowledgementFiles, content: bytes) -> None:
    files.make("71", ME)
    put(tmp_path, CONTENT)
    (tmp_path / "ack/71/4.json").write_bytes(content)
    assert Acknowledgement(**CONTENT) in files.read({"71": ME}).acknowledgements["71"]  # type: ignore[arg-type]  # the values are of those types


@pytest.mark.parametrize(
    ("more", "holds_for_all"), [({}, False), ({"all_ranks": False}, False), ({"all_ranks": True}, True)]
)
def test_a_file_holds_for_its_own_rank_unless_it_declares_all_ranks(
    tmp_path: Path, files: AcknowledgementFiles, more: dict[str, bool], holds_for_all: bool
) -> None:
    """Clients of before, and shell scripts, know nothing of it."""
    files.make("71", ME)
    put(tmp_path, {**CONTENT, **more})
    assert [acknowledgement.all_ranks for acknowledgement in files.read({"71": ME}).acknowledgements["71"]] == [
        holds_for_all
    ]


def test_names_that_are_no_rank_are_passed_over(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", ME)
    for name in ("03.json", "3.JSON", ".3.812", "3", "-3.json", "3.json~", "1234567.json", "٣.json"):
        put(tmp_path, CONTENT, name)
    result = files.read({"71": ME})
    assert (result.acknowledgements["71"], result.refused) == ((), ())


def test_links_pipes_and_folders_are_not_read(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", ME)
    outside = tmp_path / "secret"
    outside.write_text(json.dumps({**CONTENT, "rank": 0}))
    folder = tmp_path / "ack/71"
    (folder / "0.json").symlink_to(outside)
    (folder / "1.json").hardlink_to(outside)
    os.mkfifo(folder / "2.json")  # nobody writes: a reader would wait for ever
    put(tmp_path, CONTENT)
    (folder / "4.json").mkdir()
    (folder / "5.json").symlink_to(folder / "5.json")
    result = files.read({"71": ME})
    assert [acknowledgement.rank for acknowledgement in result.acknowledgements["71"]] == [3]
    assert len(result.refused) == 5
    assert files.remove_all() == ""
    assert outside.exists()


@pytest.mark.slow
def test_refusals_are_bounded_and_many_files_of_one_job_hide_nothing_of_another(
    tmp_path: Path, files: AcknowledgementFiles
) -> None:
    files.make("71", ME)
    files.make("72", ME)
    for number in range(2000):
        put(tmp_path, "{", f"{number}.json")
    (tmp_path / "ack/72/3.json").write_text(json.dumps(CONTENT))
    result = files.read({"71": ME, "72": ME})
    assert len(result.refused) == 16
    assert len(result.acknowledgements["72"]) == 1
    assert files.remove_all() == ""


def test_a_nested_folder_of_a_user_is_left_and_reported(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", ME)
    (tmp_path / "ack/71/deep/deeper").mkdir(parents=True)
    assert "ack/71 is left: Directory not empty" in files.remove_all()


@ROOT_ONLY
def test_a_folder_is_its_user_s_alone_and_the_one_above_nobody_s(tmp_path: Path, files: AcknowledgementFiles) -> None:
    previous = os.umask(0o077)
    try:
        files.make("71", NOBODY)
    finally:
        os.umask(previous)
    about, above = (tmp_path / "ack/71").stat(), (tmp_path / "ack").stat()
    assert (about.st_uid, about.st_mode & 0o7777) == (NOBODY, 0o700)
    assert (above.st_uid, above.st_mode & 0o7777) == (0, 0o755)


@ROOT_ONLY
def test_what_another_user_put_there_is_not_believed(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", NOBODY)
    path = put(tmp_path, CONTENT)  # root's
    assert files.read({"71": NOBODY}).acknowledgements["71"] == ()
    os.chown(path, NOBODY, -1)
    assert len(files.read({"71": NOBODY}).acknowledgements["71"]) == 1
    assert files.read({"71": 1001}).refused == ("ack/71: it is not user 1001's",)


@ROOT_ONLY
def test_nobody_takes_over_the_folder_of_another_s_job(files: AcknowledgementFiles) -> None:
    files.make("71", NOBODY)
    with pytest.raises(CollectorError, match=f"user {NOBODY} has a job of the same name"):
        files.make("71", 1001)
    files.make("71", NOBODY)


def test_a_link_in_place_of_a_folder_is_not_followed(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("70", ME)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "3.json").write_text(json.dumps(CONTENT))
    (tmp_path / "ack/71").symlink_to(outside)
    with pytest.raises(CollectorError, match="ack/71"):
        files.make("71", ME)
    assert files.read({"71": ME}).acknowledgements["71"] == ()
    assert "is left" in files.remove_all()
    assert (outside / "3.json").exists()


@pytest.mark.disposable
def test_a_run_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "run", "1m") as run_dir:
        remount(run_dir, "ro")
        with pytest.raises(CollectorError, match="Read-only file system; check the run directory"):
            AcknowledgementFiles(run_dir).make("71", ME)


# --- exits


def test_only_who_has_ended_for_sure_has_ended(tmp_path: Path) -> None:
    with rank() as alive, rank() as zombie, rank() as gone:
        processes = [(process.pid, process.started) for process in (alive, zombie, gone)]
        zombie.process.kill()
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
        gone.process.kill()
        gone.process.wait()
        assert ended(processes) == set(processes[1:])
        replaced = alive.pid, alive.started - 1
        assert ended([replaced]) == {replaced}
        assert ended(processes[:2], proc=tmp_path) == set()  # hidden, and both still have their number


def test_a_process_whose_first_thread_has_ended_has_not() -> None:
    script = "import ctypes, threading, time; t = threading.Thread(target=time.sleep, args=(100,)); t.start()\n"
    script += "print('ready', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        stat = Path(f"/proc/{process.pid}/stat")
        while stat.read_text().rpartition(") ")[2][0] != "Z":
            assert process.poll() is None
        started = int(stat.read_text().rpartition(") ")[2].split()[19])
        assert ended([(process.pid, started)]) == set()
        process.kill()
