"""The guard reports once for each notice, on all ranks at the same step, that it is time to save and leave."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_job import REQUEUE, CheckpointGuard, Ranks
from gpuwarden_job.acknowledge import spans_job
from gpuwarden_job.notice import boottime
from support.job_world import BOUND, environment, give_notice, together


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def guard_of(run_dir: Path, ranks: Ranks | None = None, **options: Any) -> CheckpointGuard:
    environ = {"GPUWARDEN_RUN_DIR": str(run_dir), "SLURM_JOB_ID": "71"}
    return CheckpointGuard(**{"ranks": ranks or Ranks(), "environ": environ, "poll": 0.0, **options})


@pytest.fixture
def handlers() -> Iterator[None]:
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
    before = [signal.getsignal(number) for number in names]
    yield
    assert [signal.getsignal(number) for number in names] == before


def test_without_a_daemon_there_is_no_notice_and_nothing_fails(tmp_path: Path) -> None:
    guard = guard_of(tmp_path / "not there")
    assert [guard.check(step) for step in range(3)] == [None] * 3
    assert not guard.acknowledge(saved=True, step=1)


@pytest.mark.usefixtures("handlers")
def test_a_signal_sets_a_flag_and_the_next_check_returns_it_once(tmp_path: Path) -> None:
    with guard_of(tmp_path) as guard:
        for name in ("SIGTERM", "SIGUSR1"):
            os.kill(os.getpid(), getattr(signal, name))
            departure = guard.check(1)
            assert departure is not None
            assert (departure.signals, departure.deadline, departure.notice) == ((name,), None, None)
            assert guard.check(2) is None


FORKING = """
import multiprocessing, os, signal, time
from gpuwarden_job import CheckpointGuard, Ranks, leave

with CheckpointGuard(ranks=Ranks()) as guard:
    if os.fork() == 0:
        raise SystemExit  # leaves the guard, but not for the rank
    os.wait()
    loader = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
    loader.start()
    for pid in (loader.pid, os.getpid()):
        os.kill(pid, signal.SIGTERM)
    loader.join(0.5)
    assert loader.is_alive(), "the rank may need it to come to its save"
    assert guard.check(1)
    leave(guard)  # Python ends such processes by SIGTERM and waits for them
"""


def test_a_forked_process_outlives_the_signals_of_the_job_and_not_the_guard(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING]
    assert subprocess.run(command, env=environment(tmp_path), timeout=BOUND, check=False).returncode == REQUEUE


LOADING = """
import multiprocessing, os, signal, sys, time
from gpuwarden_job import CheckpointGuard, Ranks, leave

def load(keep, started):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as PyTorch does in the workers of its DataLoader
    keep(0)
    started.set()
    time.sleep(1000)

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    with CheckpointGuard(ranks=Ranks()) as guard:
        started = context.Event()
        worker = context.Process(target=load, args=(guard.keep_worker, started), daemon=True)
        worker.start()
        started.wait()
        for name in ("SIGTERM", "SIGUSR1"):
            os.kill(worker.pid, getattr(signal, name))
        worker.join(0.5)
        assert worker.is_alive(), "the rank may need it to come to its save"
        os.kill(os.getpid(), signal.SIGTERM)
        assert guard.check(1)
        leave(guard)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_of_a_data_loader_outlives_the_signals_of_the_job_and_not_the_guard(
    tmp_path: Path, method: str
) -> None:
    script = tmp_path / "loading.py"
    script.write_text(LOADING)
    command = [sys.executable, str(script), method]
    assert subprocess.run(command, env=environment(tmp_path), timeout=BOUND, check=False).returncode == REQUEUE


