"""What jobs leave to say that they saved, by real users: nothing is believed that another could have put there."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.acknowledgements.directory import CheckpointDirectories, DirectoryLook, Look, Watched
from gpuwarden_collectors.acknowledgements.directory_child import MARKERS, OTHERS
from gpuwarden_collectors.acknowledgements.exits import ended
from gpuwarden_collectors.acknowledgements.files import AcknowledgementFiles
from gpuwarden_collectors.acknowledgements.message import Acknowledgement
from gpuwarden_collectors.base import CollectorError
from gpuwarden_job.acknowledge import acknowledge
from support.hung_mounts import hung_mount
from support.mounts import remount, tmpfs
from support.ranks import NOBODY, Rank, rank

PATIENCE = 60.0
ME = os.geteuid()
ROOT_ONLY = pytest.mark.skipif(ME != 0, reason="needs root, to become other users")
NOTICE = "aws/spot:stop@1000"
SAID = {"notice": NOTICE, "rank": 3, "saved": True, "step": 1200}


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
    look = files.read({"71": ME, "72": ME})
    assert look.acknowledgements["71"] == (
        Acknowledgement(notice=NOTICE, rank=0, saved=False, step=None, all_ranks=True), Acknowledgement(notice=NOTICE, rank=3, saved=True, step=1200),
    )  # fmt: skip
    assert (look.acknowledgements["72"], look.refused) == ((), ())
    assert files.remove("71") == ""
    assert files.read({"71": ME}).acknowledgements == {"71": ()}
    assert files.remove("71") == ""


def test_before_the_first_folder_nothing_is_said(files: AcknowledgementFiles) -> None:
    assert files.read({"71": ME}).acknowledgements == {}
    assert files.read({"71": ME}).refused == ()
    assert files.remove_others(frozenset()) == ""


def test_a_folder_that_is_there_already_keeps_what_is_in_it(tmp_path: Path, files: AcknowledgementFiles) -> None:
    for _ in range(2):
        files.make("71", ME)
        put(tmp_path, SAID)
    assert len(files.read({"71": ME}).acknowledgements["71"]) == 1


def test_a_folder_with_more_files_than_are_read_at_once_is_removed(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", ME)
    for number in range(10_000):
        (tmp_path / "ack/71" / f"left{number}").touch()
    assert files.remove("71") == ""
    assert list((tmp_path / "ack").iterdir()) == []


def test_what_an_earlier_daemon_left_is_removed(tmp_path: Path, files: AcknowledgementFiles) -> None:
    for job in ("70", "71", "72"):
        files.make(job, ME)
    put(tmp_path, SAID)
    assert files.remove_others(frozenset({"72"})) == ""
    assert [path.name for path in (tmp_path / "ack").iterdir()] == ["72"]


@pytest.mark.parametrize("job", ["", ".", "..", "../x", "a/b", ".hidden", "x" * 101, "a\0b", "a\n", "-"])
def test_a_name_that_is_none_for_a_folder_is_refused(tmp_path: Path, files: AcknowledgementFiles, job: str) -> None:
    with pytest.raises(CollectorError, match="name of a folder"):
        files.make(job, ME)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 4000, "no JSON"),
        ("x" * 4097, "4096 bytes"),
        ("[1]", "no JSON object"),
        ("null", "no JSON object"),
        (json.dumps({**SAID, "rank": 4}), "it is for rank 4"),
        (json.dumps({**SAID, "rank": True}), '"rank"'),
        (json.dumps({**SAID, "saved": 1}), '"saved"'),
        (json.dumps({**SAID, "step": float("nan")}), '"step"'),
        (json.dumps({**SAID, "step": 10**300}), '"step"'),
        (json.dumps({**SAID, "notice": ["x"]}), '"notice"'),
        (json.dumps({**SAID, "all_ranks": 1}), '"all_ranks"'),
    ],
)
def test_a_file_that_says_nothing_of_the_kind_is_refused(
    tmp_path: Path, files: AcknowledgementFiles, text: str, told: str
) -> None:
    files.make("71", ME)
    put(tmp_path, text)
    look = files.read({"71": ME})
    assert look.acknowledgements["71"] == ()
    assert look.refused[0].startswith("ack/71/3.json: ")
    assert told in look.refused[0]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=300) | st.text().map(str.encode))
def test_whatever_is_in_a_file_the_others_are_read(tmp_path: Path, files: AcknowledgementFiles, content: bytes) -> None:
    files.make("71", ME)
    put(tmp_path, SAID)
    (tmp_path / "ack/71/4.json").write_bytes(content)
    assert Acknowledgement(**SAID) in files.read({"71": ME}).acknowledgements["71"]  # type: ignore[arg-type]  # the values are of those types


@pytest.mark.parametrize(
    ("more", "holds_for_all"), [({}, False), ({"all_ranks": False}, False), ({"all_ranks": True}, True)]
)
def test_a_file_holds_for_its_own_rank_unless_it_says_that_it_holds_for_all(
    tmp_path: Path, files: AcknowledgementFiles, more: dict[str, bool], holds_for_all: bool
) -> None:
    """Clients of before, and shell scripts, know nothing of it."""
    files.make("71", ME)
    put(tmp_path, {**SAID, **more})
    assert [said.all_ranks for said in files.read({"71": ME}).acknowledgements["71"]] == [holds_for_all]


def test_names_that_are_no_rank_are_passed_over(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", ME)
    for name in ("03.json", "3.JSON", ".3.812", "3", "-3.json", "3.json~", "1234567.json", "٣.json"):
        put(tmp_path, SAID, name)
    look = files.read({"71": ME})
    assert (look.acknowledgements["71"], look.refused) == ((), ())


def test_links_pipes_and_folders_are_not_read(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", ME)
    outside = tmp_path / "secret"
    outside.write_text(json.dumps({**SAID, "rank": 0}))
    folder = tmp_path / "ack/71"
    (folder / "0.json").symlink_to(outside)
    (folder / "1.json").hardlink_to(outside)
    os.mkfifo(folder / "2.json")  # nobody writes: whoever waits for that waits for ever
    put(tmp_path, SAID)
    (folder / "4.json").mkdir()
    (folder / "5.json").symlink_to(folder / "5.json")
    look = files.read({"71": ME})
    assert [said.rank for said in look.acknowledgements["71"]] == [3]
    assert len(look.refused) == 5
    assert files.remove("71") == ""
    assert outside.exists()


def test_refusals_are_bounded_and_a_crowd_of_files_hides_nothing_of_another_job(
    tmp_path: Path, files: AcknowledgementFiles
) -> None:
    files.make("71", ME)
    files.make("72", ME)
    for number in range(2000):
        put(tmp_path, "{", f"{number}.json")
    (tmp_path / "ack/72/3.json").write_text(json.dumps(SAID))
    look = files.read({"71": ME, "72": ME})
    assert len(look.refused) == 16
    assert len(look.acknowledgements["72"]) == 1
    assert files.remove("71") == ""


def test_what_a_user_nested_is_left_and_said(tmp_path: Path, files: AcknowledgementFiles) -> None:
    files.make("71", ME)
    (tmp_path / "ack/71/deep/deeper").mkdir(parents=True)
    assert "ack/71 is left: Directory not empty" in files.remove("71")


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
    path = put(tmp_path, SAID)  # root's
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
    (outside / "3.json").write_text(json.dumps(SAID))
    (tmp_path / "ack/71").symlink_to(outside)
    with pytest.raises(CollectorError, match="ack/71"):
        files.make("71", ME)
    assert files.read({"71": ME}).acknowledgements["71"] == ()
    assert "is left" in files.remove("71")
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
        processes = [(one.pid, one.started) for one in (alive, zombie, gone)]
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


# --- directories


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[Rank]:
    """A process of the job, of another user where that can be."""
    tmp_path.chmod(0o755)
    with rank(uid=NOBODY if ME == 0 else None) as one:
        yield one


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """The user's, and closed to everybody else."""
    folder = tmp_path / "checkpoints"
    folder.mkdir(mode=0o700)
    (folder / "step-1").mkdir()
    (folder / "step-1/shard-0.pt").write_text("old")
    give(folder)
    return folder


