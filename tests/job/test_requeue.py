"""A job that saved and left is started again; one that failed by its own fault is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden_job import REQUEUE, CheckpointGuard, PeerWatch, Ranks, park, requeue_code, reschedulable, transient
from support.job_world import environment, give_notice


class DistBackendError(RuntimeError):
    """An error with the name that torch gives it."""


def mapped(folder: Path, status: int, **more: str) -> int:
    command: list[str | Path] = [sys.executable, "-m", "gpuwarden_job", "exit-code", folder, str(status)]
    answer = subprocess.run(
        command, env=environment(folder, more), capture_output=True, text=True, timeout=60, check=True
    )
    return int(answer.stdout)


@pytest.mark.parametrize(
    ("configured", "code"),
    [("", 75), ("42", 42), ("125", 125), ("0", 75), ("126", 75), ("x", 75), ("-1", 75), ("²", 75)],
)
def test_the_code_is_never_that_of_a_job_that_is_finished_or_of_a_signal(configured: str, code: int) -> None:
    assert requeue_code({"GPUWARDEN_REQUEUE_EXIT": configured}) == code


@pytest.mark.parametrize(
    ("error", "is_transient"),
    [
        (DistBackendError("timeout"), True), (ConnectionResetError(), True), (RuntimeError("NCCL error in: x.cpp:3"), True),
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.2]:4265: Connection reset by peer"), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("shapes do not match"), False), (MemoryError(), False),
    ],
)  # fmt: skip
def test_only_a_fault_of_the_machine_or_the_network_leaves_a_mark(
    tmp_path: Path, error: Exception, is_transient: bool
) -> None:
    assert transient(error) is is_transient
    with pytest.raises(type(error)), reschedulable(tmp_path / "marks", rank=3):
        raise error
    assert [path.name for path in tmp_path.glob("marks/*")] == (["reschedule.rank-3"] if is_transient else [])


def test_what_the_caller_names_leaves_a_mark_and_a_folder_that_cannot_be_written_hides_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), reschedulable(tmp_path, errors=(KeyError,)):
        raise KeyError("x")
    assert len(list(tmp_path.iterdir())) == 1
    (tmp_path / "file").touch()
    with pytest.raises(DistBackendError), reschedulable(tmp_path / "file"):
        raise DistBackendError


def test_a_rank_that_torchrun_starts_again_leaves_no_mark_of_its_earlier_failure(tmp_path: Path) -> None:
    with pytest.raises(DistBackendError), reschedulable(tmp_path, rank=1):
        raise DistBackendError
    with pytest.raises(ValueError), reschedulable(tmp_path, rank=1):
        raise ValueError("a bug")
    assert mapped(tmp_path, 1) == 1


LEAVES = """
import os, sys
from gpuwarden_job import CheckpointGuard, Ranks, leave
with CheckpointGuard(ranks=Ranks()) as guard:
    if sys.argv[1] == "signal":
        os.kill(os.getpid(), 15)
    guard.check(1)
    leave(guard)
"""
# Its name is all that it has of torchrun; it records how it ended.
PARENT = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, lambda *_: (print("ended"), sys.exit(0)))
subprocess.run([sys.executable, "-c", *sys.argv[2:]])
"""


@pytest.mark.parametrize(
    ("name", "restarts", "cause", "ends"),
    [
        ("torchrun", "3", "notice", True), ("torchrun", "0", "notice", False), ("bash", "3", "notice", False),
        ("torchrun", "3", "signal", False),
    ],
)  # fmt: skip
def test_a_node_that_is_taken_away_ends_the_agent_that_would_start_its_ranks_there_again(
    tmp_path: Path, name: str, restarts: str, cause: str, ends: bool
) -> None:
    """A mere SIGTERM may be the agent's own, which goes on with more nodes or fewer."""
    if cause == "notice":
        give_notice(tmp_path)
    answer = subprocess.run(
        [sys.executable, "-u", "-c", PARENT, name, LEAVES, cause],
        env=environment(tmp_path, {"TORCHELASTIC_MAX_RESTARTS": restarts}),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert answer.stdout == ("ended\n" if ends else ""), answer.stderr


def test_a_launcher_s_code_becomes_the_scheduler_s_where_a_rank_left_a_mark(tmp_path: Path) -> None:
    """The marks of an earlier attempt are cleared first, else a bug would be started again for ever."""
    assert mapped(tmp_path / "marks", 1) == 1
    with pytest.raises(DistBackendError), reschedulable(tmp_path / "marks"):
        raise DistBackendError
    assert mapped(tmp_path / "marks", 1) == REQUEUE
    assert mapped(tmp_path / "marks", 1, GPUWARDEN_REQUEUE_EXIT="42") == 42
    assert mapped(tmp_path / "marks", 0) == 0, "finished is finished"
    clear: list[str | Path] = [sys.executable, "-m", "gpuwarden_job", "clear", tmp_path / "marks"]
    subprocess.run(clear, env=environment(tmp_path), timeout=60, check=True)
    assert mapped(tmp_path / "marks", 1) == 1


def test_a_parked_job_stays_until_a_minute_past_the_deadline_or_a_further_signal(tmp_path: Path) -> None:
    give_notice(tmp_path)
    with CheckpointGuard(ranks=Ranks(), environ={"GPUWARDEN_RUN_DIR": str(tmp_path)}) as guard:
        departure = guard.check(1)
        assert departure is not None
        assert departure.deadline is not None
        now = iter([departure.deadline + seconds for seconds in (0.0, 30.0, 59.0, 61.0)])
        park(guard, clock=lambda: next(now))
        assert list(now) == []

        def clock() -> float:
            seconds = next(times)
            if seconds in (1.0, 7.0):
                os.kill(os.getpid(), signal.SIGTERM)
            return seconds

        times = iter([0.0, 1.0, 6.0, 7.0, 8.0])
        park(guard, clock=clock)
        assert list(times) == [8.0], "the first signal was the one that goes with the notice"


@pytest.mark.slow
def test_a_parked_rank_waits_for_no_peer(tmp_path: Path) -> None:
    give_notice(tmp_path)
    lost: list[str] = []
    with (
        CheckpointGuard(ranks=Ranks(), environ={"GPUWARDEN_RUN_DIR": str(tmp_path)}) as guard,
        PeerWatch(guard, stall=1.0, first=1.0, lost=lambda: lost.append("left")),
    ):
        departure = guard.check(1)
        assert departure is not None
        assert departure.deadline is not None
        now = iter([*(departure.deadline + seconds for seconds in range(12)), departure.deadline + 61.0])
        park(guard, clock=lambda: next(now))
        assert list(now) == []
    assert lost == []
