"""Recording beside a daemon: through it, so that the GPUs are not read twice; it writes no file and waits for nobody."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.base.peer import Peer
from gpuwarden.control.record import BYTES_MOST, FORGOTTEN, SESSIONS_MOST, Spool, record_verbs
from gpuwarden.engine.engine import Engine
from gpuwarden.health.model import Health
from gpuwarden.health.view import Rules
from gpuwarden.publish.sockets.control import VerbError
from gpuwarden.replay.replay import Replay, Tally
from gpuwarden.trace.records import Acknowledged, Began, ErrorsChanged, HostEventsSeen, Passed, Record, RulesChanged
from gpuwarden_collectors.facts import NvmlFacts, Stamp
from support import job_world
from support.commands import COMMAND, SMALL_FILES, environment
from support.daemons import FakeHost, children, slots
from support.hosts import Host
from support.traces import read, reported, so_far, story

ROOT = Peer(1, 0, frozenset())


# --- the command


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path, gpus=2)


def record(host: FakeHost, *words: str, limited: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    command = [*limited, *COMMAND, "record", "--config", str(host.config), "-o", str(host.folder / "t"), *words]
    variables = environment(host.folder, host.fake.environment)
    with (host.folder / "stderr").open("w") as output:
        return subprocess.Popen(command, env=variables, stderr=output)


@pytest.mark.slow
def test_what_the_daemon_sees_is_recorded_and_judged_the_same_and_nobody_else_reads_the_gpus(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        process = record(host)
        daemon.wait(lambda: "began" in so_far(host.folder / "t"), "the recording")
        assert children(process.pid) == []
        host.xid(1, 95)
        daemon.wait_status("failure", "xid.95")
        code = host.order("ack", f"xid.95@gpu/{slots(2)[1]}").returncode
        assert code in (0, 64)
        if code == 0:  # else this might come between the end of the recording and the question below
            daemon.wait_status("healthy")
        daemon.wait(lambda: "XidEvent" in so_far(host.folder / "t"), "the Xid in the trace")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        health = Health(daemon.heartbeat()["status"])
    records = read(host.folder / "t")
    assert {Began, HostEventsSeen, Passed} <= {type(entry) for entry in records}
    assert ("raised", f"xid.95@gpu/{slots(2)[1]}") in {(kind, about) for _, kind, about in reported(records)}
    assert judged(records).last is not None
    assert judged(records).last.verdict.health is health  # type: ignore[union-attr]


def judged(records: list[Record]) -> Tally:
    replay, tally = Replay(), Tally()
    for entry in records:
        tally.add(entry, replay.take(entry))
    return tally


@pytest.mark.slow
def test_a_recording_is_anonymised(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        process = record(host, "--anonymise")
        daemon.wait(lambda: "GPU-" in so_far(host.folder / "t"), "a pass in the trace")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        text = so_far(host.folder / "t")
    assert read(host.folder / "t")
    header = json.loads(text.splitlines()[0])
    assert header["anonymised"] is True
    assert "node7" not in text


@pytest.mark.slow
def test_a_full_disk_ends_the_recording_and_the_daemon_goes_on(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        process = record(host, limited=SMALL_FILES)
        assert process.wait(60) == 73
        assert "cannot write" in (host.folder / "stderr").read_text()
        (host.folder / "t").unlink()
        for _ in range(SESSIONS_MOST + 1):  # it noticed that nobody listens any more
            assert record(host, "--for", "10ms").wait(60) == 0
            (host.folder / "t").unlink()
        daemon.wait_status("healthy")


@pytest.mark.slow
def test_a_daemon_that_ends_leaves_a_trace_that_can_be_replayed(host: FakeHost) -> None:
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        process = record(host)
        daemon.wait(lambda: '"pass"' in so_far(host.folder / "t"), "a pass in the trace")
        assert daemon.stop() == 0
        assert process.wait(60) in (69, 75)
    assert read(host.folder / "t")


@pytest.mark.slow
def test_without_a_daemon_the_command_reads_for_itself(host: FakeHost) -> None:
    process = record(host)
    job_world.until(lambda: "inforom_valid" in so_far(host.folder / "t"), "the first pass of NVML")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    records = read(host.folder / "t")
    assert {Began, Passed} <= {type(entry) for entry in records}
    facts = (entry.observation.facts for entry in records if isinstance(entry, Passed))
    first = next(nvml for nvml in facts if isinstance(nvml, NvmlFacts))
    assert [gpu.readings.inforom_valid for gpu in first.gpus] == [1, 1]  # all that there is, in the first pass


@pytest.mark.slow
def test_no_file_takes_the_place_of_another(host: FakeHost) -> None:
    (host.folder / "t").write_text("mine")
    with host.daemon() as daemon:
        daemon.wait_status("healthy")
        process = record(host)
        assert process.wait(60) == 73
    assert (host.folder / "t").read_text() == "mine"


# --- the daemon's side


class Bench:
    """An engine with its verb, on a clock of its own."""

    def __init__(self) -> None:
        self.now = Stamp(1000.0, 1.8e9)
        self.engine = Engine("boot-1", Rules())
        self._verb = record_verbs(self, lambda: self.now)["record"]

    def ask(self, **arguments: Any) -> Any:
        return asyncio.run(self._verb_of(arguments))

    async def _verb_of(self, arguments: dict[str, Any]) -> Any:
        return await self._verb(arguments, ROOT)

    def later(self, seconds: float) -> None:
        self.now = Stamp(self.now.boottime + seconds, self.now.wall + seconds)

    def take(self, entry: Record) -> None:
        """Take the record as it came in the story, and set the clock to its time."""
        self.now = entry.at
        match entry:
            case Passed(observation):
                self.engine.observed(observation)
            case HostEventsSeen(events=events):
                self.engine.ingest(events, self.now)

    def passes(self) -> None:
        """Let the bus be read now."""
        self.engine.observed(replace(Host(1).pci(), started=self.now, finished=self.now))


def test_the_pieces_together_are_a_trace_of_what_came_to_the_desk(tmp_path: Path) -> None:
    bench = Bench()
    began, *records = story("Xid 95", 60.0)
    bench.now = began.at
    first = bench.ask()
    text = first["trace"]
    for entry in records:
        bench.take(entry)
        text += bench.ask(session=first["session"])["trace"]
    bench.engine.set_errors({"ledger": "full"}, bench.now)
    bench.engine.rules = Rules(missing_grace=60.0)
    for _ in range(4):  # until it is no longer seen
        bench.engine.step(bench.now)
        bench.later(4.0)
    bench.engine.acknowledge("xid.95@gpu/0000:11:00.0", "root", bench.now)
    while (piece := bench.ask(session=first["session"], end=True))["more"]:
        text += piece["trace"]
    (tmp_path / "t").write_text(text + piece["trace"])
    kinds = [type(entry) for entry in read(tmp_path / "t")]
    assert kinds[0] is Began
    assert set(kinds) == {Began, Passed, HostEventsSeen, ErrorsChanged, RulesChanged, Acknowledged}
    assert bench.engine.listeners == []


def test_who_does_not_ask_any_more_is_forgotten() -> None:
    bench = Bench()
    session = bench.ask()["session"]
    bench.later(FORGOTTEN - 1)
    bench.passes()
    assert len(bench.engine.listeners) == 1
    bench.later(2.0)
    bench.passes()
    assert bench.engine.listeners == []
    with pytest.raises(VerbError, match="there is no recording"):
        bench.ask(session=session)


def test_there_are_no_more_recordings_than_can_be_afforded() -> None:
    bench = Bench()
    for _ in range(SESSIONS_MOST):
        session = bench.ask()["session"]
    with pytest.raises(VerbError, match="are already in progress"):
        bench.ask()
    bench.ask(session=session, end=True)
    assert bench.ask()["session"] != session


@pytest.mark.parametrize("arguments", [{"session": 7}, {"session": "x"}, {"end": "yes"}, {"session": ["a"]}])
def test_a_request_that_means_nothing_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(VerbError):
        Bench().ask(**arguments)


def test_the_buffer_for_a_slow_client_is_bounded_and_its_overflow_is_an_error() -> None:
    spool = Spool(1000)
    for _ in range(10):
        spool.write(b"x" * 99 + b"\n")
    with pytest.raises(OSError, match="not fetched fast enough"):
        spool.write(b"y\n")
    assert spool.take(150).count(b"\n") == 2
    assert spool.write(b"y" * 199) == 199
    assert BYTES_MOST <= 8 << 20


def test_a_listener_that_fails_harms_nobody() -> None:
    bench = Bench()

    def broken(record: Record) -> None:
        raise RuntimeError(record)

    bench.engine.listeners.append(broken)
    host = Host(1)
    assert bench.engine.observed(host.nvml()) is True
    bench.engine.ingest([host.xid(0, 95)], bench.now)
    assert [event.kind for event in bench.engine.step(bench.now).events].count("xid") == 1