def give(folder: Path, written: float = 1_000.0) -> None:
    """All of it to the user, written at that time."""
    for path in (folder, *folder.rglob("*")):
        if ME == 0:
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        os.utime(path, (written, written), follow_symlinks=False)


def watched(by: Rank, directory: Path | str, since: float = 2_000.0) -> Watched:
    uid = Path(f"/proc/{by.pid}").stat().st_uid
    return Watched(
        job="slurm/71", pid=by.pid, started=by.started, uid=uid, directory=str(directory), since=since
    )  # fmt: skip


def looking(**options: Any) -> CheckpointDirectories:
    """Patient with a slow machine, and content with any two looks that show the same."""
    return CheckpointDirectories(**{"deadline": PATIENCE, "settled": 0.0, **options})


async def test_a_checkpoint_is_saved_once_it_is_newer_and_stays_as_it_is(saver: Rank, checkpoints: Path) -> None:
    directories, what = looking(), watched(saver, checkpoints)
    assert [(await directories.look(what)).look for _ in range(2)] == [Look.NOTHING] * 2
    (checkpoints / "step-2").mkdir()
    (checkpoints / "step-2/shard-0.pt").write_text("new")
    give(checkpoints / "step-2", 3_000.0)
    first = await directories.look(what)
    assert (first.look, first.newest) == (Look.WRITING, 3_000.0)
    (checkpoints / "step-2/shard-1.pt").write_text("more")
    give(checkpoints / "step-2", 3_001.0)
    assert (await directories.look(what)).look is Look.WRITING
    assert await directories.look(what) == DirectoryLook(look=Look.SAVED, newest=3_001.0)
    directories.forget("slurm/71")
    assert (await directories.look(what)).look is Look.WRITING


