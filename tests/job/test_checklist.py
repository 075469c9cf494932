"""What a fault-tolerant training needs, row by row: periodic saves, retention, recovery, signals, clouds, schedulers.

Some rows are tested more closely beside this file; here each has one statement that holds.
"""

from __future__ import annotations

import os
import random
import re
import resource
import signal
import sys
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import gpuwarden_job
from gpuwarden_job import (
    Cadence,
    CheckpointGuard,
    CheckpointStore,
    Ranks,
    SaveFailed,
    StateMismatch,
    WorldChanged,
    capture,
    restore,
    share,
)
from support.job_world import EXAMPLES, JOB, Part, ended, give_notice, start, together, until

PEER = """
import sys, time
from gpuwarden_job import CheckpointGuard, PeerWatch
from support.job_world import socket_ranks

ranks = socket_ranks(sys.argv[1], int(sys.argv[2]), 2)
with CheckpointGuard(ranks=ranks) as guard, PeerWatch(guard, stall=float(sys.argv[3]), margin=1.0) as watch:
    for step in range(1_000_000):
        ranks.largest(step)  # the gradient exchange: where a rank hangs when its peer is gone
        watch.beat()
        if step == 10:
            print("training", flush=True)
        time.sleep(0.01)
"""

SUSPENDED = """
import time
from gpuwarden_job import CheckpointGuard, PeerWatch, Ranks

with CheckpointGuard(ranks=Ranks()) as guard, PeerWatch(guard, stall=3.0) as watch:
    for step in range(4):
        for _ in range(20):
            time.sleep(0.05)
        watch.beat()
        if step == 0:
            print("training", flush=True)
print("trained")
"""

COMPILES = """
import time
from gpuwarden_job import CheckpointGuard, PeerWatch, Ranks

with CheckpointGuard(ranks=Ranks()) as guard, PeerWatch(guard, stall=1.0) as watch:
    with watch.paused():
        print("evaluated", flush=True)
    time.sleep(3)
    print("compiled", flush=True)
    watch.beat()
    time.sleep(60)
"""

SLOW_SAVE = """
import sys, time
from pathlib import Path
from gpuwarden_job import durable
from support.job_world import Part, give_notice

folder, run_dir, readme = sys.argv[1:4]
flush = durable.flush
loop = open(readme).read().partition("```python")[2].partition("```")[0]
loop = loop.replace("/shared/checkpoints/my-run", folder).replace("steps=1000,", "steps=1,").replace("train(...)", "train(step)")
model, optimizer, scheduler = Part(1), Part(2), Part(3)
batch, steps = 1, 10**9

def slow(path):
    time.sleep(0.6)
    flush(path)

def train(step):
    if step == 1:  # the first periodic save is under way, and another one would take too long
        store.seconds = 1000.0
        give_notice(Path(run_dir))
        time.sleep(1.1)  # the guard reads the notice once a second
    return 1.0

durable.flush = slow
exec(loop)
"""

TRACED = """
import sys
from gpuwarden_job import CheckpointStore, Ranks

def profile(frame, event, function):
    name = getattr(function, "__name__", "")
    if event == "c_call" and name in ("fsync", "rename", "replace", "rmdir") and "posix" in repr(function.__self__):
        print(name, flush=True)

store = CheckpointStore(sys.argv[1], ranks=Ranks(), keep_last=1)
store.save(1, 1)
sys.setprofile(profile)
store.save(2, 2)
"""


def test_row_01_a_save_is_due_every_so_many_steps_or_seconds_on_all_ranks_at_once(tmp_path: Path) -> None:
    assert [step for step in range(10) if Cadence(steps=4, ranks=Ranks()).due(step)] == [4, 8]
    clocks = [0.0, 0.0]

    def run(ranks: Ranks) -> list[int]:
        cadence = Cadence(seconds=5, agree_every=2, ranks=ranks, clock=lambda: clocks[ranks.rank])
        due = []
        for step in range(1, 13):
            clocks[ranks.rank] += 1.0 if ranks.first else 100.0  # only the clock of rank 0 counts
            if cadence.due(step):
                due.append(step)
                cadence.done()
        return due

    assert together(2, run) == [[6, 12], [6, 12]]


