"""A node that may be repaired, a runner of steps, and a helper that does as a test says: all in the loop of the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from gpuwarden.engine.journal import Step
from gpuwarden.features.repair.memory import Memory, memory_of
from gpuwarden.features.repair.options import RepairOptions
from gpuwarden.features.repair.plan import Plan
from gpuwarden.features.repair.runner import Hands, Runner
from gpuwarden.features.repair.scene import Sight
from gpuwarden.health.model import Event
from gpuwarden.health.state import fold
from gpuwarden.health.view import Rules, View
from gpuwarden.policy.model import NodeState
from gpuwarden.policy.state import PolicyState
from gpuwarden.runtime.part import Service
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import GpuFacts, NvmlFacts, Stamp
from support.repair_scenes import ALL, BOOT, FINDING, NOW, drained, hold, state, verdict

SOON = 60.0
ABLE: Mapping[str, Any] = {"able": ["restart_service", "reset_gpu", "reload_driver", "reboot"], "unable": {}}
DONE: Mapping[str, Any] = {"done": True, "text": "GPU was reset"}


class Helper:
    """Root's helper. `answers`: to a step, lines and then the end of the connection; `results`: to who asks for the result, the last one for ever."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.probe = ABLE
        self.answers: Iterable[Mapping[str, Any]] = (DONE,)
        self.results: list[Mapping[str, Any]] = [{"state": "unknown"}]
        self.asked: list[dict[str, Any]] = []
        self.hangs = False
        self.probe_hangs = False
        self.on_probe: Callable[[], None] = lambda: None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = json.loads(await reader.readline())
        self.asked.append(asked)
        self.log.append(f"step {asked['step']}" if asked["verb"] == "step" else asked["verb"])
        lines: Iterable[Mapping[str, Any]] = self.answers
        if asked["verb"] == "probe":
            self.on_probe()
            if self.probe_hangs:
                await reader.read()
            lines = (self.probe,)
        elif asked["verb"] == "result":
            lines = (self.results.pop(0) if len(self.results) > 1 else self.results[0],)
        elif self.hangs:
            await reader.read()
        for line in lines:
            writer.write(json.dumps(line).encode() + b"\n")
        writer.close()

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [request for request in self.asked if request["verb"] == "step"]


class Turns:
    """The fleet: what it says to a node that asks."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.refusal = ""

    async def enter(self) -> str:
        self.log.append("enter")
        return self.refusal

    async def leave(self) -> None:
        self.log.append("leave")


class _Engine:
    def __init__(self) -> None:
        self.state = state()
        self.view = View(boot_id=BOOT)
        self.rules = Rules()


class _Enforcement:
    def __init__(self) -> None:
        self.state = PolicyState(boot_id=BOOT, holds={"slurm": hold()})
        self.node_states: Mapping[str, NodeState] = {"slurm": drained()}
        self.breaker = ""


class _Journal:
    recalled = True


class World:
    """What the runner sees of the daemon, and does to it. `log` has all of it in its order."""

    def __init__(
        self, socket: Path, boot_id: str = BOOT, before: Iterable[Event] = (), *, alone: bool = False, **options: Any
    ) -> None:
        self.log: list[str] = []
        self.engine, self.enforcement, self.journal = _Engine(), _Enforcement(), _Journal()
        self.verdict = verdict(FINDING)
        self.now: Stamp = NOW
        self.helper, self.turns = Helper(self.log), Turns(self.log)
        self.commits: Iterator[bool] = iter(())
        self.gone = True
        self.read = True
        self.saved = asyncio.Event()
        self.saved.set()
        self.on_off: Callable[[], None] = lambda: None
        self.on_append: Callable[[], None] = lambda: None
        for event in before:
            self.engine.state = fold(self.engine.state, event)
        self.options = RepairOptions(steps=ALL, socket=socket, **options)
        sight = Sight(
            cast("Service", self), self.options, enforce=True, bundles=False, alone=alone, clock=lambda: self.now
        )
        self.sight = sight
        hands = Hands(
            append=self._append,
            committed=self._committed,
            saved=self._saved,
            afresh=self._afresh,
            off_the_gpus=self._off_the_gpus,
            changed=lambda: None,
            turn=self.turns,
        )
        self.runner = Runner(socket, sight, hands, lambda: self.memory, boot_id=boot_id, clock=lambda: self.now)

    @property
    def memory(self) -> Memory:
        return memory_of(self.engine.state)

    @property
    def outcomes(self) -> list[str | None]:
        return [attempt.outcome for attempt in self.memory.tries]

    def plan(self) -> Plan:
        (plan,) = self.sight.plans()
        return plan

    async def until(self, condition: Callable[[], object]) -> None:
        """Let the runner go on, as steps of the daemon do, until the condition holds."""
        async with asyncio.timeout(SOON):
            while not condition():
                self.runner.step(None)
                await asyncio.sleep(0.005)

    async def turn(self) -> None:
        """Begin the step that is due, and wait for the end of it, or for what forbids it."""
        self.runner.step(self.plan())
        ended = len([outcome for outcome in self.outcomes if outcome])
        async with asyncio.timeout(SOON):
            while not self.runner.barred and len([outcome for outcome in self.outcomes if outcome]) == ended:
                await asyncio.sleep(0.005)

    def reads(self, gpus: Sequence[GpuFacts], at: Stamp) -> None:
        """Have the last pass of the GPUs that was answered be of this time."""
        seen = Observation(
            collector=NvmlFacts.collector, outcome=PassOutcome.OBSERVED, facts=NvmlFacts(gpus=tuple(gpus)), started=at, finished=at
        )  # fmt: skip
        self.engine.view = self.engine.view.after(seen)

    def heals(self) -> None:
        self.verdict = replace(self.verdict, findings=())

    def _append(self, events: Iterable[Event], step: Step) -> None:
        for event in events:
            self.log.append(" ".join(filter(None, (event.kind, str(event.data.get("outcome", ""))))))
            self.engine.state = fold(self.engine.state, event)
        self.on_append()

    async def _committed(self) -> bool:
        return next(self.commits, True)

    async def _saved(self) -> None:
        await self.saved.wait()

    async def _afresh(self) -> bool:
        return self.read

    @asynccontextmanager
    async def _off_the_gpus(self, _: str) -> AsyncIterator[bool]:
        self.log.append("off")
        self.on_off()
        try:
            yield self.gone
        finally:
            self.log.append("on")


@asynccontextmanager
async def world(folder: Path, **more: Any) -> AsyncIterator[World]:
    made = World(folder / "repair.sock", **more)
    server = await asyncio.start_unix_server(made.helper.serve, folder / "repair.sock")
    try:
        if made.memory.open is None:  # the first step ends what an earlier daemon left
            await made.until(lambda: made.log)
            made.log.clear()
        yield made
    finally:
        await made.runner.stop()
        server.close()
