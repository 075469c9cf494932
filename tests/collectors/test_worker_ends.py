"""Ends of real worker processes: by force, by their own fault, with the daemon; and those that cannot be ended."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.worker.child import in_uninterruptible_sleep
from gpuwarden_collectors.worker.life import WorkerLimits
from support.worker_readers import Options
from support.workers import (
    ENVIRONMENT,
    HASTY,
    SOON,
    Make,
    exited,
    facts_of,
    observed,
    pid_of,
    report,
    seen_when,
    vanished,
    workers,
)


@pytest.fixture
async def worker() -> AsyncIterator[Make]:
    async with workers() as make:
        yield make


@pytest.fixture
def trigger(tmp_path: Path) -> Path:
    """A file that switches the misbehaviour of a reader on while it exists."""
    return tmp_path / "trigger"


# --- Ends that need force ------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_kills_are_counted_and_beyond_the_budget_a_worker_is_left_alone(worker: Make, trigger: Path) -> None:
    trigger.touch()
    limits = WorkerLimits(deadline=0.5, term_grace=0.3, kills=1, backoff_first=0.0)
    deaf = worker(Options(how="hang_deaf", trigger=str(trigger)), limits)
    first = pid_of(await seen_when(deaf, lambda worker: worker.missed))
    parked = await seen_when(deaf, lambda worker: worker.parked)
    assert parked.outcome is PassOutcome.TIMED_OUT
    assert report(parked).kills == 1
    assert pid_of(parked) != first
    again = await deaf.observe()
    assert (again.outcome, pid_of(again)) == (PassOutcome.TIMED_OUT, pid_of(parked))
    assert str(pid_of(parked)) in again.error

    os.kill(pid_of(parked), signal.SIGKILL)  # an operator helps
    trigger.unlink()
    await observed(deaf)
    assert not report(await deaf.observe()).parked


def put_in_d_state(proc: Path, pid: int) -> None:
    """A tree like /proc in which the second thread of the process is in D state."""
    for thread, state in ((pid, "S"), (pid + 1, "D")):
        stat = proc / str(pid) / "task" / str(thread) / "stat"
        stat.parent.mkdir(parents=True)
        stat.write_text(f"{thread} (python (R) worker) {state} 1 2 3 4\n")


@pytest.mark.slow
async def test_a_process_in_d_state_is_abandoned_and_another_one_answers(
    worker: Make, trigger: Path, tmp_path: Path
) -> None:
    """D state is a tree of files here; the next test and the tests of the whole daemon have a real one."""
    stuck = worker(Options(how="hang_deaf", trigger=str(trigger)), HASTY, proc=tmp_path)
    pid = (await observed(stuck)).pid
    put_in_d_state(tmp_path, pid)
    assert not report(await stuck.observe()).stuck
    trigger.touch()
    seen = await stuck.observe()
    assert (seen.outcome, report(seen).stuck, report(seen).abandoned) == (PassOutcome.TIMED_OUT, True, False)
    trigger.unlink()
    assert (await observed(stuck)).pid != pid
    after = report(await stuck.observe())
    assert (after.abandoned, after.stuck, after.kills) == (True, False, 0)
    assert Path(f"/proc/{pid}").exists()

    os.kill(pid, signal.SIGKILL)
    await exited(pid)
    assert not report(await stuck.observe()).abandoned


@pytest.mark.slow
async def test_a_process_in_d_state_that_a_signal_ends_is_not_stuck_in_the_driver(worker: Make, trigger: Path) -> None:
    waiting = worker(Options(how="hang_as_for_a_disk", trigger=str(trigger)), HASTY)
    pid = (await observed(waiting)).pid
    trigger.touch()
    late = asyncio.create_task(waiting.observe())
    async with asyncio.timeout(SOON):
        while not in_uninterruptible_sleep(Path("/proc"), pid):
            await asyncio.sleep(0.05)
    seen = await late
    assert (seen.outcome, report(seen).stuck, report(seen).abandoned) == (PassOutcome.TIMED_OUT, False, False)
    trigger.unlink()
    await observed(waiting)


@pytest.mark.slow
async def test_no_third_process_is_put_beside_two_in_d_state(worker: Make, trigger: Path) -> None:
    trigger.touch()
    stuck = worker(Options(how="hang_in_kernel", trigger=str(trigger)), HASTY)
    first = pid_of(await seen_when(stuck, lambda worker: worker.stuck))
    assert in_uninterruptible_sleep(Path("/proc"), first)
    seen = await seen_when(stuck, lambda worker: worker.restarts == 1 and worker.pid == first)
    second = int(seen.error.split()[1].rstrip(":"))
    again = await seen_when(stuck, lambda worker: "no worker is started" in worker.last_error)
    assert f"(pid {first}, {second})" in again.error
    assert (again.outcome, report(again).abandoned, report(again).kills) == (PassOutcome.TIMED_OUT, True, 0)

    trigger.unlink()
    for pid in (first, second):
        os.kill(pid, signal.SIGKILL)
    await observed(stuck)


# --- Deaths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "end"), [("segfault", "died by SIGSEGV"), ("leave", "exited with status 1: a line before leaving")]
)
async def test_a_crash_costs_one_pass(worker: Make, trigger: Path, how: str, end: str) -> None:
    crashing = worker(Options(how=how, trigger=str(trigger)))
    pid = facts_of(await crashing.observe()).pid
    trigger.touch()
    seen = await crashing.observe()
    assert (seen.outcome, seen.error) == (PassOutcome.FAILED, f"worker {pid} {end}")
    assert (report(seen).pid, report(seen).crashes) == (None, 1)
    trigger.unlink()
    assert (await crashing.observe()).outcome is PassOutcome.OBSERVED


async def test_repeated_crashes_are_followed_by_a_pause(worker: Make) -> None:
    crashing = worker(Options(how="segfault", where="connect"), WorkerLimits(deadline=SOON, backoff_first=SOON))
    errors = [(await crashing.observe()).error for _ in range(3)]
    assert re.fullmatch(rf"{re.escape(errors[1])}; the next worker starts in \d+ s", errors[2])
    assert report(await crashing.observe()).crashes == 2


async def test_a_kill_from_outside_in_the_middle_of_a_pass_costs_that_pass(worker: Make, trigger: Path) -> None:
    hanging = worker(Options(how="hang", trigger=str(trigger)))
    pid = facts_of(await hanging.observe()).pid
    trigger.touch()
    waiting = asyncio.create_task(hanging.observe())
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    seen = await waiting
    assert (seen.outcome, seen.error) == (PassOutcome.FAILED, f"worker {pid} died by SIGKILL")


async def test_a_death_between_two_passes_costs_none(worker: Make) -> None:
    good = worker()
    pid = facts_of(await good.observe()).pid
    os.kill(pid, signal.SIGKILL)
    await exited(pid)
    seen = await good.observe()
    assert (seen.outcome, report(seen).crashes) == (PassOutcome.OBSERVED, 1)
    assert report(seen).last_error == f"worker {pid} died by SIGKILL"


async def test_a_process_that_cannot_be_started_is_a_failed_pass(worker: Make) -> None:
    seen = await worker(python="/nonexistent/python").observe()
    assert seen.outcome is PassOutcome.FAILED
    assert seen.error.startswith("cannot start a worker process: ")


async def test_a_reader_that_cannot_be_imported_is_reported_with_its_reason(worker: Make) -> None:
    seen = await worker(reader="support.no_such_module:Reader").observe()
    assert seen.outcome is PassOutcome.FAILED
    assert seen.error.endswith("ModuleNotFoundError: No module named 'support.no_such_module'")


async def test_a_stream_that_holds_no_frames_ends_the_worker(worker: Make, tmp_path: Path) -> None:
    babbling = tmp_path / "python"
    babbling.write_text("#!/bin/sh\nwhile :; do echo nothing that is a frame; done\n")
    babbling.chmod(0o755)
    seen = await worker(python=str(babbling)).observe()
    assert seen.outcome is PassOutcome.FAILED
    assert "broke the stream of frames: no frame starts with b'nothing" in seen.error
    await exited(pid_of(seen))


async def test_options_that_a_pipe_does_not_take_at_once_are_refused(worker: Make) -> None:
    with pytest.raises(ValueError, match="options of a worker take"):
        worker(Options(how="x" * 5000))


# --- The end of the daemon -----------------------------------------------------------------------------------------


async def test_close_lets_the_reader_close_its_library(worker: Make, tmp_path: Path) -> None:
    good = worker(Options(closed=str(tmp_path / "closed")))
    pid = facts_of(await good.observe()).pid
    await good.close()
    assert (tmp_path / "closed").read_text() == str(pid)


async def test_close_is_not_held_up_by_a_hanging_library(worker: Make) -> None:
    hanging = worker(Options(how="hang_deaf"), WorkerLimits(deadline=0.3, term_grace=0.3))
    pid = pid_of(await hanging.observe())
    await hanging.close()
    await exited(pid)


async def test_a_cancelled_pass_leaves_its_answer_to_the_next(worker: Make, trigger: Path) -> None:
    slow = worker(Options(how="answer_late", trigger=str(trigger)))
    await slow.observe()
    trigger.touch()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slow.observe(), 0.1)
    trigger.unlink()
    seen = await slow.observe()
    assert (facts_of(seen).reads, facts_of(seen).text) == (2, "late")


@pytest.fixture(params=["hang", "hang_ignoring_sigterm", "hang_locked"])
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "support.worker_parent", request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        yield process
        process.kill()


@pytest.mark.slow
async def test_a_worker_ends_with_a_killed_daemon_even_while_its_library_hangs(parent: subprocess.Popen[bytes]) -> None:
    assert parent.stdout is not None
    pid = int(await asyncio.to_thread(parent.stdout.readline))
    parent.kill()
    await vanished(pid)


def test_a_worker_whose_daemon_is_dead_already_does_nothing() -> None:
    command = [sys.executable, "-m", "gpuwarden_collectors.worker.process", "support.worker_readers:Reader", "1", "-1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.wait(SOON) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b""


# --- rest


async def test_at_rest_no_process_is_left_and_the_next_pass_starts_another_as_if_nothing_had_failed(
    worker: Make,
) -> None:
    good = worker()
    first = await good.observe()
    assert await good.rest()
    with pytest.raises(ProcessLookupError):
        os.kill(pid_of(first), 0)
    second = await good.observe()
    assert second.outcome is PassOutcome.OBSERVED
    assert pid_of(second) != pid_of(first)
    assert (report(second).crashes, report(second).kills, report(second).missed) == (0, 0, 0)


async def test_a_worker_that_never_ran_is_at_rest(worker: Make) -> None:
    assert await worker().rest()
