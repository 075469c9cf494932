"""Runs the tests of all GPUs: which can be tested, a first test of each, and up to three more after a wrong result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuwarden.features.active_test.judging.judgement import REPEATS, to_repeat
from gpuwarden.features.active_test.tester.ending import Ended, Ending
from gpuwarden.features.active_test.tester.gpu_test import GpuRun, Node, identity_of, untested
from gpuwarden.features.active_test.tester.lease import Lease
from gpuwarden.features.active_test.tester.obstacles import obstacle
from gpuwarden.features.active_test.tester.occupancy import Memory
from gpuwarden_collectors.active_test.facts import GpuTest, Obstacle
from gpuwarden_collectors.active_test.host_facts import HostFacts
from gpuwarden_collectors.active_test.level import Level, rounds
from gpuwarden_collectors.facts import GpuFacts
from gpuwarden_collectors.host_files import text_or_empty


def longest(level: Level, gpus: int, parallel: int) -> float:
    """Return the most seconds of a run with all its repeats, `parallel` GPUs at once."""
    return rounds(level, gpus, parallel, REPEATS)


class Rounds:
    """The tests of one run. The daemon is notified before the first worker starts."""

    def __init__(self, node: Node, lease: Lease, ending: Ending, proc: Path) -> None:
        self._node = node
        self._lease = lease
        self._ending = ending
        self._proc = proc

    async def tests(self, gpus: Sequence[GpuFacts], before: HostFacts) -> tuple[GpuTest, ...]:
        """Return a result for each GPU and each repeat. Errors of a GPU, worker or scheduler are not raised."""
        obstacles = {identity_of(gpu): obstacle(gpu, before, self._comm) for gpu in gpus}
        free = [gpu for gpu in gpus if obstacles[identity_of(gpu)] is None]
        if free and (refusal := await self._refusal()) is not None:
            obstacles |= {gpu.uuid: refusal for gpu in free}
            free = []
        if free:
            await self._lease.begin(
                self._node.level, [gpu.uuid for gpu in free], longest(self._node.level, len(free), self._node.parallel)
            )
        begun = [GpuRun(self._node, gpu, self._peers(gpu, free)) for gpu in free]
        runs = iter(await asyncio.gather(*(run.test() for run in begun)))
        first = [
            next(runs) if (met := obstacles[identity_of(gpu)]) is None else untested(gpu, self._node, *met)
            for gpu in gpus
        ]
        return tuple(self._explained(test) for test in await self._repeated(free, first))

    def _peers(self, gpu: GpuFacts, free: Sequence[GpuFacts]) -> tuple[str, ...]:
        """Return the peers that the GPU reads. Empty unless all GPUs are tested at once: later, memory may be taken."""
        if self._node.level is not Level.STANDARD or len(free) > self._node.parallel:
            return ()
        return tuple(other.uuid for other in free if other is not gpu)

    async def _refusal(self) -> tuple[Obstacle, str] | None:
        """Return the obstacle to the whole run, found before a worker's start takes memory on the GPU."""
        try:
            met = await self._ending.unless(self._node.occupancy())
        except Ended:
            return Obstacle.INTERRUPTED, self._ending.why
        if met.memory is Memory.NONE:
            return Obstacle.BUSY, met.why
        if met.memory is Memory.PART and self._node.level is not Level.GATE:
            return Obstacle.BUSY, f"level {self._node.level.value} takes all memory: {met.why}; or --level gate"
        return None

    async def _repeated(self, gpus: Sequence[GpuFacts], first: list[GpuTest]) -> list[GpuTest]:
        """Add up to three more tests of each GPU whose result was wrong once."""
        tests = first
        for _ in range(REPEATS):
            again = [gpu for gpu in gpus if gpu.uuid in to_repeat(tests)]
            if not again or self._ending.event.is_set():
                break
            tests = [*tests, *await asyncio.gather(*(GpuRun(self._node, gpu).test() for gpu in again))]
        return tests

    def _explained(self, test: GpuTest) -> GpuTest:
        if test.obstacle is Obstacle.INTERRUPTED and not test.text:
            return replace(test, text=self._ending.why)
        return test

    def _comm(self, pid: int) -> str:
        return text_or_empty(self._proc / str(pid) / "comm")