@pytest.mark.usefixtures("handlers")
def test_the_signal_that_a_job_declares_is_caught_and_a_second_interrupt_interrupts(tmp_path: Path) -> None:
    environ = {"GPUWARDEN_RUN_DIR": str(tmp_path), "GPUWARDEN_SIGNAL": "usr2"}
    with CheckpointGuard(ranks=Ranks(), environ=environ) as guard:
        os.kill(os.getpid(), signal.SIGUSR2)
        assert guard.check(1) is not None
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_notice_is_returned_once_with_the_time_that_is_left(tmp_path: Path) -> None:
    guard = guard_of(tmp_path)
    give_notice(tmp_path)
    departure = guard.check(1)
    assert departure is not None
    assert (departure.notice, departure.reason) == ("n-1", "reclaimed")
    assert departure.remaining is not None
    assert 0 < departure.remaining <= 120
    assert guard.check(2) is None
    give_notice(tmp_path, id="n-1", deadline_boottime=1.0)  # its deadline drifts: still the same
    assert guard.check(3) is None


def test_a_notice_called_off_before_the_next_step_is_none_and_one_that_comes_again_is_news(tmp_path: Path) -> None:
    clock = Clock()
    guard = guard_of(tmp_path, clock=clock)
    give_notice(tmp_path)
    assert guard.check(1) is not None
    (tmp_path / "notice.json").unlink()
    assert guard.check(2) is None
    give_notice(tmp_path)
    assert guard.check(3) is not None


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("first", ["signal", "notice"])
def test_a_signal_and_the_notice_of_the_same_event_are_one(tmp_path: Path, first: str) -> None:
    clock = Clock()
    with guard_of(tmp_path, clock=clock) as guard:
        for event in ("signal", "notice") if first == "signal" else ("notice", "signal"):
            if event == "signal":
                os.kill(os.getpid(), signal.SIGTERM)
            else:
                give_notice(tmp_path)
            clock.now += 1
            guard.check(1)
        assert guard.interruption is not None
        assert bool(guard.interruption.signals) == (first == "signal")
        clock.now += 3600
        assert guard.check(2) is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert guard.check(2) is not None, "an hour later a signal means something else"
        clock.now += 3600
        give_notice(tmp_path, id="n-2")
        assert guard.check(3) is not None


def test_one_rank_is_notified_and_all_leave_at_the_same_step_with_the_soonest_deadline(tmp_path: Path) -> None:
    give_notice(tmp_path / "1", deadline_boottime=None)
    now = boottime()
    give_notice(tmp_path / "2", deadline_boottime=now + 3000)

    def run(ranks: Ranks) -> tuple[int, float, bool]:
        guard = guard_of(tmp_path / str(ranks.rank), ranks, every=4)
        for step in range(1, 100):
            if departure := guard.check(step):
                return step, departure.remaining or 0.0, guard.time_for(2999 if ranks.rank == 0 else 1)
        raise AssertionError

    steps, left, fits = zip(*together(4, run), strict=True)
    assert steps == (4, 4, 4, 4)
    assert all(2000 < seconds <= 3000 for seconds in left)
    assert fits == (False,) * 4, "one rank's save would take too long"


def test_ranks_of_one_node_that_poll_at_different_moments_leave_once(tmp_path: Path) -> None:
    """The rank that polled before the notice came learns of it from the other, and does not take it for a second one."""
    clocks = (Clock(), Clock())

    def run(ranks: Ranks) -> list[bool]:
        guard = guard_of(tmp_path, ranks, poll=1.0, clock=clocks[ranks.rank])
        departures = [guard.check(1) is not None]
        ranks.any(False)
        if ranks.first:
            give_notice(tmp_path)
            clocks[0].now = 1.0
        ranks.any(False)
        for step in range(2, 6):
            departures.append(guard.check(step) is not None)
            clocks[ranks.rank].now += 1.0
        return departures

    assert together(2, run) == [[False, True, False, False, False]] * 2


def test_a_broken_agreement_does_not_end_the_training_and_this_rank_leaves_by_what_it_knows(tmp_path: Path) -> None:
    def broken(_: int) -> int:
        raise RuntimeError("connection closed by peer")

    guard = guard_of(tmp_path, Ranks(0, 2, broken))
    assert guard.check(1) is None
    give_notice(tmp_path)
    assert guard.check(2) is not None