def test_row_02_the_last_n_are_kept_and_nothing_is_pruned_for_one_that_failed(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, ranks=Ranks(), keep_last=2)
    for step in range(4):
        store.save(step, step)
    with pytest.raises(SaveFailed):
        store.save(lambda: None, 4)
    assert [checkpoint.step for checkpoint in store.saved()] == [2, 3]


def test_row_03_the_best_by_metric_is_kept_besides_them_and_a_nan_is_never_best(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, ranks=Ranks(), keep_last=1, keep_best="min")
    for step, loss in enumerate((0.5, 0.2, float("nan"), 0.9)):
        store.save(step, step, metric=loss)
    assert [(checkpoint.step, checkpoint.metric) for checkpoint in store.saved()] == [(1, 0.2), (3, 0.9)]


def test_row_04_a_save_beside_the_training_holds_the_state_of_its_step(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, ranks=Ranks())
    state: dict[str, Any] = {"step": 1, "weights": [0.0] * 1000}
    assert store.save_async(state, 1)
    state["weights"][:] = [1.0] * 1000
    store.flush()
    loaded = store.load_latest()
    assert loaded is not None
    assert loaded.state == {"step": 1, "weights": [0.0] * 1000}


RESUMED = """
import random, sys
import gpuwarden_job
from support.job_world import Part, socket_ranks

folder, rank, readme = sys.argv[1], int(sys.argv[2]), open(sys.argv[3]).read()
world = socket_ranks(folder + "/world", rank, 2)
gpuwarden_job.Ranks.detect = lambda: world
random.seed(rank)
model, optimizer, scheduler = Part(1), Part(2), Part(3)
loop = readme.partition("```python")[2].partition("cadence =")[0].replace("/shared/checkpoints/my-run", folder + "/saved")
exec(loop)
store.save(capture(step=1, samples=2, world=2, model=model, optimizer=optimizer, scheduler=scheduler), 1)
exec(loop)
print(step, random.random())
"""


@pytest.mark.parametrize("beside", [False, True])
def test_row_05_every_rank_saves_its_own_shard_and_none_is_published_without_all(tmp_path: Path, beside: bool) -> None:
    def run(ranks: Ranks) -> Any:
        store = CheckpointStore(tmp_path, ranks=ranks, sharded=True)
        save = store.save_async if beside else store.save
        save({"rank": ranks.rank}, 1)
        store.flush()
        bad = {"rank": ranks.rank, "cannot": threading.Lock() if ranks.rank == 2 and not beside else None}
        if not beside:
            with pytest.raises(SaveFailed):
                save(bad, 2)
        loaded = store.load_latest()
        assert loaded is not None
        return loaded.state["rank"], loaded.step

    assert together(4, run) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert len(list(tmp_path.glob("*/rank-*.state"))) == 4


def test_row_06_all_ranks_load_the_same_one_though_only_one_sees_that_the_newest_is_broken(tmp_path: Path) -> None:
    def save(ranks: Ranks) -> None:
        store = CheckpointStore(tmp_path, ranks=ranks, sharded=True)
        for step in (1, 2):
            store.save(f"{step} of {ranks.rank}", step)

    together(3, save)
    broken = next(tmp_path.glob("*-step-2/rank-00001.state"))
    broken.write_bytes(bytes(broken.stat().st_size))

    def load(ranks: Ranks) -> Any:
        loaded = CheckpointStore(tmp_path, ranks=ranks, sharded=True).load_latest()
        return loaded and loaded.state

    assert together(3, load) == ["1 of 0", "1 of 1", "1 of 2"]


def test_row_07_ranks_that_resume_as_the_readme_shows_have_different_random_numbers(tmp_path: Path) -> None:
    words = [(tmp_path, str(rank), JOB / "README.md") for rank in range(2)]
    ranks = [start("-c", RESUMED, *arguments, run_dir=tmp_path) for arguments in words]
    results = [ended(process) for process in ranks]
    assert [(code, output[:2]) for code, output in results] == [(0, "1 ")] * 2, results
    assert results[0] != results[1]


