"""The test before a return, carried out: what counts as a try, and what does not."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuwarden.engine.journal import Step
from gpuwarden.features.active_test.gate import runner as return_gate
from gpuwarden.features.active_test.gate.requirement import PassedTest
from gpuwarden.features.active_test.gate.rules import HINDERED_FOR, Assessed, GateState
from gpuwarden.features.active_test.gate.runner import GateOptions, ReturnGate
from gpuwarden.features.active_test.gate.state import Gate
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.facts import Stamp
from support.snapshots import gpu_verdict, slot

NOW = Stamp(1_000.0, 2_000_000.0)
SOON = 60.0


class GateHost:
    """One GPU that failed, and a service that finds all its GPUs busy. `probe`: what it answers to that. `commits`: whether each commit of the ledger succeeds; then all do."""

    def __init__(self, socket: Path, commits: Iterable[bool]) -> None:
        self.kinds: list[str] = []
        self.tests = 0
        self.probe: dict[str, object] = {"impossible": ""}
        self.report: dict[str, object] = {"obstacle": "busy", "text": "a job"}
        self.now = NOW
        self.state: PassedTest = PassedTest(Level.QUICK)
        self.able = False
        self.probed: Callable[[], object] = lambda: None
        """Called once a probe is answered, before any test is requested."""
        self._commits: Iterator[bool] = iter(commits)
        self._append(
            [
                Event(
                    kind=EventKind.GATE_WANTED, at=NOW, boot_id="b1", data=write(Gate(failures=f"xid.79@gpu/{slot(3)}"))
                )
            ]
        )
        self._stepped = asyncio.Event()
        self.gate = ReturnGate(
            GateOptions(socket=socket, within=SOON), append=self._append, gate=lambda: self.state.gate, level=lambda: self.state.asked,
            gpus=lambda: (gpu_verdict(3),), changed=self._stepped.set, committed=self._committed, boot_id="b1", clock=lambda: self.now,
            could_test=lambda: self.able,
        )  # fmt: skip

    @property
    def tries(self) -> int:
        assert self.state.gate is not None
        return self.state.gate.tries

    async def turn(self) -> None:
        """A test is due; until the gate asks for a step, as it does at the end of its turn."""
        self._stepped.clear()
        self.gate.step(Assessed(GateState.DUE, "a test must pass"))
        async with asyncio.timeout(SOON):
            await self._stepped.wait()

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(SOON):
            while not condition():
                await self.turn()

    def passes(self, seconds: float) -> None:
        self.now = Stamp(self.now.boottime + seconds, self.now.wall + seconds)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        verb = json.loads(await reader.readline())["verb"]
        self.tests += verb == "test"
        if verb == "probe":
            self.probed()
        writer.write(json.dumps(self.probe if verb == "probe" else self.report).encode())
        writer.close()

    def _append(self, events: Iterable[Event], step: Step = Step.NOW) -> None:
        for event in events:
            self.kinds.append(str(event.kind))
            self.state = self.state.after(event)
            self.able = self.able or event.kind == EventKind.GATE_ABLE

    async def _committed(self) -> bool:
        return next(self._commits, True)


@asynccontextmanager
async def gate_host(folder: Path, *commits: bool) -> AsyncIterator[GateHost]:
    folder.mkdir(exist_ok=True)
    host = GateHost(folder / "test.sock", commits)
    server = await asyncio.start_unix_server(host.answer, folder / "test.sock")
    try:
        yield host
    finally:
        await host.gate.stop()
        server.close()


async def test_a_test_that_gave_no_verdict_is_a_try(tmp_path: Path) -> None:
    async with gate_host(tmp_path) as host:
        await host.turn()
        assert (host.tests, host.tries) == (1, 1)
        assert host.kinds == ["gate_wanted", "gate_able", "gate_begun", "gate_ended"]


async def test_no_test_is_begun_and_none_is_recorded_while_the_ledger_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(return_gate, "WRITTEN_AGAIN", 0.01)
    async with gate_host(tmp_path, False, False) as host:
        await host.turn()
        await host.turn()
        assert (host.tests, host.tries, host.kinds) == (0, 0, ["gate_wanted"])
        await host.turn()
        assert (host.tests, host.tries) == (1, 1)


async def test_a_test_that_could_not_be_recorded_is_not_begun_and_is_no_try(tmp_path: Path) -> None:
    async with gate_host(tmp_path, True, False) as host:
        await host.turn()
        assert (host.tests, host.tries) == (0, 0)
        assert host.kinds == ["gate_wanted", "gate_able", "gate_begun", "gate_ended"]
        assert host.state.gate is not None
        assert (host.state.gate.run, "ledger" in host.state.gate.text) == ("", True)


@pytest.mark.parametrize(
    ("other", "kinds", "result"),
    [
        (5, ["gate_wanted", "gate_able", "gate_begun", "gate_ended"], "no_verdict"),
        (3, ["gate_wanted", "gate_able", "gate_ended"], "void"),
    ],
)
async def test_a_gpu_that_cannot_be_tested_voids_the_gate_only_if_the_exclusion_is_about_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: int, kinds: list[str], result: str
) -> None:
    monkeypatch.setattr(return_gate, "PROBE_AGAIN", 0.01)
    async with gate_host(tmp_path) as host:
        host.probe = {"impossible": "", "untestable": {slot(other): f"GPU {other}: MIG is on", slot(6): 7}}
        await host.turn()
        assert (host.tests, host.kinds) == (kinds.count("gate_begun"), kinds)
        assert host.state.gate is not None
        assert host.state.gate.result == result
        assert host.state.gate.untestable == ("" if result == "void" else slot(other))
        assert (result == "void") == (host.state.gate.text == f"GPU {other}: MIG is on")


@pytest.mark.parametrize("untestable", [None, "nonsense", ["x"], {"x": None}])
async def test_a_service_of_another_version_leaves_out_no_gpu(tmp_path: Path, untestable: object) -> None:
    async with gate_host(tmp_path) as host:
        host.probe = {"impossible": "", "untestable": untestable}
        await host.turn()
        assert (host.tests, host.tries) == (1, 1)


LACKING: dict[str, object] = {"lacking": "libcuda.so.1 cannot be loaded", "impossible": ""}


async def test_a_host_that_never_could_test_is_void_and_one_that_could_waits_for_half_an_hour_and_then_for_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host lacks its tests while the driver's package is replaced: no node returns untested for that."""
    monkeypatch.setattr(return_gate, "PROBE_AGAIN", 0.01)
    monkeypatch.setattr(return_gate, "HINDERED_AGAIN", 0.01)
    async with gate_host(tmp_path) as host:
        host.probe = LACKING
        await host.until(lambda: "gate_ended" in host.kinds)
        assert host.state.gate is not None
        assert (host.state.gate.result, host.state.gate.text) == ("void", LACKING["lacking"])
    async with gate_host(tmp_path / "other") as host:
        host.able = True
        host.probe = LACKING
        await host.turn()
        host.passes(HINDERED_FOR - 1.0)
        await host.turn()
        assert (host.kinds, host.tests) == (["gate_wanted"], 0)
        host.passes(2.0)
        await host.until(lambda: "gate_ended" in host.kinds)
        assert host.state.gate is not None
        assert (host.state.gate.result, host.state.gate.hindered, host.tries) == ("no_verdict", True, 0)


