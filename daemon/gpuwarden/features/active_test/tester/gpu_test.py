"""The test of one GPU: its worker, the answers that it gets, and its result as facts."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

from gpuwarden.features.active_test.tester.occupancy import Memory, Occupancy
from gpuwarden.features.active_test.tester.worker import Failed, Identity, WorkerProcess
from gpuwarden_collectors.active_test.facts import GpuMeasured, GpuTest, Obstacle, PeerMeasured
from gpuwarden_collectors.active_test.level import APART, WITHIN, Level
from gpuwarden_collectors.active_test.request import Request
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.codec import CodecError, from_wire
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts

START, COMPUTE, MEMORY = "start", "compute", "memory"
"""Phases for which a worker requests permission right before they begin. It requests COMPUTE only if it has peers."""
_TRANSFERS = ("start", "pcie", "peers")
"""The phases of a worker in which it may use other GPUs: they come first."""


class Transfers:
    """The workers that may still read other GPUs. Until all have finished, no worker takes all memory of a GPU or
    measures its SMs: a context that another worker creates there takes some of their time, which would count as a
    disturbance.
    """

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._changed = asyncio.Condition()

    def begin(self, uuid: str) -> None:
        self._begun.add(uuid)

    async def end(self, uuid: str) -> None:
        self._begun.discard(uuid)
        async with self._changed:
            self._changed.notify_all()

    async def ended(self) -> None:
        """Wait until every GPU that began transfers has finished them."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """State that the tests of one run share."""

    level: Level
    identity: Identity
    environment: Mapping[str, str]
    """The environment of workers."""
    nvml_library: str
    """The configured NVML library; empty: the driver's own."""
    occupancy: Callable[[], Awaitable[Occupancy]]
    started: Callable[[int], None]
    """Called with the process number of each worker."""
    announced: Callable[[], Awaitable[None]]
    """Waits until the daemon has these numbers."""
    progress: Callable[[int, str], None]
    """Called with the index of a GPU and the present phase of its worker."""
    ended: asyncio.Event
    clock: Clock
    driver: str
    transfers: Transfers
    parallel: int
    """GPUs that are tested at once."""
    turns: asyncio.Semaphore
    starting: asyncio.Lock
    left_behind: list[int] = field(default_factory=list)
    """Process numbers of workers of this run that could not be ended."""