def test_row_07_a_state_holds_all_parts_the_random_numbers_and_the_position_or_is_refused() -> None:
    names = ("model", "optimizer", "scheduler", "scaler", "sampler")
    saved = capture(step=12, samples=96, world=4, **{name: Part(name) for name in names})
    wanted = [random.random() for _ in range(3)]
    fresh: dict[str, Any] = {name: Part(None) for name in names}
    assert restore(saved, **fresh) == (12, 96)
    assert [part.value for part in fresh.values()] == list(names)
    assert [random.random() for _ in range(3)] == wanted
    assert saved["world"] == 4
    untouched = Part("untouched")
    with pytest.raises(StateMismatch, match="only in the checkpoint or only in the job: optimizer"):
        restore(saved, model=untouched, scheduler=fresh["scheduler"], scaler=fresh["scaler"], sampler=fresh["sampler"])
    assert untouched.value == "untouched"


def test_row_08_another_number_of_ranks_takes_every_sample_once_and_shards_are_redistributed(tmp_path: Path) -> None:
    for size in (1, 2, 3, 5, 8):
        shares = [share(40, 8, rank, size) for rank in range(size)]
        assert [sample for part in shares for sample in part] == list(range(40, 48))
    with pytest.raises(ValueError, match="a batch of 8 cannot be shared by 9 ranks"):
        share(0, 8, 0, 9)

    def save(ranks: Ranks) -> None:
        CheckpointStore(tmp_path, ranks=ranks, sharded=True).save(list(range(ranks.rank * 3, ranks.rank * 3 + 3)), 1)

    def load(ranks: Ranks) -> Any:
        store = CheckpointStore(tmp_path, ranks=ranks, sharded=True)
        with pytest.raises(WorldChanged, match="by 4 ranks, and there are 3 now"):
            store.load_latest()
        flat = store.load_latest(reshard=lambda states, me: list(chain(*states))[me.rank :: me.size])
        return flat and flat.state

    together(4, save)
    assert together(3, load) == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_row_08_the_shard_of_one_rank_is_redistributed_too(tmp_path: Path) -> None:
    """A job that shrank to one rank and grows again would otherwise give every rank the whole state as its shard."""
    CheckpointStore(tmp_path, ranks=Ranks(), sharded=True).save([0, 1, 2, 3], 1)

    def load(ranks: Ranks) -> Any:
        store = CheckpointStore(tmp_path, ranks=ranks, sharded=True)
        with pytest.raises(WorldChanged, match="by 1 ranks, and there are 2 now"):
            store.load_latest()
        loaded = store.load_latest(reshard=lambda states, me: list(chain(*states))[me.rank :: me.size])
        return loaded and loaded.state

    assert together(2, load) == [[0, 2], [1, 3]]


def test_row_09_recovery_is_the_scheduler_s_since_torchrun_restarts_nothing_and_has_one_code_for_all() -> None:
    """Our examples therefore declare both: no restart on the node that goes away, and the code that a rank left in a
    mark.

    The elastic one is for nodes that come and go; test_torch_elastic.py runs it.
    """
    texts = {path.name: path.read_text() for path in EXAMPLES.rglob("*") if path.is_file() and path.suffix != ".py"}
    runs = {name: text for name, text in texts.items() if re.search(r"^\s*torchrun\b", text, re.MULTILINE)}
    assert set(runs) == {"train.dstack.yml", "train.yaml", "elastic.sh"}
    assert all("gpuwarden_job exit-code" in text for text in runs.values())
    assert re.search(r"--nnodes=.* --max-restarts=3 .*--rdzv-backend=c10d", runs.pop("elastic.sh"), re.DOTALL)
    assert all("--max-restarts=0" in text for text in runs.values())
    assert all(re.search(r"on_events:.*\berror\b|RESCHEDULE: 75\b", text) for text in runs.values())


def test_row_10_checkpoints_outlive_the_node_and_are_found_by_the_run_not_by_the_submission() -> None:
    """Slurm's id stays with a requeue; dstack's job id changes with each submission, its run's does not; OSMO uploads."""
    named = {
        path.name: (re.findall(r'(?:--folder "?|^folder=)(\S+)', text, re.MULTILINE), "frequency:" in text)
        for path in EXAMPLES.rglob("*")
        if path.is_file() and path.suffix != ".py" and "--folder" in (text := path.read_text())
    }
    assert set(named) == {"train.sbatch", "ranks.sbatch", "train.dstack.yml", "train.yaml", "elastic.sh"}
    for folders, uploaded in named.values():
        assert folders
        assert uploaded or not any(re.search(r"DSTACK_JOB_ID|RESTART_COUNT|^/tmp", folder) for folder in folders)


