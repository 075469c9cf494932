"""Passes of real worker processes: answers, deadlines, events."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuwarden_collectors.base import PassOutcome, WorkerReport
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.event_facts import HostEvent, XidEvent
from gpuwarden_collectors.worker.frames import Frame, FrameBuffer, Kind, pack
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


# --- Answers -------------------------------------------------------------------------------------------------------


async def test_one_process_answers_every_pass(worker: Make) -> None:
    good = worker()
    first, second = await good.observe(), await good.observe()
    assert first.outcome is second.outcome is PassOutcome.OBSERVED
    assert first.started <= first.finished <= second.started
    assert (facts_of(first).pid, facts_of(first).reads, facts_of(second).reads) == (facts_of(second).pid, 1, 2)
    assert report(second) == WorkerReport(pid=facts_of(second).pid, ever_answered=True)


def test_a_worker_sends_only_what_changed_since_the_facts_that_are_held() -> None:
    options = {"options_type": "support.worker_readers:Options", "options": to_wire(Options())}
    command = [
        sys.executable,
        "-m",
        "gpuwarden_collectors.worker.process",
        "support.worker_readers:Reader",
        str(os.getpid()),
        "-1",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(ENVIRONMENT)) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        held = (None, 1, 1, 3)  # the second answer was not understood
        asked = [pack(Kind.ASK, number, {"held": sequence, "hung": []}) for number, sequence in enumerate(held, 1)]
        process.stdin.write(pack(Kind.START, value=options) + b"".join(asked))
        process.stdin.flush()
        buffer, frames = FrameBuffer(), list[Frame]()
        while len(frames) < 1 + len(held):
            frames += buffer.feed(os.read(process.stdout.fileno(), 65536))
        process.stdin.close()
    answers = [(frame.kind, frame.sequence, frame.value()) for frame in frames if frame.kind is not Kind.CONNECTED]
    pid = process.pid
    assert answers == [
        (Kind.FACTS, 1, {"pid": pid, "reads": 1}),
        (Kind.CHANGES, 2, {"reads": 2}),
        (Kind.FACTS, 3, {"pid": pid, "reads": 3}),
        (Kind.CHANGES, 4, {"reads": 4}),
    ]


async def test_after_a_failed_pass_the_facts_are_whole(worker: Make, trigger: Path) -> None:
    failing = worker(Options(how="fail", trigger=str(trigger)))
    first = facts_of(await failing.observe())
    trigger.touch()
    assert (await failing.observe()).outcome is PassOutcome.FAILED
    trigger.unlink()
    assert [(each.pid, each.reads) for each in (facts_of(await failing.observe()), facts_of(await failing.observe()))] == [
        (first.pid, 3), (first.pid, 4),
    ]  # fmt: skip


async def test_a_reader_that_finds_no_source_is_absent_and_asked_again_by_the_same_process(
    worker: Make, trigger: Path
) -> None:
    trigger.touch()
    absent = worker(Options(how="be_absent", where="connect", trigger=str(trigger)))
    seen = await absent.observe()
    assert (seen.outcome, seen.error) == (PassOutcome.ABSENT, "there is no such library here")
    assert report(seen).silent_since is None
    trigger.unlink()
    assert facts_of(await absent.observe()).pid == report(seen).pid


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("fail", "the library refused"),
        ("raise_anything", "ZeroDivisionError: by a library"),
        ("answer_hugely", "FrameError: a frame of "),
    ],
)
async def test_a_failed_read_is_reported_and_the_reader_connects_again(
    worker: Make, trigger: Path, tmp_path: Path, how: str, error: str
) -> None:
    trigger.touch()
    failing = worker(Options(how=how, trigger=str(trigger), closed=str(tmp_path / "closed")))
    seen = await failing.observe()
    assert seen.outcome is PassOutcome.FAILED
    assert seen.error.startswith(error)
    assert report(seen).last_error == seen.error
    trigger.unlink()
    assert facts_of(await failing.observe()).pid == report(seen).pid
    assert (tmp_path / "closed").read_text() == str(pid_of(seen))


async def test_facts_without_a_json_form_are_a_failed_read(worker: Make) -> None:
    seen = await worker(None, reader="support.worker_readers:OddReader").observe()
    assert (seen.outcome, seen.error[:10]) == (PassOutcome.FAILED, "TypeError:")


async def test_facts_of_another_shape_are_a_failed_pass(worker: Make) -> None:
    seen = await worker(facts_type=XidEvent).observe()
    assert (seen.outcome, seen.error) == (PassOutcome.FAILED, "the answer of the worker cannot be read: at is missing")


async def test_what_a_library_prints_does_not_reach_the_answers(worker: Make) -> None:
    printing = worker(Options(how="print_garbage"))
    assert [facts_of(await printing.observe()).text for _ in range(3)] == ["printed"] * 3


async def test_a_worker_does_not_speak_to_the_service_manager(worker: Make) -> None:
    reporting = worker(
        Options(how="print_environment"),
        environment={**ENVIRONMENT, "NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1", "KEPT": "1"},
    )
    variables = facts_of(await reporting.observe()).text.split()
    assert "KEPT" in variables
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC"} & set(variables)


async def test_ctrl_c_in_the_terminal_does_not_end_a_worker(worker: Make) -> None:
    good = worker()
    pid = facts_of(await good.observe()).pid
    os.kill(pid, signal.SIGINT)
    assert facts_of(await good.observe()).pid == pid


async def test_a_spent_process_is_replaced_without_a_failed_pass(worker: Make) -> None:
    spent = worker(Options(how="spend"))
    first = await spent.observe()
    await exited(facts_of(first).pid)
    second = await spent.observe()
    assert second.outcome is PassOutcome.OBSERVED
    assert facts_of(second).pid != facts_of(first).pid
    assert (report(second).restarts, report(second).crashes) == (1, 0)


# --- Deadlines -----------------------------------------------------------------------------------------------------


async def test_a_hanging_read_times_out_and_a_new_process_takes_over(worker: Make, trigger: Path) -> None:
    hanging = worker(Options(how="hang", trigger=str(trigger)), HASTY)
    pid = (await observed(hanging)).pid
    last = await hanging.observe()
    trigger.touch()
    seen = await hanging.observe()
    assert (seen.outcome, report(seen).missed, report(seen).timeouts) == (PassOutcome.TIMED_OUT, 1, 1)
    assert last.started <= (report(seen).silent_since or seen.finished) <= last.finished
    trigger.unlink()
    assert (await observed(hanging)).pid != pid
    after = report(await hanging.observe())
    assert (after.missed, after.silent_since, after.kills) == (0, None, 0)
    assert after.restarts >= 1
    await exited(pid)


@pytest.mark.slow
async def test_missed_deadlines_add_up_until_an_answer(worker: Make, trigger: Path) -> None:
    hanging = worker(Options(how="hang", where="connect", trigger=str(trigger)), HASTY)
    pid = (await observed(hanging)).pid
    trigger.touch()
    os.kill(pid, signal.SIGKILL)
    seen = await seen_when(hanging, lambda worker: worker.missed == 3)
    assert seen.outcome is PassOutcome.TIMED_OUT
    assert "initialisation of the library" in seen.error
    assert report(seen).restarts == 1  # still within the deadline of the initialisation


async def test_a_first_initialisation_may_take_longer_than_a_pass(worker: Make) -> None:
    hangs = Options(how="hang", where="connect")
    slow = worker(hangs, WorkerLimits(deadline=0.2, init_deadline=SOON, term_grace=0.5))
    first = await slow.observe()
    assert (first.outcome, report(first).missed) == (PassOutcome.TIMED_OUT, 0)
    assert report(first).silent_since == first.started
    too_slow = worker(hangs, WorkerLimits(deadline=0.2, init_deadline=1.0, term_grace=0.5))
    first = ended = await too_slow.observe()
    if not report(first).missed:  # on a busy machine its first pass may take as long as it has
        ended = await seen_when(too_slow, lambda worker: worker.missed == 1)
    assert re.fullmatch(r"worker \d+: no initialisation of the library within 1 s", ended.error)
    assert report(ended).silent_since == first.started


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A file; while it exists, `python` beside it does not begin to load a program, as on a host without time for it."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nwhile [ -e "$0.held" ]; do sleep 0.05; done\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return tmp_path / "python.held"


async def test_a_process_that_has_not_loaded_its_code_is_no_silence_of_its_library(worker: Make, held: Path) -> None:
    probe = worker(limits=WorkerLimits(deadline=0.2, init_deadline=SOON), python=str(held.with_suffix("")))
    pid = (await observed(probe)).pid
    held.touch()
    os.kill(pid, signal.SIGKILL)
    await exited(pid)
    passes = [await probe.observe() for _ in range(4)]
    assert "has not started yet" in passes[-1].error
    assert report(passes[-1]).missed == 0
    held.unlink()
    assert (await observed(probe)).pid != pid


async def test_a_process_that_does_not_load_its_code_in_time_has_failed(
    worker: Make, held: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwarden_collectors.worker.worker._LOADED_WITHIN", 0.5)
    held.touch()
    limits = WorkerLimits(deadline=0.2, init_deadline=SOON, term_grace=SOON)
    probe = worker(limits=limits, python=str(held.with_suffix("")))
    async with asyncio.timeout(SOON):
        while (seen := await probe.observe()).outcome is not PassOutcome.FAILED:
            assert report(seen).missed == 0
    assert "has not started yet" in seen.error
    assert report(seen).missed == 0


async def test_a_late_answer_is_not_taken_for_the_next_one(worker: Make, trigger: Path) -> None:
    late = worker(Options(how="answer_late", trigger=str(trigger)), WorkerLimits(deadline=0.4, term_grace=5.0))
    pid = (await observed(late)).pid
    trigger.touch()
    assert (await late.observe()).outcome is PassOutcome.TIMED_OUT
    trigger.unlink()
    following = await observed(late)
    assert (following.pid != pid, following.text) == (True, "")


@pytest.mark.slow
async def test_a_call_that_ignores_sigterm_still_ends_with_its_stdin(worker: Make) -> None:
    hanging = worker(
        Options(how="hang_ignoring_sigterm"), WorkerLimits(deadline=1.0, init_deadline=1.0, term_grace=SOON)
    )
    pid = pid_of(await seen_when(hanging, lambda worker: worker.missed))
    await exited(pid)
    assert report(await hanging.observe()).kills == 0


# --- Events --------------------------------------------------------------------------------------------------------


async def test_events_are_passed_on_while_a_call_hangs(worker: Make) -> None:
    events: list[HostEvent] = []
    hanging = worker(Options(how="hang", events=3), WorkerLimits(deadline=0.2, term_grace=0.5), on_event=events.append)

    def passed_on() -> set[int]:
        return {event.xid for event in events if isinstance(event, XidEvent)}

    async with asyncio.timeout(SOON):
        while len(passed_on()) < 3:  # a worker of a busy machine may be ended before it has sent all
            assert (await hanging.observe()).outcome is PassOutcome.TIMED_OUT
    assert passed_on() == {0, 1, 2}


async def test_a_flood_of_events_is_cut_and_counted_and_the_passes_go_on(worker: Make) -> None:
    events: list[HostEvent] = []
    limits = WorkerLimits(deadline=SOON, events_burst=100, events_every=3600.0)
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
