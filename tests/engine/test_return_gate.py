"""The test before a return, carried out: what counts as a try, and what does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuwarden.engine import return_gate
from gpuwarden.engine.journal import Step
from gpuwarden.engine.return_gate import GateOptions, ReturnGate
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind
from gpuwarden.policy.gate_state import Gate
from gpuwarden.policy.return_gate import Assessed, GateState
from gpuwarden.policy.state import PolicyState, fold
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.facts import Stamp
from support.snapshots import gpu_verdict, slot

NOW = Stamp(1_000.0, 2_000_000.0)
SOON = 20.0


class GateHost:
    """One GPU that failed, and a service that finds all its GPUs busy. `probe`: what it answers to that. `commits`: whether each commit of the ledger succeeds; then all do."""

    def __init__(self, socket: Path, commits: Iterable[bool]) -> None:
        self.kinds: list[str] = []
        self.tests = 0
        self.probe: dict[str, object] = {"impossible": ""}
        self.state = PolicyState()
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
            GateOptions(socket=socket, level=Level.QUICK, within=SOON), append=self._append, gate=lambda: self.state.gate,
            gpus=lambda: (gpu_verdict(3),), changed=self._stepped.set, committed=self._committed, boot_id="b1", clock=lambda: NOW,
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

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        verb = json.loads(await reader.readline())["verb"]
        self.tests += verb == "test"
        writer.write(json.dumps(self.probe if verb == "probe" else {"obstacle": "busy", "text": "a job"}).encode())
        writer.close()

    def _append(self, events: Iterable[Event], step: Step = Step.NOW) -> None:
        for event in events:
            self.kinds.append(str(event.kind))
            self.state = fold(self.state, event)

    async def _committed(self) -> bool:
        return next(self._commits, True)


@asynccontextmanager
async def gate_host(folder: Path, *commits: bool) -> AsyncIterator[GateHost]:
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
        assert host.kinds == ["gate_wanted", "gate_begun", "gate_ended"]


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
        assert host.kinds == ["gate_wanted", "gate_begun", "gate_ended"]
        assert host.state.gate is not None
        assert (host.state.gate.run, "ledger" in host.state.gate.text) == ("", True)


@pytest.mark.parametrize(
    ("other", "kinds", "result"),
    [(5, ["gate_wanted", "gate_begun", "gate_ended"], "no_verdict"), (3, ["gate_wanted", "gate_ended"], "void")],
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