def test_row_11_a_termination_signal_saves_at_a_step_boundary_and_leaves_with_the_requeue_code(tmp_path: Path) -> None:
    process = start(
        EXAMPLES / "train.py", "--folder", tmp_path / "saved", "--steps", "100000", "--pause", "0.01",
        "--markers", tmp_path / "markers", "--save-every", "100000", run_dir=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "begins at step 0\n"
    until(lambda: _catches(process.pid, signal.SIGTERM), "the guard is in force")
    process.send_signal(signal.SIGTERM)
    code, output = ended(process)
    assert code == gpuwarden_job.REQUEUE, output
    assert len(CheckpointStore(tmp_path / "saved", ranks=Ranks()).saved()) == 1


def test_row_11_a_job_whose_last_save_fails_still_leaves_with_the_requeue_code(tmp_path: Path) -> None:
    process = start(
        EXAMPLES / "train.py", "--folder", tmp_path / "saved", "--steps", "100000", "--pause", "0.01",
        "--markers", tmp_path / "markers", "--save-every", "20", run_dir=tmp_path,
    )  # fmt: skip
    until(lambda: _newest(tmp_path / "saved") != "", "a periodic checkpoint")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, 1000))  # as a full disk
    process.send_signal(signal.SIGTERM)
    code, output = ended(process)
    assert (code, "File too large" in output) == (gpuwarden_job.REQUEUE, True), output


def test_row_12_a_save_is_flushed_renamed_and_marked_in_this_order(tmp_path: Path) -> None:
    """The order is that of the system calls. tests/job/test_store.py goes through each moment at which a crash may hit."""
    code, output = ended(start("-c", TRACED, tmp_path, run_dir=tmp_path))
    assert code == 0
    calls = output.split()
    publish = calls.index("rename")
    assert {"fsync"} < set(calls[:publish])
    assert calls[publish + 1] == "fsync"
    assert calls[publish + 2 :].index("replace") < calls[publish + 2 :].index("rmdir")
    assert (tmp_path / "latest").read_text() == "00000002-step-2\n"


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_row_13_a_rank_whose_peer_is_gone_leaves_long_before_the_collective_gives_up(
    tmp_path: Path, end: signal.Signals
) -> None:
    ranks = [start("-c", PEER, tmp_path / "world", str(rank), "4", run_dir=tmp_path) for rank in range(2)]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == "training\n"
        ranks[1].send_signal(end)
        code, output = ended(ranks[0])
        assert code == gpuwarden_job.REQUEUE, output
        assert "a peer is taken for lost" in output
    finally:
        for process in ranks:
            process.kill()
            ended(process)


def test_row_09_a_rank_without_time_for_a_save_waits_for_the_one_that_is_under_way(tmp_path: Path) -> None:
    words = (tmp_path / "saved", tmp_path, JOB / "README.md")
    code, output = ended(start("-c", SLOW_SAVE, *words, run_dir=tmp_path))
    assert code == gpuwarden_job.REQUEUE, output
    assert [made.step for made in CheckpointStore(tmp_path / "saved", ranks=Ranks()).saved()] == [1]


def test_row_13_a_job_that_was_suspended_trains_on_when_it_is_resumed(tmp_path: Path) -> None:
    """`scontrol suspend`, Slurm's preemption by suspending, and a frozen container stop all threads of the rank."""
    process = start("-c", SUSPENDED, run_dir=tmp_path)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(4)
        process.send_signal(signal.SIGCONT)
        assert ended(process) == (0, "trained\n")
    finally:
        process.kill()
        ended(process)


def test_row_13_a_first_step_that_compiles_for_long_is_no_lost_peer(tmp_path: Path) -> None:
    code, output = ended(start("-c", COMPILES, run_dir=tmp_path))
    assert "compiled" in output
    assert code == gpuwarden_job.REQUEUE, "from then on a step that stops for so long is one"


