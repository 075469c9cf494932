"""Workers as real processes whose readers hang, crash, lie and vanish."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.base import Observation, PassOutcome, WorkerReport
from gpuwarden_collectors.facts import HostEvent, XidEvent
from gpuwarden_collectors.worker import Worker
from gpuwarden_collectors.worker_child import in_uninterruptible_sleep
from gpuwarden_collectors.worker_life import WorkerLimits
from support.worker_readers import Options, Said

SOON = 30.0  # seconds that anything here may take at most
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
PATIENT = WorkerLimits(deadline=SOON)
GOOD = Options()
HASTY = WorkerLimits(deadline=0.5, term_grace=0.5)

Make = Callable[..., Worker[Any]]


def held() -> tuple[int, set[asyncio.Task[Any]], set[str]]:
    """What this process has of descriptors, other tasks, and children (zombies too)."""
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()
    return len(list(Path("/proc/self/fd").iterdir())), asyncio.all_tasks() - {asyncio.current_task()}, set(children)


@pytest.fixture
async def worker() -> AsyncIterator[Make]:
    """Makes workers; afterwards they are closed, and no process, task or descriptor may be left of them."""
    before = held()
    made: list[Worker[Any]] = []

    def make(options: Options | None = GOOD, limits: WorkerLimits = PATIENT, **others: Any) -> Worker[Any]:
        arguments: dict[str, Any] = {
            "reader": "support.worker_readers:Reader",
            "facts_type": Said,
            "options": options,
            "on_event": lambda _: None,
            "environment": ENVIRONMENT,
        }
        made.append(Worker("test", limits=limits, **arguments | others))
        return made[-1]

    yield make
    for each in made:
        await each.close()
    assert held() == before


@pytest.fixture
def trouble(tmp_path: Path) -> Path:
    """A file that switches the misbehaviour of a reader on while it exists."""
    return tmp_path / "trouble"


def said(seen: Observation[Any]) -> Said:
    assert isinstance(seen.facts, Said), seen.error
    return seen.facts


async def observed(worker: Worker[Any]) -> Said:
    """The next facts; passes that time out or are waiting for a pause to end are let go by."""
    async with asyncio.timeout(SOON):
        while True:
            seen = await worker.observe()
            if seen.outcome is PassOutcome.OBSERVED:
                return said(seen)
            await asyncio.sleep(0.05)


async def seen_when(worker: Worker[Any], wanted: Callable[[WorkerReport], object]) -> Observation[Any]:
    """The first observation whose worker report is as wanted."""
    async with asyncio.timeout(SOON):
        while True:
            seen = await worker.observe()
            if wanted(report(seen)):
                return seen
            await asyncio.sleep(0.05)


def report(seen: Observation[Any]) -> WorkerReport:
    assert seen.worker is not None
    return seen.worker


async def exited(pid: int) -> None:
    """Wait until our child has exited with all its threads; it stays to be reaped, unless it is already."""
    with contextlib.suppress(ChildProcessError):
        async with asyncio.timeout(SOON):
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:  # noqa: ASYNC222 - WNOHANG
                await asyncio.sleep(0.02)


async def vanished(pid: int) -> None:
    """Wait until a process that is not our child has ended; whoever inherited it may leave it a zombie."""
    async with asyncio.timeout(SOON):
        with contextlib.suppress(OSError):
            while b") Z" not in Path(f"/proc/{pid}/stat").read_bytes():
                await asyncio.sleep(0.02)


# --- Answers -------------------------------------------------------------------------------------------------------


async def test_one_process_answers_every_pass(worker: Make) -> None:
    good = worker()
    first, second = await good.observe(), await good.observe()
    assert first.outcome is second.outcome is PassOutcome.OBSERVED
    assert first.started <= first.finished <= second.started
    assert (said(first).pid, said(first).reads, said(second).reads) == (said(second).pid, 1, 2)
    assert report(second) == WorkerReport(pid=said(second).pid, ever_answered=True)


async def test_a_reader_that_finds_no_source_is_absent_and_asked_again_by_the_same_process(
    worker: Make, trouble: Path
) -> None:
    trouble.touch()
    absent = worker(Options(how="be_absent", where="connect", trouble=str(trouble)))
    seen = await absent.observe()
    assert (seen.outcome, seen.error) == (PassOutcome.ABSENT, "there is no such library here")
    assert report(seen).silent_since is None
    trouble.unlink()
    assert said(await absent.observe()).pid == report(seen).pid


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("fail", "the library said no"),
        ("raise_anything", "ZeroDivisionError: by a library"),
        ("answer_hugely", "FrameError: a frame of "),
    ],
)
async def test_a_failed_read_is_told_and_connects_anew(
    worker: Make, trouble: Path, tmp_path: Path, how: str, error: str
) -> None:
    trouble.touch()
    failing = worker(Options(how=how, trouble=str(trouble), closed=str(tmp_path / "closed")))
    seen = await failing.observe()
    assert seen.outcome is PassOutcome.FAILED
    assert seen.error.startswith(error)
    assert report(seen).last_error == seen.error
    trouble.unlink()
    assert said(await failing.observe()).pid == report(seen).pid
    assert (tmp_path / "closed").read_text() == str(report(seen).pid)


async def test_facts_without_a_json_form_are_a_failed_read(worker: Make) -> None:
    seen = await worker(None, reader="support.worker_readers:OddReader").observe()
    assert (seen.outcome, seen.error[:10]) == (PassOutcome.FAILED, "TypeError:")


async def test_facts_of_another_shape_are_a_failed_pass(worker: Make) -> None:
    seen = await worker(facts_type=XidEvent).observe()
    assert (seen.outcome, seen.error) == (PassOutcome.FAILED, "the answer of the worker cannot be read: at is missing")


async def test_what_a_library_prints_does_not_reach_the_answers(worker: Make) -> None:
    printing = worker(Options(how="print_garbage"))
    assert [said(await printing.observe()).text for _ in range(3)] == ["printed"] * 3


async def test_a_worker_does_not_speak_to_the_service_manager(worker: Make) -> None:
    telling = worker(
        Options(how="tell_environment"),
        environment={**ENVIRONMENT, "NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1", "KEPT": "1"},
    )
    told = said(await telling.observe()).text.split()
    assert "KEPT" in told
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(told)


async def test_ctrl_c_in_the_terminal_does_not_end_a_worker(worker: Make) -> None:
    good = worker()
    pid = said(await good.observe()).pid
    os.kill(pid, signal.SIGINT)
    assert said(await good.observe()).pid == pid


async def test_a_spent_process_is_replaced_without_a_failed_pass(worker: Make) -> None:
    spent = worker(Options(how="spend"))
    first = await spent.observe()
    await exited(said(first).pid)
    second = await spent.observe()
    assert second.outcome is PassOutcome.OBSERVED
    assert said(second).pid != said(first).pid
    assert (report(second).restarts, report(second).crashes) == (1, 0)


# --- Deadlines -----------------------------------------------------------------------------------------------------


async def test_a_hanging_read_times_out_and_a_new_process_takes_over(worker: Make, trouble: Path) -> None:
    hanging = worker(Options(how="hang", trouble=str(trouble)), HASTY)
    pid = (await observed(hanging)).pid
    last = await hanging.observe()
    trouble.touch()
    seen = await hanging.observe()
    assert (seen.outcome, report(seen).missed, report(seen).timeouts) == (PassOutcome.TIMED_OUT, 1, 1)
    assert last.started <= (report(seen).silent_since or seen.finished) <= last.finished
    trouble.unlink()
    assert (await observed(hanging)).pid != pid
    after = report(await hanging.observe())
    assert (after.missed, after.silent_since, after.kills) == (0, None, 0)
    assert after.restarts >= 1
    await exited(pid)


async def test_missed_deadlines_add_up_until_an_answer(worker: Make, trouble: Path) -> None:
    hanging = worker(Options(how="hang", where="connect", trouble=str(trouble)), HASTY)
    pid = (await observed(hanging)).pid
    trouble.touch()
    os.kill(pid, signal.SIGKILL)
    seen = await seen_when(hanging, lambda worker: worker.missed == 3)
    assert seen.outcome is PassOutcome.TIMED_OUT
    assert "initialisation of the library" in seen.error
    assert report(seen).restarts == 1  # still within the deadline of the initialisation


async def test_a_first_initialisation_may_take_longer_than_a_pass(worker: Make) -> None:
    slow = worker(Options(how="hang", where="connect"), WorkerLimits(deadline=0.2, init_deadline=1.0, term_grace=0.5))
    first = await slow.observe()
    assert (first.outcome, report(first).missed) == (PassOutcome.TIMED_OUT, 0)
    assert report(first).silent_since == first.started
    ended = await seen_when(slow, lambda worker: worker.missed == 1)
    assert ended.error == f"worker {report(first).pid}: no initialisation of the library within 1 s"
    assert report(ended).silent_since == first.started


async def test_a_late_answer_is_not_taken_for_the_next_one(worker: Make, trouble: Path) -> None:
    late = worker(Options(how="answer_late", trouble=str(trouble)), WorkerLimits(deadline=0.4, term_grace=5.0))
    pid = (await observed(late)).pid
    trouble.touch()
    assert (await late.observe()).outcome is PassOutcome.TIMED_OUT
    trouble.unlink()
    said = await observed(late)
    assert (said.pid != pid, said.text) == (True, "")


async def test_a_call_that_ignores_sigterm_still_ends_with_its_stdin(worker: Make) -> None:
    hanging = worker(
        Options(how="hang_ignoring_sigterm"), WorkerLimits(deadline=1.0, init_deadline=1.0, term_grace=SOON)
    )
    pid = report(await seen_when(hanging, lambda worker: worker.missed)).pid
    assert pid
    await exited(pid)
    assert report(await hanging.observe()).kills == 0


# --- Ends that need force ------------------------------------------------------------------------------------------


async def test_kills_are_counted_and_beyond_the_budget_a_worker_is_left_alone(worker: Make, trouble: Path) -> None:
    trouble.touch()
    limits = WorkerLimits(deadline=0.5, term_grace=0.3, kills=1, backoff_first=0.0)
    deaf = worker(Options(how="hang_deaf", trouble=str(trouble)), limits)
    first = report(await seen_when(deaf, lambda worker: worker.missed)).pid
    parked = await seen_when(deaf, lambda worker: worker.parked)
    assert parked.outcome is PassOutcome.TIMED_OUT
    assert report(parked).kills == 1
    assert report(parked).pid != first
    again = await deaf.observe()
    assert (again.outcome, report(again).pid) == (PassOutcome.TIMED_OUT, report(parked).pid)
    assert str(report(parked).pid) in again.error

    os.kill(report(parked).pid or 0, signal.SIGKILL)  # an operator helps
    trouble.unlink()
    await observed(deaf)
    assert not report(await deaf.observe()).parked


def put_in_d_state(proc: Path, pid: int) -> None:
    """A tree like /proc in which the second thread of the process is in D state."""
    for thread, state in ((pid, "S"), (pid + 1, "D")):
        stat = proc / str(pid) / "task" / str(thread) / "stat"
        stat.parent.mkdir(parents=True)
        stat.write_text(f"{thread} (python (R) worker) {state} 1 2 3 4\n")


async def test_a_process_in_d_state_is_abandoned_and_another_one_answers(
    worker: Make, trouble: Path, tmp_path: Path
) -> None:
    """D state stands in a tree of files here; the next test and the tests of the whole daemon have a real one."""
    stuck = worker(Options(how="hang_deaf", trouble=str(trouble)), HASTY, proc=tmp_path)
    pid = (await observed(stuck)).pid
    put_in_d_state(tmp_path, pid)
    assert not report(await stuck.observe()).stuck
    trouble.touch()
    seen = await stuck.observe()
    assert (seen.outcome, report(seen).stuck, report(seen).abandoned) == (PassOutcome.TIMED_OUT, True, False)
    trouble.unlink()
    assert (await observed(stuck)).pid != pid
    after = report(await stuck.observe())
    assert (after.abandoned, after.stuck, after.kills) == (True, False, 0)
    assert Path(f"/proc/{pid}").exists()

    os.kill(pid, signal.SIGKILL)
    await exited(pid)
    assert not report(await stuck.observe()).abandoned


async def test_no_third_process_is_put_beside_two_in_d_state(worker: Make, trouble: Path) -> None:
    trouble.touch()
    stuck = worker(Options(how="hang_in_kernel", trouble=str(trouble)), HASTY)
    first = report(await seen_when(stuck, lambda worker: worker.stuck)).pid or 0
    assert in_uninterruptible_sleep(Path("/proc"), first)
    seen = await seen_when(stuck, lambda worker: worker.restarts == 1 and worker.pid == first)
    second = int(seen.error.split()[1].rstrip(":"))
    again = await seen_when(stuck, lambda worker: "no worker is started" in worker.last_error)
    assert f"(pid {first}, {second})" in again.error
    assert (again.outcome, report(again).abandoned, report(again).kills) == (PassOutcome.TIMED_OUT, True, 0)

    trouble.unlink()
    for pid in (first, second):
        os.kill(pid, signal.SIGKILL)
    await observed(stuck)


# --- Deaths --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "end"), [("segfault", "died by SIGSEGV"), ("leave", "exited with status 1: a word before leaving")]
)
async def test_a_crash_costs_one_pass(worker: Make, trouble: Path, how: str, end: str) -> None:
    crashing = worker(Options(how=how, trouble=str(trouble)))
    pid = said(await crashing.observe()).pid
    trouble.touch()
    seen = await crashing.observe()
    assert (seen.outcome, seen.error) == (PassOutcome.FAILED, f"worker {pid} {end}")
    assert (report(seen).pid, report(seen).crashes) == (None, 1)
    trouble.unlink()
    assert (await crashing.observe()).outcome is PassOutcome.OBSERVED


async def test_repeated_crashes_are_followed_by_a_pause(worker: Make) -> None:
    crashing = worker(Options(how="segfault", where="connect"), WorkerLimits(deadline=SOON, backoff_first=SOON))
    errors = [(await crashing.observe()).error for _ in range(3)]
    assert errors[2] == f"{errors[1]}; the next worker starts in {SOON:.0f} s"
    assert report(await crashing.observe()).crashes == 2


async def test_a_kill_from_outside_in_the_middle_of_a_pass_costs_that_pass(worker: Make, trouble: Path) -> None:
    hanging = worker(Options(how="hang", trouble=str(trouble)))
    pid = said(await hanging.observe()).pid
    trouble.touch()
    waiting = asyncio.create_task(hanging.observe())
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    seen = await waiting
    assert (seen.outcome, seen.error) == (PassOutcome.FAILED, f"worker {pid} died by SIGKILL")


async def test_a_death_between_two_passes_costs_none(worker: Make) -> None:
    good = worker()
    pid = said(await good.observe()).pid
    os.kill(pid, signal.SIGKILL)
    await exited(pid)
    seen = await good.observe()
    assert (seen.outcome, report(seen).crashes) == (PassOutcome.OBSERVED, 1)
    assert report(seen).last_error == f"worker {pid} died by SIGKILL"


async def test_a_process_that_cannot_be_started_is_a_failed_pass(worker: Make) -> None:
    seen = await worker(python="/nonexistent/python").observe()
    assert seen.outcome is PassOutcome.FAILED
    assert seen.error.startswith("cannot start a worker process: ")


async def test_a_reader_that_cannot_be_imported_is_told_with_its_reason(worker: Make) -> None:
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
    await exited(report(seen).pid or 0)


def test_options_that_a_pipe_does_not_take_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="options of a worker take"):
        Worker("test", "a:B", Said, limits=PATIENT, on_event=lambda _: None, options=Options(how="x" * 5000))


# --- Events --------------------------------------------------------------------------------------------------------


async def test_events_are_passed_on_while_a_call_hangs(worker: Make) -> None:
    events: list[HostEvent] = []
    hanging = worker(Options(how="hang", events=3), WorkerLimits(deadline=0.2, term_grace=0.5), on_event=events.append)
    async with asyncio.timeout(SOON):
        while len(events) < 3:
            assert (await hanging.observe()).outcome is PassOutcome.TIMED_OUT
    assert [event.xid for event in events[:3] if isinstance(event, XidEvent)] == [0, 1, 2]


async def test_a_flood_of_events_is_cut_and_counted_and_the_passes_go_on(worker: Make) -> None:
    events: list[HostEvent] = []
    limits = WorkerLimits(deadline=SOON, events_burst=100, events_per_second=0.0)
    flooding = worker(Options(events=20_000), limits, on_event=events.append)
    async with asyncio.timeout(SOON):
        while len(events) + flooding.events_dropped < 20_000:
            assert (await flooding.observe()).outcome is PassOutcome.OBSERVED
    assert len(events) == 100


async def test_a_fault_of_the_listener_does_not_harm_the_worker(worker: Make) -> None:
    faults: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context["exception"]))

    def faulty(event: HostEvent) -> None:
        raise RuntimeError(event)

    good = worker(Options(events=2), on_event=faulty)
    async with asyncio.timeout(SOON):
        while len(faults) < 2:
            assert (await good.observe()).outcome is PassOutcome.OBSERVED


# --- The end of the daemon -----------------------------------------------------------------------------------------


async def test_close_lets_the_reader_close_its_library(worker: Make, tmp_path: Path) -> None:
    good = worker(Options(closed=str(tmp_path / "closed")))
    pid = said(await good.observe()).pid
    await good.close()
    assert (tmp_path / "closed").read_text() == str(pid)


async def test_close_is_not_held_up_by_a_hanging_library(worker: Make) -> None:
    hanging = worker(Options(how="hang_deaf"), WorkerLimits(deadline=0.3, term_grace=0.3))
    pid = report(await hanging.observe()).pid or 0
    await hanging.close()
    await exited(pid)


async def test_a_cancelled_pass_leaves_its_answer_to_the_next(worker: Make, trouble: Path) -> None:
    slow = worker(Options(how="answer_late", trouble=str(trouble)))
    await slow.observe()
    trouble.touch()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(slow.observe(), 0.1)
    seen = await slow.observe()
    assert (said(seen).reads, said(seen).text) == (2, "late")


@pytest.fixture(params=["hang", "hang_ignoring_sigterm", "hang_locked"])
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "support.worker_parent", request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        yield process
        process.kill()


async def test_a_worker_ends_with_a_killed_daemon_even_while_its_library_hangs(parent: subprocess.Popen[bytes]) -> None:
    assert parent.stdout is not None
    pid = int(await asyncio.to_thread(parent.stdout.readline))
    parent.kill()
    await vanished(pid)


def test_a_worker_whose_daemon_is_dead_already_does_nothing() -> None:
    command = [sys.executable, "-m", "gpuwarden_collectors.worker_process", "support.worker_readers:Reader", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.wait(SOON) == 0
        assert process.stdout is not None
        assert process.stdout.read() == b""