class GpuRun:
    """The test of one GPU, with as many workers as it needs."""

    def __init__(self, node: Node, gpu: GpuFacts, peers: tuple[str, ...] = ()) -> None:
        self._node = node
        self._gpu = gpu
        self._peers = peers
        self._refused = ""
        if peers:
            node.transfers.begin(gpu.uuid)

    async def test(self) -> GpuTest:
        """Test the GPU. Errors of the worker or the GPU are part of the result, and are not raised."""
        try:
            return await self._test()
        finally:
            await self._node.transfers.end(self._gpu.uuid)

    async def _test(self) -> GpuTest:
        """Test the GPU.

        When an error of a peer ended a worker, a new one continues without that peer, because a CUDA error stays in the
        process.
        """
        node, peers, read = self._node, self._peers, tuple[PeerMeasured, ...]()
        started = node.clock()
        async with node.turns:
            while True:
                async with node.starting:
                    if (refusal := self._not_now()) is not None:
                        return untested(self._gpu, node, *refusal)
                    started = started if read else node.clock()
                    running = asyncio.create_task(self._worker(peers).run())
                    await asyncio.wait((running,), timeout=APART)
                got = await running
                measured = got if isinstance(got, Failed) else _measured(got)
                if isinstance(measured, Failed):
                    node.left_behind.extend([measured.left_behind] if measured.left_behind else [])
                    break
                measured = replace(measured, peers=(*read, *measured.peers))
                if (left := _peers_left(measured, peers)) is None:
                    break
                read, peers = measured.peers, left
        seconds = node.clock().boottime - started.boottime
        return self._result(measured, started_at=started, seconds=seconds)

    def _not_now(self) -> tuple[Obstacle, str] | None:
        if self._node.ended.is_set():
            return Obstacle.INTERRUPTED, ""
        if pids := self._node.left_behind:
            return Obstacle.RESET_FIRST, sleeping(pids)
        return None

    def _worker(self, peers: tuple[str, ...]) -> WorkerProcess:
        node, gpu = self._node, self._gpu
        request = Request(
            uuid=gpu.uuid,
            slot=gpu.slot,
            level=node.level,
            seed=secrets.randbelow(1 << 31),
            parent=os.getpid(),
            peers=peers,
            nvml_library=node.nvml_library,
        )
        return WorkerProcess(
            request,
            node.environment,
            node.identity,
            within=WITHIN[node.level],
            answer=self._answer,
            started=node.started,
            progress=self._progress,
            ended=node.ended,
        )

    async def _answer(self, question: str) -> str:
        if question == START:
            await self._node.announced()
            return "go"
        if question not in (COMPUTE, MEMORY):
            return "no"
        await self._node.transfers.end(self._gpu.uuid)
        await self._node.transfers.ended()
        return "go" if question == COMPUTE else (await self._memory()).value

    async def _memory(self) -> Memory:
        """Return the memory that may be taken now. Only a gate test, which is short, may take a part of it."""
        occupancy = await self._node.occupancy()
        if occupancy.memory is Memory.NONE or (occupancy.memory is Memory.PART and self._node.level is not Level.GATE):
            self._refused = occupancy.why
            return Memory.NONE
        return occupancy.memory

    async def _progress(self, phase: str) -> None:
        if phase not in _TRANSFERS:
            await self._node.transfers.end(self._gpu.uuid)
        self._node.progress(self._gpu.index, phase)

    def _result(self, measured: GpuMeasured | Failed, **when: Any) -> GpuTest:
        if isinstance(measured, Failed):
            return untested(self._gpu, self._node, measured.obstacle, measured.text, **when)
        parts = {field.name: getattr(measured, field.name) for field in fields(GpuMeasured)}
        if measured.obstacle is None and self._refused:
            parts |= {"obstacle": Obstacle.BUSY, "text": self._refused}
        if parts["temperature"] is None:
            parts["temperature"] = self._gpu.readings.temperature
        return _made(self._gpu, self._node, **parts, **when)


def sleeping(pids: Sequence[int]) -> str:
    """Return the message that a worker hangs in the driver, for which reason no other is started."""
    named = ", ".join(map(str, pids))
    return f"the driver hangs: a worker of a test sleeps in it and cannot be ended (pid {named}); drain the node and reboot it, then test"


def _peers_left(measured: GpuMeasured, peers: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the peers after the one whose error ended the worker; None if no peer's error did."""
    last = measured.peers[-1] if measured.peers else None
    if measured.obstacle is not Obstacle.GPU_ERROR or last is None or not last.error or last.peer not in peers:
        return None
    return peers[peers.index(last.peer) + 1 :]


def untested(gpu: GpuFacts, node: Node, obstacle: Obstacle, text: str, **when: Any) -> GpuTest:
    """The test record of a GPU without a result, with the obstacle."""
    return _made(gpu, node, obstacle=obstacle, text=text, temperature=gpu.readings.temperature, **when)


def identity_of(gpu: GpuFacts) -> str:
    """Return its UUID; its slot or index if NVML gives no UUID."""
    return gpu.uuid or gpu.slot or f"GPU {gpu.index}"


def _made(gpu: GpuFacts, node: Node, *, started_at: Any = None, seconds: float = 0.0, **parts: Any) -> GpuTest:
    readings = gpu.readings
    return GpuTest(
        uuid=identity_of(gpu),
        slot=gpu.slot,
        name=gpu.name,
        level=node.level,
        started=started_at or node.clock(),
        seconds=seconds,
        power_limit=readings.power_enforced_limit_mw,
        ecc=None if readings.ecc_mode is None else readings.ecc_mode == 1,
        driver=node.driver,
        **parts,
    )


def _measured(data: Mapping[str, Any]) -> GpuMeasured | Failed:
    try:
        return from_wire(GpuMeasured, dict(data))
    except (CodecError, RecursionError) as error:
        return Failed(Obstacle.CRASHED, f"the result of its worker cannot be read: {error}"[:300])