async def test_what_has_not_been_still_for_long_enough_is_still_being_written(saver: Rank, checkpoints: Path) -> None:
    directories, what = looking(settled=3600.0), watched(saver, checkpoints, since=500.0)
    looks = [await directories.look(what) for _ in range(2)]
    assert [one.look for one in looks] == [Look.WRITING, Look.WRITING]
    assert "less than 3600" in looks[1].text


async def test_a_marker_of_a_save_in_progress_counts_until_it_is_old(saver: Rank, checkpoints: Path) -> None:
    directories, what = looking(), watched(saver, checkpoints, since=500.0)
    marker = checkpoints / "step-1/checkpoint-is-incomplete.txt"
    marker.touch()
    give(checkpoints)
    looks = [await directories.look(what) for _ in range(3)]
    assert {one.look for one in looks} == {Look.WRITING}
    assert "checkpoint-is-incomplete.txt" in looks[0].text
    os.utime(marker, (0.0, 0.0))
    os.utime(checkpoints / "step-1/shard-0.pt", (2_000.0, 2_000.0))
    what = replace(what, since=1_500.0)
    assert [(await directories.look(what)).look for _ in range(2)] == [Look.WRITING, Look.SAVED]


async def test_logs_links_and_empty_files_are_no_checkpoint(saver: Rank, checkpoints: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "new.pt").write_text("new")
    give(outside, 3_000.0)
    (checkpoints / "link").symlink_to(outside)
    for name in ("train.log", "events.out.tfevents.17", "empty.pt"):
        (checkpoints / name).write_text("" if "empty" in name else "step 1\n")
    give(checkpoints, 3_000.0)
    give(checkpoints / "step-1")
    assert (await looking().look(watched(saver, checkpoints))).look is Look.NOTHING


@pytest.mark.parametrize(
    "name",
    ["checkpoint-is-incomplete.txt", "7.orbax-checkpoint-tmp-17", ".saving-00f3", "tmp-checkpoint-500", "model.pt.tmp",
     "_tmp.x", "a.tmp.123", "last.ckpt.part", ".tmp_model"],
)  # fmt: skip
def test_these_names_say_half_written(name: str) -> None:
    assert MARKERS.search(name)


@pytest.mark.parametrize("name", ["model.pt", "template.pt", "step-2", "a.tmpl", "latest", "global_step5", "logits.pt"])
def test_these_names_do_not(name: str) -> None:
    assert not MARKERS.search(name)
    assert not OTHERS.search(name)


