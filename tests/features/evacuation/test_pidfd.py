"""Signals to real processes: each is sent once, and nobody dies or is signalled who was not meant."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from threading import get_native_id

import pytest

from gpuwarden.features.evacuation.pidfd import Order, Result, send, send_all
from support.ranks import NOBODY, Rank, rank, traced

PATIENCE = 60.0
ROOT_ONLY = pytest.mark.needs("root")


def order(to: Rank, name: str = "TERM", uid: int | None = None) -> Order:
    return Order(pid=to.pid, started=to.started, uid=os.geteuid() if uid is None else uid, signal=name)


@pytest.mark.parametrize("name", ["TERM", "USR1", "USR2", "HUP"])
def test_who_catches_a_signal_is_sent_it_once(name: str) -> None:
    with rank("TERM,USR1,USR2,HUP") as target:
        sent = send(order(target, name))
        assert (sent.result, sent.text, sent.pid) == (Result.SENT, "", target.pid)
        assert target.received() == name
        assert target.received_all() == []


def test_a_process_that_would_die_of_the_signal_is_not_sent_it() -> None:
    with rank("USR1") as target:
        sent = send(order(target, "TERM"))
        assert sent.result is Result.DEAF
        assert "TERM" in sent.text
        assert send(order(target, "USR1")).result is Result.SENT  # it lives
        assert target.received() == "USR1"


def test_a_handler_that_goes_with_the_first_signal_is_not_sent_a_second() -> None:
    """NeMo's goes so: a second SIGTERM would kill it in the midst of its save."""
    with rank("TERM", "once") as target:
        assert send(order(target)).result is Result.SENT
        assert target.received() == "TERM"
        assert send(order(target)).result is Result.DEAF
        assert target.process.poll() is None


def test_a_number_that_is_another_process_s_by_now_is_not_signalled() -> None:
    with rank() as target:
        assert send(replace(order(target), started=target.started - 1)).result is Result.REPLACED
        assert target.received_all() == []


def test_what_has_ended_is_gone_before_and_after_it_is_reaped() -> None:
    with rank() as target:
        ordered = order(target)
        target.process.kill()
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
        assert send(ordered).result is Result.GONE
        target.process.wait()
        assert send(ordered).result is Result.GONE


@pytest.mark.parametrize("name", ["KILL", "STOP", "CONT", "INT", "SIGTERM", "", "9", "RTMIN"])
def test_no_other_signal_is_ever_sent(name: str) -> None:
    with rank("TERM,INT") as target:
        assert send(order(target, name)).result is Result.REFUSED
        assert target.received_all() == []


@pytest.mark.parametrize(
    "pid", [os.getpid(), 1, 0, -1, -os.getpid()], ids=["this", "first", "own group", "all", "a group"]
)
def test_neither_this_daemon_nor_the_first_process_nor_any_group_is_signalled(pid: int) -> None:
    assert send(Order(pid=pid, started=0, uid=os.geteuid(), signal="TERM")).result is Result.REFUSED


@pytest.mark.parametrize("pid", [2**22 + 1, 2**31, 2**80])
def test_a_pid_that_no_process_can_have_is_not_an_error(pid: int) -> None:
    assert send(Order(pid=pid, started=0, uid=0, signal="TERM")).result in (Result.GONE, Result.FAILED)


def test_a_thread_is_no_process() -> None:
    with rank() as target:
        script = "import os, threading, time; t = threading.Thread(target=time.sleep, args=(100,)); t.start()\n"
        script += "print(t.native_id, flush=True)"
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            thread = int(process.stdout.readline())
            assert send(replace(order(target), pid=thread)).result is not Result.SENT
            process.kill()


def test_a_process_under_a_debugger_is_left_to_it() -> None:
    with rank() as target, traced(target.pid):
        sent = send(order(target))
    assert sent.result is Result.TRACED
    assert str(get_native_id()) in sent.text or str(os.getpid()) in sent.text


@ROOT_ONLY
def test_a_process_is_signalled_as_the_user_s_that_it_was_listed_under_and_no_other_s() -> None:
    with rank(uid=NOBODY) as target:
        for uid in (0, 1000):
            sent = send(order(target, uid=uid))
            assert sent.result is Result.FOREIGN
            assert str(NOBODY) in sent.text
        assert send(order(target, uid=NOBODY)).result is Result.SENT
        assert target.received() == "TERM"


@ROOT_ONLY
def test_a_daemon_without_the_right_to_signal_reports_it() -> None:
    script = textwrap.dedent("""
        import os, sys
        from gpuwarden.features.evacuation.pidfd import Order, send
        pid, started = map(int, sys.argv[1:])
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        print(send(Order(pid=pid, started=started, uid=0, signal="TERM")).result)
    """)
    with rank() as target:
        command = [sys.executable, "-c", script, str(target.pid), str(target.started)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
        assert done.stdout.strip() == "not_permitted"
        assert target.received_all() == []


@ROOT_ONLY
def test_a_rank_in_another_pid_namespace_is_reached_by_its_number_here() -> None:
    with rank(prefix=("unshare", "--pid", "--fork", "--kill-child")) as target:
        assert target.pid != target.process.pid
        assert send(order(target)).result is Result.SENT
        assert target.received() == "TERM"


def test_a_process_that_cannot_be_read_is_not_signalled(tmp_path: Path) -> None:
    with rank() as target:
        sent = send(order(target), proc=tmp_path)
        assert (sent.result, target.received_all()) == (Result.NOT_PERMITTED, [])
        assert "hidepid" in sent.text


async def test_each_of_many_gets_its_own_signal_and_its_own_result() -> None:
    with rank("TERM") as first, rank("USR1") as second, rank("") as third:
        orders = (order(first), order(second, "USR1"), order(third))
        sent = await send_all(orders, deadline=PATIENCE)
        assert [outcome.result for outcome in sent] == [Result.SENT, Result.SENT, Result.DEAF]
        assert [(outcome.pid, outcome.started) for outcome in sent] == [(o.pid, o.started) for o in orders]
        assert (first.received(), second.received()) == ("TERM", "USR1")


async def test_no_receivers_need_no_wait() -> None:
    assert await send_all(()) == ()


@pytest.mark.slow
async def test_a_call_that_hangs_holds_up_neither_the_loop_nor_the_answer(tmp_path: Path) -> None:
    with rank() as hanging, rank() as other:
        (tmp_path / str(hanging.pid)).mkdir()
        pipe = tmp_path / str(hanging.pid) / "stat"
        os.mkfifo(pipe)
        sent = await send_all([order(hanging), order(other)], deadline=3.0, proc=tmp_path)
        writer = os.open(pipe, os.O_WRONLY)  # the thread is there: else this would block
        os.close(writer)
        assert [outcome.result for outcome in sent] == [Result.UNKNOWN, Result.FAILED]
        assert (hanging.received_all(), other.received_all()) == ([], [])