async def test_a_socket_between_its_stop_and_its_start_costs_no_try_and_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(return_gate, "PROBE_AGAIN", 0.01)
    monkeypatch.setattr(return_gate, "HINDERED_AGAIN", 0.01)
    path = tmp_path / "test.sock"
    async with gate_host(tmp_path) as host:
        host.able = True
        path.unlink()
        await host.turn()
        await host.turn()
        assert (host.kinds, host.tests, host.tries) == (["gate_wanted"], 0, 0)
        async with await asyncio.start_unix_server(host.answer, path):
            host.report = {"obstacle": "interrupted", "text": "ended by SIGTERM", "gpus": []}
            await host.until(lambda: host.tests)
        assert (host.kinds, host.tests, host.tries) == (["gate_wanted", "gate_begun", "gate_ended"], 1, 0)


@pytest.mark.parametrize("left", [False, True])
async def test_a_socket_that_goes_between_the_probe_and_the_test_costs_no_try(tmp_path: Path, left: bool) -> None:
    """Its file is gone, or left behind with nobody who listens."""
    path = tmp_path / "test.sock"

    def goes() -> None:
        path.unlink(missing_ok=True)
        if left:
            with socket.socket(socket.AF_UNIX) as endpoint:
                endpoint.bind(str(path))  # and is closed without having listened

    async with gate_host(tmp_path) as host:
        host.probed = goes
        await host.turn()
        assert (host.kinds, host.tests, host.tries) == (["gate_wanted", "gate_able", "gate_begun", "gate_ended"], 0, 0)
        assert host.state.gate is not None
        assert "test.sock" in host.state.gate.text


async def test_what_a_host_lacks_for_a_moment_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(return_gate, "PROBE_AGAIN", 0.01)
    monkeypatch.setattr(return_gate, "HINDERED_AGAIN", 0.01)
    async with gate_host(tmp_path) as host:
        host.able = True
        host.probe = LACKING
        await host.turn()
        host.probe = {"lacking": ""}
        await host.until(lambda: host.tests)
        assert host.kinds == ["gate_wanted", "gate_begun", "gate_ended"]


@pytest.mark.parametrize(
    ("report", "tries"),
    [
        ({"obstacle": "interrupted", "text": "ended by SIGTERM", "gpus": []}, 0),
        ({"gpus": [{"obstacle": None}, {"obstacle": "interrupted", "text": "ended by SIGTERM"}]}, 0),
        ({"gpus": [{"obstacle": "busy"}]}, 1),
        ({"gpus": {"obstacle": "interrupted"}}, 1),
    ],
)
async def test_a_test_that_a_signal_ends_costs_no_try(tmp_path: Path, report: dict[str, object], tries: int) -> None:
    async with gate_host(tmp_path) as host:
        host.report = report
        await host.turn()
        assert (host.tests, host.tries) == (1, tries)
