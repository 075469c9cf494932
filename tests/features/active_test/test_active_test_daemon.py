"""`gpuwarden test` beside a running daemon: it knows of the test, judges its results, and ends it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from support.active_test_hosts import LONG, PASSES, WRONG_ONCE, ActiveHost, ended, gone, wait
from support.daemons import PATIENCE, RunningDaemon
from support.fake_nvml_library import uuid_of


@pytest.fixture
def daemon(host: ActiveHost) -> Iterator[RunningDaemon]:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        yield daemon


@pytest.mark.slow
def test_an_xid_of_a_worker_s_first_moment_is_of_the_test_and_not_of_a_job(
    host: ActiveHost, daemon: RunningDaemon
) -> None:
    """The daemon knows the worker's process number before the worker touches the driver."""
    line, read = "NVRM: Xid (PCI:0000:28:00): 31, pid=PID, name=gw-test, Ch 00000008", host.folder / "read"
    steps = [{"ask": "start"}, {"kernel_line": [str(host.kmsg), line]}, {"wait": str(read)}]
    host.script({"*": PASSES, uuid_of(1): [*steps, *PASSES]})
    process = host.begin("--json", "--i-know-nobody-is-here")
    daemon.wait(lambda: re.search(rb'"test_xid"|"xid_seen"|"xid"', daemon.get("/v1/events")[1]), "the line")
    read.touch()
    code, document = ended(process)
    assert code == 3
    assert [gpu["text"] for gpu in document["gpus"]] == ["", "Xid 31 of the test's own process"]
    assert daemon.is_now("healthy")


@pytest.mark.slow
def test_an_order_to_the_daemon_ends_a_running_test(host: ActiveHost, daemon: RunningDaemon) -> None:
    """Further orders end one in tests/runtime/test_daemon_active_test.py."""
    host.script({"*": LONG})
    process = host.begin("--json", "--i-know-nobody-is-here")
    wait(lambda: len(host.workers) == 2 and host.note(1)["answers"], "both workers in their last phase")
    done = host.order("notify-termination", "--in", "300", "--reason", "the machine goes")
    assert done.returncode == 0, done.stderr
    code, document = ended(process)
    assert (code, {gpu["obstacle"] for gpu in document["gpus"]}) == (3, {"interrupted"})
    assert "the end of this machine is announced" in document["gpus"][0]["text"]
    assert all(gone(host.note(gpu)["pid"]) for gpu in (0, 1))
    assert daemon.process.poll() is None


@pytest.mark.slow
def test_a_test_goes_on_when_the_daemon_is_killed_and_says_that_nothing_was_kept(
    host: ActiveHost, daemon: RunningDaemon
) -> None:
    killed = host.folder / "killed"
    host.script({"*": [{"write": {"phase": "int8"}}, {"wait": str(killed)}, *PASSES]})
    process = host.begin("--json", "--i-know-nobody-is-here")
    host.wait_note(1)
    daemon.kill()
    killed.touch()
    code, document = ended(process)
    assert (code, document["verdict"]) == (0, "nothing_found")
    assert "judged without earlier results of these GPUs, and not recorded: no daemon answers" in document["notes"][0]


@pytest.mark.slow
def test_a_result_is_not_lost_when_the_daemon_restarts_as_it_is_handed_in(
    host: ActiveHost, daemon: RunningDaemon
) -> None:
    host.more["ACTIVE_TEST_RESTART"] = str(PATIENCE)  # a busy host takes its time to start a daemon
    killed = host.folder / "killed"
    wrong = [*PASSES[:-1], {"write": {"measured": WRONG_ONCE}}]
    host.script({"*": PASSES, uuid_of(1): [{"write": {"phase": "int8"}}, {"wait": str(killed)}, *wrong]})
    process = host.begin("--json", "--i-know-nobody-is-here")
    host.wait_note(1)
    daemon.kill()
    killed.touch()
    wait(lambda: host.note(1)["answers"], "the last phase, without a daemon")
    with host.daemon() as next_daemon:
        code, document = ended(process)
        assert (code, document["verdict"], document["notes"]) == (2, "failure", [])
        next_daemon.wait_status("failure", "test_failed.compute")


@pytest.mark.slow
def test_a_daemon_that_starts_after_a_test_knows_of_it_and_ends_it(host: ActiveHost) -> None:
    """The test of a node began while its package was replaced; then its machine is to go."""
    host.script({"*": LONG})
    process = host.begin("--json", "--i-know-nobody-is-here")
    host.wait_note(1)
    with host.daemon() as daemon:
        daemon.wait(lambda: daemon.status()["tests"]["running"], "the test to be known")
        assert host.order("notify-termination", "--in", "300", "--reason", "the machine goes").returncode == 0
        code, document = ended(process)
        assert (code, {gpu["obstacle"] for gpu in document["gpus"]}) == (3, {"interrupted"})
        assert "the end of this machine is announced" in document["gpus"][0]["text"]