def test_row_13_with_a_notice_a_short_silence_before_the_deadline_is_enough(tmp_path: Path) -> None:
    give_notice(tmp_path, deadline_boottime=time.clock_gettime(time.CLOCK_BOOTTIME) + 1)
    ranks = [start("-c", PEER, tmp_path / "world", str(rank), "3000", run_dir=tmp_path) for rank in range(2)]
    try:
        for process in ranks:
            assert process.stdout is not None
            process.stdout.readline()
        ranks[1].send_signal(signal.SIGSTOP)
        assert ended(ranks[0])[0] == gpuwarden_job.REQUEUE
    finally:
        for process in ranks:
            process.kill()
            ended(process)


@pytest.mark.slow
def test_row_14_a_training_killed_again_and_again_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """SIGKILL at any moment, a save included; the result is the same to the last bit."""

    def run(folder: str) -> Any:
        return start(
            EXAMPLES / "train.py", "--folder", tmp_path / folder, "--steps", "120", "--save-every", "10",
            "--pause", "0.003", "--markers", tmp_path / "markers", run_dir=tmp_path,
        )  # fmt: skip

    code, wanted = ended(run("undisturbed"))
    assert code == 0, wanted
    for _ in range(3):
        before, process = _newest(tmp_path / "killed"), run("killed")
        until(lambda: _newest(tmp_path / "killed") > before or process.poll() is not None, "another")  # noqa: B023
        process.kill()
        ended(process)
    code, output = ended(run("killed"))
    assert code == 0, output
    begun = int(output.split()[3])
    assert begun > 0
    assert output.splitlines()[-1] == wanted.splitlines()[-1]


def test_row_15_no_rank_queries_the_cloud_one_file_on_the_node_notifies_all_of_them(tmp_path: Path) -> None:
    assert not [
        path for path in JOB.rglob("*.py") if re.search(r"169\.254|urllib|http\.client|requests", path.read_text())
    ]
    give_notice(tmp_path)
    environ = {"GPUWARDEN_RUN_DIR": str(tmp_path)}
    notices = together(8, lambda ranks: CheckpointGuard(ranks=ranks, environ=environ).check(1))
    assert [departure and departure.notice for departure in notices] == ["n-1"] * 8


def test_row_16_slurm_is_asked_for_the_signal_and_the_batch_script_requeues_what_was_saved(tmp_path: Path) -> None:
    """The real script, in a shell, with a stand-in for the two commands of Slurm that it calls."""
    script = EXAMPLES / "slurm" / "train.sbatch"
    assert re.search(r"^#SBATCH --signal=B:USR1@\d+$", script.read_text(), re.MULTILINE)
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "srun").write_text(
        '#!/bin/sh\nwhile [ "$1" != python ]; do shift; done\nshift\nexec "$PYTHON" -u "$@"\n'
    )
    (commands / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    for path in commands.iterdir():
        path.chmod(0o755)
    more = {
        "PATH": f"{commands}:{os.environ['PATH']}", "PYTHON": sys.executable, "SLURM_JOB_ID": "71",
        "SLURM_SUBMIT_DIR": str(EXAMPLES), "CHECKPOINTS": str(tmp_path / "saved"), "STEPS": "100000", "PAUSE": "0.01",
    }  # fmt: skip
    shell = start(
        "-c", "import os, sys; os.execvp('bash', ['bash', *sys.argv[1:]])", script, run_dir=tmp_path, more=more
    )
    assert shell.stdout is not None
    assert shell.stdout.readline() == "begins at step 0\n"
    child = Path(f"/proc/{shell.pid}/task/{shell.pid}/children")
    until(lambda: any(_catches(int(pid), signal.SIGUSR1) for pid in child.read_text().split()), "the guard is in force")
    shell.send_signal(signal.SIGUSR1)
    code, output = ended(shell)
    assert code == gpuwarden_job.REQUEUE, output
    assert (tmp_path / "asked").read_text() == "requeue Incomplete 71\n"
    assert len(CheckpointStore(tmp_path / "saved", ranks=Ranks()).saved()) == 1


def _newest(folder: Path) -> str:
    return max((path.name for path in folder.glob("0*")), default="")


def _catches(pid: int, number: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> (number - 1) & 1)
