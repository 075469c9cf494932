"""Real workers for tests: making, waiting for and inspecting them, and the proof that nothing is left of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpuwarden_collectors.base import Observation, PassOutcome, WorkerReport
from gpuwarden_collectors.worker.life import WorkerLimits
from gpuwarden_collectors.worker.worker import Worker
from support.worker_readers import Options, ReaderFacts

SOON = 60.0  # seconds that anything here may take at most
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
PATIENT = WorkerLimits(deadline=SOON)
HASTY = WorkerLimits(deadline=2.0, term_grace=0.5)
GOOD = Options()

Make = Callable[..., Worker[Any]]


@asynccontextmanager
async def workers() -> AsyncIterator[Make]:
    """Gives a maker of workers. At the end they are closed, and no process, task or descriptor may be left of them."""
    before, tasks, children = _descriptors(), _tasks(), _children()
    made: list[Worker[Any]] = []

    def make(options: Options | None = GOOD, limits: WorkerLimits = PATIENT, **others: Any) -> Worker[Any]:
        arguments: dict[str, Any] = {
            "reader": "support.worker_readers:Reader",
            "facts_type": ReaderFacts,
            "options": options,
            "on_event": lambda _: None,
            "environment": ENVIRONMENT,
        }
        made.append(Worker("test", limits=limits, **arguments | others))
        return made[-1]

    try:
        yield make
    finally:
        for worker in made:
            await worker.close()
        left = _children() - children
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    kept = {"descriptors": _descriptors() - before, "tasks": _tasks() - tasks, "processes": left}
    assert not any(kept.values()), f"left behind: {kept}"


def _descriptors() -> set[str]:
    """Return what this process has open: of an earlier test something may yet be closed while this one runs, and that is no fault of it."""
    descriptors = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            descriptors.add(f"{path.name} {path.readlink()}")
    return descriptors


def _tasks() -> set[asyncio.Task[Any]]:
    """Return all tasks but the one that asks."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def _children() -> set[int]:
    """Children that this thread started, zombies too."""
    return set(map(int, Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()))


def facts_of(seen: Observation[Any]) -> ReaderFacts:
    assert isinstance(seen.facts, ReaderFacts), seen.error
    return seen.facts


def report(seen: Observation[Any]) -> WorkerReport:
    assert seen.worker is not None
    return seen.worker


def pid_of(seen: Observation[Any]) -> int:
    pid = report(seen).pid
    assert pid is not None
    return pid


async def observed(worker: Worker[Any]) -> ReaderFacts:
    """Return the next facts; passes that time out or wait for a pause to end are skipped."""
    return facts_of(await _first(worker, lambda seen: seen.outcome is PassOutcome.OBSERVED))


async def seen_when(worker: Worker[Any], wanted: Callable[[WorkerReport], object]) -> Observation[Any]:
    """The first observation whose worker report is as wanted."""
    return await _first(worker, lambda seen: wanted(report(seen)))


async def _first(worker: Worker[Any], wanted: Callable[[Observation[Any]], object]) -> Observation[Any]:
    async with asyncio.timeout(SOON):
        while not wanted(seen := await worker.observe()):
            await asyncio.sleep(0.05)
    return seen


async def exited(pid: int) -> None:
    """Wait until our child has exited with all its threads; it stays to be reaped, unless it is already."""
    with contextlib.suppress(ChildProcessError):
        async with asyncio.timeout(SOON):
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:  # noqa: ASYNC222 - WNOHANG
                await asyncio.sleep(0.02)


async def vanished(pid: int) -> None:
    """Wait until a process that is not our child has ended; its new parent may leave it a zombie."""
    async with asyncio.timeout(SOON):
        with contextlib.suppress(OSError):
            while b") Z" not in Path(f"/proc/{pid}/stat").read_bytes():
                await asyncio.sleep(0.02)
