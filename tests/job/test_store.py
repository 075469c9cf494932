"""A folder of checkpoints holds something to resume from, whatever became of its writer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from gpuwarden_job import CheckpointStore, NothingLoadable, Ranks, SaveFailed, Undecodable
from support.job_world import ended, start, together
from support.mounts import fill, remount, tmpfs

KILLER = """
import os, pathlib, shutil, signal, sys
from gpuwarden_job import CheckpointStore, Ranks

root, point, seen = sys.argv[1], 0, set()
begun, folder = root + "/begun", root + "/folder"
store = CheckpointStore(begun, ranks=Ranks(), keep_last=2)
for step in (1, 2):
    store.save([step, bytes(100_000)], step)

def killed_at(point):
    def count_calls(frame, event, function):
        nonlocal point
        if event == "c_call" and "posix" in (function.__module__, getattr(function.__self__, "__name__", "")) \
                or event == "c_call" and type(function.__self__).__module__ == "_io":
            point -= 1
            if point < 0:
                os.kill(os.getpid(), signal.SIGKILL)
    return count_calls

while True:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(begun, folder)
    store = CheckpointStore(folder, ranks=Ranks(), keep_last=2)
    child = os.fork()
    if child == 0:
        sys.setprofile(killed_at(point))
        store.save([3, bytes(100_000)], 3)
        sys.setprofile(None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    loaded = store.load_latest()
    assert loaded.state == [loaded.step, bytes(100_000)], loaded
    seen.add(loaded.step)
    store.save([4], 4)
    left = [path for path in pathlib.Path(folder).rglob(".*/**/rank-*")]
    assert not left, (point, left)
    assert [one.step for one in store.saved()] == [loaded.step, 4]
    if status == 0:
        break
    point += 1
print(point, *sorted(seen))
"""


def of(folder: Path, **options: Any) -> CheckpointStore:
    return CheckpointStore(folder, ranks=Ranks(), **options)


def newest(folder: Path) -> Any:
    loaded = of(folder).load_latest()
    return None if loaded is None else loaded.state


def memory_folder(tmp_path: Path) -> Path:
    """Return a folder in memory, where flushing costs nothing, if this host has one."""
    shared = Path("/dev/shm")
    return shared / tmp_path.name if os.access(shared, os.W_OK) else tmp_path / "saved"


@pytest.mark.slow
def test_a_writer_killed_at_any_of_its_system_calls_leaves_the_old_or_the_new_checkpoint_whole(tmp_path: Path) -> None:
    """Really killed, at each call in turn; what the dead left behind is gone after the next save."""
    folder = memory_folder(tmp_path)
    try:
        code, output = ended(
            start("-c", KILLER, folder, run_dir=tmp_path), within=240.0
        )  # 271 processes, one after the other
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert code == 0, output
    points, *steps = output.split()
    assert int(points) > 50
    assert steps == ["2", "3"]


def test_nothing_saved_is_none_and_not_an_error(tmp_path: Path) -> None:
    assert of(tmp_path / "new").load_latest() is None
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("harm", ["flip", "truncate", "remove", "manifest", "manifest_value"])
def test_a_broken_checkpoint_is_passed_over(tmp_path: Path, harm: str) -> None:
    store = of(tmp_path)
    store.save("old", 1)
    store.save("new", 2)
    folder = tmp_path / (tmp_path / "latest").read_text().strip()
    state, manifest = folder / "rank-00000.state", folder / "manifest.json"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    if harm == "flip":
        state.write_bytes(content)
    elif harm == "truncate":
        state.write_bytes(content[:-1])
    elif harm == "remove":
        state.unlink()
    elif harm == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:-5])
    else:
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "step": 3}))
    assert newest(tmp_path) == "old"


def test_where_all_checkpoints_are_broken_nothing_starts_from_scratch_unasked(tmp_path: Path) -> None:
    of(tmp_path).save("only", 1)
    next(tmp_path.glob("*/rank-*")).write_bytes(b"")
    with pytest.raises(NothingLoadable, match=r"none of the checkpoints .* is whole \(.*0 bytes.*move them away"):
        newest(tmp_path)


def test_where_only_rank_0_sees_no_checkpoint_nothing_starts_from_scratch(tmp_path: Path) -> None:
    """The shared folder is not mounted on its node."""
    of(tmp_path / "shared", keep_best="min").save("only", 1, metric=1.0)

    def loading(best: bool, ranks: Ranks) -> Any:
        store = CheckpointStore(tmp_path / ("shared" if ranks.rank else "not mounted"), ranks=ranks, keep_best="min")
        return store.load_best() if best else store.load_latest()

    for best in (False, True):
        with pytest.raises(NothingLoadable, match=r"rank 0 sees no checkpoint in .* is it mounted"):
            together(2, partial(loading, best))


def test_one_that_is_whole_and_not_understood_is_an_error_and_not_passed_over(tmp_path: Path) -> None:
    of(tmp_path).save("old", 1)
    of(tmp_path, dump=lambda _, file: file.write(b"another format")).save("new", 2)
    with pytest.raises(Undecodable, match="is whole and cannot be decoded"):
        newest(tmp_path)


def test_the_newest_is_what_was_saved_last_whatever_its_step(tmp_path: Path) -> None:
    """Somebody went back to step 500, changed something and trains on: that is what is resumed, and kept."""
    store = of(tmp_path, keep_last=2)
    for step in (1000, 2000, 3000, 500, 510):
        store.save(step, step)
    assert newest(tmp_path) == 510
    assert [checkpoint.step for checkpoint in store.saved()] == [500, 510]


@pytest.mark.parametrize(("mode", "best"), [("min", 0.1), ("max", 0.9)])
def test_the_best_is_kept_besides_the_last_and_what_is_no_number_is_never_best(
    tmp_path: Path, mode: str, best: float
) -> None:
    store = of(tmp_path, keep_last=2, keep_best=mode)
    for step, metric in enumerate([float("nan"), 0.1, 0.9, float("inf"), None, 0.5, float("-inf"), "x", float("nan")]):
        store.save(step, step, metric=metric)
    assert [checkpoint.metric for checkpoint in store.saved()] == [best, None, None]
    loaded = store.load_best()
    assert loaded is not None
    assert loaded.manifest.metric == best


def test_a_save_that_fails_raises_and_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    store = of(tmp_path)
    store.save("good", 1)
    with pytest.raises(SaveFailed, match=r"step 2 was not saved in .*lock"):
        store.save(threading.Lock(), 2)
    assert newest(tmp_path) == "good"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.disposable
def test_a_full_disk_and_a_read_only_one_cost_this_save_and_no_other(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "1m") as disk:
        store = of(disk)
        store.save("good", 1)
        with pytest.raises(SaveFailed, match="No space left on device"):
            store.save(os.urandom(2 << 20), 2)
        store.save("fits again", 3)
        remount(disk, "ro")
        with pytest.raises(SaveFailed, match="Read-only file system"):
            store.save("never", 4)
        assert newest(disk) == "fits again"


@pytest.mark.disposable
def test_a_disk_with_room_for_one_more_checkpoint_and_nothing_else_takes_each_next_one(tmp_path: Path) -> None:
    """The last page is wanted by `latest`, too, and only pruning makes room."""
    took = dict[int, list[bool]]()
    for size in range(64, 128, 4):
        with tmpfs(tmp_path / f"{size}", f"{size}k") as disk:
            store = of(disk, keep_last=1)
            took[size] = [saves(store, step) for step in range(4)]
            assert newest(disk) is not None
    assert all(all(later) for _, second, *later in took.values() if second), took


def saves(store: CheckpointStore, step: int) -> bool:
    try:
        store.save("x" * 30_000, step)
    except SaveFailed:
        return False
    return True


@pytest.mark.disposable
def test_what_a_killed_process_left_on_a_full_disk_makes_room_for_the_next_save(tmp_path: Path) -> None:
    def killed(_: object, file: IO[bytes]) -> None:
        file.write(bytes(500_000))
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    with tmpfs(tmp_path / "disk", "1m") as disk:
        of(disk).save("good", 1)
        if (child := os.fork()) == 0:
            of(disk, dump=killed).save("never", 2)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        fill(disk)
        of(disk).save("goes on", 3)
        assert newest(disk) == "goes on"


def test_beside_the_training_one_save_is_in_flight_and_another_is_skipped(tmp_path: Path) -> None:
    go = threading.Event()

    def slow(state: object, file: IO[bytes]) -> None:
        go.wait(60)
        file.write(json.dumps(state).encode())

    store = of(tmp_path, dump=slow, load=json.load)
    state = {"weights": [1, 2, 3]}
    assert store.save_async(state, 1)
    state["weights"][0] = 100  # the next optimizer step
    assert not store.save_async(state, 2)
    go.set()
    store.flush()
    assert [checkpoint.step for checkpoint in store.saved()] == [1]
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.state == {"weights": [1, 2, 3]}
    assert store.seconds is not None


def test_what_failed_beside_the_training_is_raised_at_the_next_call_and_not_lost(tmp_path: Path) -> None:
    store = of(tmp_path / "folder")
    (tmp_path / "folder").mkdir()
    assert store.save_async("x", 1, extra={"not": object()})
    with pytest.raises(SaveFailed, match="background save failed"):
        store.flush()
    assert store.save_async("y", 2)
    store.flush()
    assert newest(tmp_path / "folder") == "y"


def test_a_last_save_is_made_although_the_one_before_it_failed(tmp_path: Path) -> None:
    store = of(tmp_path)
    store.save_async("x", 1, extra={"not": object()})
    store.save("y", 2)
    assert newest(tmp_path) == "y"


def test_what_another_living_process_is_writing_is_left_alone(tmp_path: Path) -> None:
    """The earlier checkpoint is loaded meanwhile."""
    writer = start(
        "-c",
        "import sys; from gpuwarden_job import *\n"
        "CheckpointStore(sys.argv[1], ranks=Ranks(), dump=lambda s, f: (f.write(b'..'), print('in'), input()))"
        ".save(1, 1)",
        tmp_path, run_dir=tmp_path,
    )  # fmt: skip
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "in\n"
        of(tmp_path).save("mine", 2)
        assert len(list(tmp_path.glob(".saving-*"))) == 1
    finally:
        writer.kill()
        ended(writer)
    of(tmp_path).save("mine too", 3)
    assert list(tmp_path.glob(".saving-*")) == []
    assert newest(tmp_path) == "mine too"


def test_a_checkpoint_that_somebody_reads_is_not_pruned(tmp_path: Path) -> None:
    of(tmp_path).save("read for long", 1)
    read = []

    def slowly(folder: Path, _: object) -> str:
        store = of(tmp_path, keep_last=1)
        store.save("newer", 2)
        read.append((folder / "rank-00000.state").exists())
        return "done"

    of(tmp_path).load_latest(read=slowly)
    assert read == [True]
    of(tmp_path, keep_last=1).save("newest", 3)
    assert [checkpoint.step for checkpoint in of(tmp_path).saved()] == [3]


def test_a_shard_that_never_comes_is_not_waited_for_without_end_and_nothing_is_published(tmp_path: Path) -> None:
    """Half of the ranks died; the others' collective did not notice."""
    lonely = CheckpointStore(tmp_path, ranks=Ranks(0, 2, lambda value: value), sharded=True, patience=0.1)
    with pytest.raises(SaveFailed, match=r"rank 1 wrote nothing within 0.1 s. Is .* the same folder on all nodes"):
        lonely.save("x", 1)
    assert list(tmp_path.iterdir()) == []