@ROOT_ONLY
async def test_the_look_has_the_user_s_rights_and_none_besides(saver: Rank, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)  # root's
    look = await looking().look(watched(saver, closed))
    assert (look.look, "Permission denied" in look.text) == (Look.UNKNOWN, True)


@ROOT_ONLY
async def test_a_process_of_another_user_lends_its_eyes_to_nobody(saver: Rank, checkpoints: Path) -> None:
    look = await looking().look(replace(watched(saver, checkpoints), uid=1001))
    assert (look.look, "not user 1001's" in look.text) == (Look.UNKNOWN, True)


@pytest.mark.parametrize("directory", ["", "relative", "~/x", "/a\0b", "/" + "x" * 5000])
async def test_what_is_no_absolute_directory_is_not_looked_at(saver: Rank, directory: str) -> None:
    assert (await looking().look(watched(saver, directory))).look is Look.UNKNOWN


async def test_a_directory_that_is_not_there_and_a_process_that_is_gone_are_told(
    saver: Rank, checkpoints: Path
) -> None:
    directories, what = looking(), watched(saver, checkpoints)
    missing = await directories.look(replace(what, directory=f"{checkpoints}/none"))
    assert "No such file" in missing.text
    other = await directories.look(replace(what, started=what.started - 1))
    assert "has ended" in other.text
    saver.process.kill()
    saver.process.wait()
    gone = await directories.look(what)
    assert [one.look for one in (missing, other, gone)] == [Look.UNKNOWN] * 3


@ROOT_ONLY
async def test_a_container_s_directory_is_looked_at_where_the_container_sees_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    inside = tmp_path / "inside"
    inside.mkdir()
    script = (
        f'mount -t tmpfs -o mode=755 none {inside}; echo new > {inside}/a.pt; chown -R {NOBODY} {inside}; exec "$@"'
    )
    with rank(uid=NOBODY, prefix=("unshare", "--mount", "sh", "-c", script, "sh")) as one:
        look = await looking().look(watched(replace(one, pid=one.process.pid), inside))
        assert look.look is Look.WRITING, look.text
        assert list(inside.iterdir()) == []


@pytest.mark.disposable
@pytest.mark.parametrize("killable", [True, False])
async def test_a_dead_file_server_hangs_one_child_of_one_job(
    saver: Rank, checkpoints: Path, tmp_path: Path, killable: bool
) -> None:
    directories = looking(deadline=1.0)
    with hung_mount(tmp_path / "hung", killable=killable, user=NOBODY) as hung:
        what = watched(saver, hung)
        async with asyncio.timeout(PATIENCE):
            first = await directories.look(what)
            second = await directories.look(what)
            assert first.look is second.look is Look.UNKNOWN
            assert "has not ended within 1 s" in first.text
            assert ("the last look" in second.text) is not killable
            patient = looking()
            other = await patient.look(replace(watched(saver, checkpoints, since=500.0), job="slurm/72"))
            assert other.look is Look.WRITING
    async with asyncio.timeout(PATIENCE):  # the connection is cut, and what hung comes back
        while "the last look" in (await directories.look(what)).text:
            await asyncio.sleep(0.05)


async def test_a_child_that_is_stopped_is_given_up(saver: Rank, checkpoints: Path, tmp_path: Path) -> None:
    """Its user may do that to it."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nkill -STOP $$\nexec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    look = await looking(python=str(interpreter), deadline=0.5).look(watched(saver, checkpoints))
    assert (look.look, "0.5 s" in look.text) == (Look.UNKNOWN, True)


@pytest.mark.parametrize(
    "answer", ["", "[]", "{}", "null", "[" * 3000, '{"trouble":"","newest":NaN,"imprint":"","marker":""}',
               '{"trouble":"","newest":true,"imprint":"","marker":""}', '{"trouble":"","newest":1,"imprint":1,"marker":""}'],
)  # fmt: skip
async def test_an_answer_that_is_none_is_not_believed(
    saver: Rank, checkpoints: Path, tmp_path: Path, answer: str
) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    interpreter.chmod(0o755)
    look = await looking(python=str(interpreter)).look(watched(saver, checkpoints))
    assert (look.look, look.text) == (Look.UNKNOWN, "the look gave no answer that can be read")