def test_off_the_main_thread_there_are_no_signals_but_the_notice(tmp_path: Path) -> None:
    give_notice(tmp_path)
    departures = []

    def run() -> None:
        with guard_of(tmp_path) as guard:
            departures.append(guard.check(1))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert departures[0] is not None


@contextmanager
def daemon(path: Path, *answers: bytes) -> Iterator[list[bytes]]:
    """A real socket, one response to each who comes; what it received. An empty response: silence until the peer gives up."""
    received: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            for answer in answers:
                peer, _ = listener.accept()
                with peer:
                    received.append(peer.recv(4096))
                    peer.sendall(answer)
                    while not answer and peer.recv(1):
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield received
        thread.join(60)


def acknowledged(run_dir: Path) -> tuple[bool, Path]:
    give_notice(run_dir)
    guard = guard_of(run_dir, Ranks(3, 8, lambda value: value))
    assert guard.check(1) is not None
    return guard.acknowledge(saved=True, step=1200), run_dir / "ack" / "71" / "3.json"


def test_the_daemon_gets_an_acknowledgement_through_its_socket(tmp_path: Path) -> None:
    with daemon(tmp_path / "job.sock", b'{"ok": true}\n') as received:
        accepted, file = acknowledged(tmp_path)
    assert (accepted, file.exists()) == (True, False)
    message = {"verb": "acknowledge", "notice": "n-1", "rank": 3, "saved": True, "step": 1200, "all_ranks": True}
    assert [json.loads(line) for line in received] == [message]


def test_an_acknowledgement_is_repeated_to_a_daemon_that_does_not_know_the_rank_yet(tmp_path: Path) -> None:
    """The training draws the same numbers as without it."""
    again = b'{"ok": false, "code": 75, "error": "whose process 7 is was not found in time; try again"}\n'
    drawn = random.getstate()
    with daemon(tmp_path / "job.sock", again, again, b'{"ok": true}\n') as received:
        accepted, file = acknowledged(tmp_path)
    assert (accepted, file.exists(), random.getstate() == drawn) == (True, False, True)
    assert len(received) == 3
    assert len(set(received)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("answer", [b'{"ok": false}\n', b"not JSON\n", b"[" * 5000, b""])
def test_where_the_socket_does_not_help_a_file_does(tmp_path: Path, answer: bytes) -> None:
    (tmp_path / "ack").mkdir()
    with daemon(tmp_path / "job.sock", answer):
        accepted, file = acknowledged(tmp_path)
    assert accepted
    assert json.loads(file.read_text()) == {
        "notice": "n-1", "rank": 3, "saved": True, "step": 1200, "all_ranks": True,
    }  # fmt: skip


def test_where_nobody_listens_it_is_quiet(tmp_path: Path) -> None:
    assert acknowledged(tmp_path) == (False, tmp_path / "ack" / "71" / "3.json")


# --- for whom a rank answers


def left(run_dir: Path, rank: int) -> dict[str, Any]:
    """The acknowledgement that this rank left as a file."""
    document: dict[str, Any] = json.loads((run_dir / "ack" / "71" / f"{rank}.json").read_text())
    return document


def test_a_rank_that_has_saved_answers_for_all_once_the_slowest_has(tmp_path: Path) -> None:
    """The rank on a node without the notice takes part, too, and has no daemon to acknowledge to."""
    (tmp_path / "1" / "ack").mkdir(parents=True)
    give_notice(tmp_path / "1")
    slow_has_saved, seen = threading.Event(), []

    def run(ranks: Ranks) -> bool:
        guard = guard_of(tmp_path / str(ranks.rank), ranks)
        assert guard.check(1) is not None
        if ranks.first:
            slow_has_saved.wait(0.3)  # its save
            slow_has_saved.set()
        accepted = guard.acknowledge(saved=True, step=1)
        seen.append(slow_has_saved.is_set())
        return accepted

    assert together(2, run) == [False, True]
    assert (seen, left(tmp_path / "1", 1)["all_ranks"]) == ([True, True], True)


@pytest.mark.parametrize("all_ranks", [True, False])
def test_a_rank_with_an_explicit_all_ranks_waits_for_no_other(tmp_path: Path, all_ranks: bool) -> None:
    def alone(value: int) -> int:
        calls.append(value)
        return value

    calls: list[int] = []
    (tmp_path / "ack").mkdir()
    give_notice(tmp_path)
    guard = guard_of(tmp_path, Ranks(1, 4, alone))
    assert guard.check(1) is not None
    before = len(calls)
    assert guard.acknowledge(saved=True, step=1, all_ranks=all_ranks)
    assert (len(calls) - before, left(tmp_path, 1).get("all_ranks", False)) == (0, all_ranks)


def test_where_the_ranks_cannot_agree_each_answers_for_itself(tmp_path: Path) -> None:
    def broken(_: int) -> int:
        raise RuntimeError("connection closed by peer")

    (tmp_path / "ack").mkdir()
    give_notice(tmp_path)
    guard = guard_of(tmp_path, Ranks(1, 4, broken))
    assert guard.check(1) is not None
    assert guard.acknowledge(saved=True, step=1)
    assert "all_ranks" not in left(tmp_path, 1)


def test_one_rank_that_does_not_know_all_others_keeps_all_from_answering_for_them(tmp_path: Path) -> None:
    def run(ranks: Ranks) -> dict[str, Any]:
        folder = tmp_path / str(ranks.rank)
        (folder / "ack").mkdir(parents=True)
        give_notice(folder)
        environ = {"GPUWARDEN_RUN_DIR": str(folder), "SLURM_JOB_ID": "71"}
        environ |= {} if ranks.first else {"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "1"}
        guard = CheckpointGuard(ranks=ranks, environ=environ, poll=0.0)
        assert guard.check(1) is not None
        assert guard.acknowledge(saved=True, step=1)
        return left(folder, ranks.rank)

    assert ["all_ranks" in acknowledgement for acknowledgement in together(2, run)] == [False, False]


_HET = {"SLURM_HET_SIZE": "2", "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1", "SLURM_JOB_NUM_NODES_HET_GROUP_1": "2"}


@pytest.mark.parametrize(
    ("size", "environ", "spans"),
    [
        (1, {}, False),
        (8, {}, True),
        (16, {"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "16"}, True),
        (16, {"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}, True),  # torchrun
        (8, {"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "8"}, False),  # a sweep
        (8, {"SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "16"}, False),
        (8, {"SLURM_JOB_NUM_NODES": "16"}, False),
        (8, {"WORLD_SIZE": "16"}, False),
        (8, {"DSTACK_NODES_NUM": "2", "WORLD_SIZE": "8"}, True),
        (3, {**_HET, "SLURM_JOB_NUM_NODES": "3", "SLURM_STEP_NUM_NODES": "3"}, True),
        (2, {**_HET, "SLURM_JOB_NUM_NODES": "2", "SLURM_STEP_NUM_NODES": "2"}, False),  # one part of two
        (8, {"SLURM_HET_SIZE": "9" * 9, "SLURM_JOB_NUM_NODES": "two", "WORLD_SIZE": "-1"}, True),
    ],
)
def test_ranks_that_agree_are_all_of_the_job_unless_the_environment_shows_otherwise(
    size: int, environ: dict[str, str], spans: bool
) -> None:
    assert spans_job(environ, size) is spans


@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_ranks_of_a_launcher_that_do_not_agree_are_refused(name: str) -> None:
    """Ranks that do not agree save over each other, and all resume from the state that was saved last."""
    with pytest.raises(RuntimeError, match=f"{name} is 2, and torch.distributed is not initialised"):
        Ranks.detect({name: "2"})
    assert Ranks.detect({name: "1"}).size == 1


def test_the_only_rank_of_torchrun_may_be_one_of_several_tasks_of_srun() -> None:
    assert Ranks.detect({"WORLD_SIZE": "1", "SLURM_STEP_NUM_TASKS": "2"}).size == 1
