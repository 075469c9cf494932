"""One run of the active test on this node, from the lock to the report. No CUDA and no NVML in this process.

    lock · read the GPUs · who else is here · announce to the daemon · workers (and repeats) · read the GPUs again · judge

A signal or the daemon can end it at any point; GPUs that are not tested by then are reported as interrupted.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuwarden.features.active_test.judging.judgement import judge
from gpuwarden.features.active_test.judging.outcome import ActiveVerdict, Outcome
from gpuwarden.features.active_test.tester.ending import Ended, Ending
from gpuwarden.features.active_test.tester.gpu_test import Node, Transfers, identity_of, sleeping
from gpuwarden.features.active_test.tester.growth import vanished, with_growth
from gpuwarden.features.active_test.tester.host import HostReadings, HostUnread
from gpuwarden.features.active_test.tester.lease import RESULT_WITHIN, Call, Lease
from gpuwarden.features.active_test.tester.left_behind import left_behind
from gpuwarden.features.active_test.tester.lock import Held, LockError, node_lock
from gpuwarden.features.active_test.tester.occupancy import Asked, SharedOccupancy
from gpuwarden.features.active_test.tester.report import Report
from gpuwarden.features.active_test.tester.rounds import Rounds
from gpuwarden.features.active_test.tester.selection import selected
from gpuwarden.features.active_test.tester.surroundings import cache_folder, environment, identity
from gpuwarden.features.active_test.tester.worker import Identity
from gpuwarden_collectors.active_test.facts import GpuTest, Obstacle
from gpuwarden_collectors.active_test.host_facts import HostFacts
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.codec import CodecError, from_wire
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts, Stamp
from gpuwarden_collectors.nvml.options import NvmlOptions

INTERRUPTED_WITHIN = 1.0
"""Seconds for the daemon to take the results of a run that was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The requested test, and facts about this host."""

    node: str
    level: Level
    gpus: tuple[str, ...]
    """UUIDs, indices or slots; empty: all."""
    choose: Callable[[Sequence[GpuFacts]], tuple[GpuFacts, ...]] | None = None
    """Selects among the GPUs once they are read; may raise, so that none is tested."""
    nvml: NvmlOptions
    run_dir: Path
    configured_run_dir: Path
    """The run directory of this host's configuration, if the test was given another one."""
    state_dir: Path
    asked: Asked
    call: Call
    """Calls a verb of the daemon."""
    clock: Clock
    progress: Callable[[int, str], None]
    parallel: int
    """GPUs that are tested at once."""


class ActiveTest:
    """One run of the active test."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._ending = Ending()
        self._started = order.clock()
        self._indices: Mapping[str, int] = {}
        self._uuids: frozenset[str] = frozenset()
        self._notes: tuple[str, ...] = ()
        self._lease = Lease(order.call, self._ending.end)

    def end(self, why: str) -> None:
        """End the test soon, as a signal does."""
        self._ending.end(why)

    async def run(self) -> Report:
        """Run the test. Raises UnknownGpu if `gpus` names one that is not here, and what `choose` raises."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._ending.end, f"ended by {number.name}")
        try:
            order = self._order
            with node_lock(order.run_dir, order.configured_run_dir, order.asked.proc) as stranger:
                self._notes = (stranger,) if stranger else ()
                return await self._locked()
        except Held as held:
            return self._untested(Obstacle.BUSY, _held(held, self._order.clock()))
        except LockError as error:
            return self._untested(Obstacle.UNSUPPORTED, str(error))

    async def _locked(self) -> Report:
        async with AsyncExitStack() as stack:
            if pids := await left_behind(self._order.asked.proc):
                return self._untested(Obstacle.RESET_FIRST, sleeping(pids))
            readings = HostReadings(self._order.nvml)
            stack.push_async_callback(readings.close)
            try:
                before = await self._ending.unless(readings.read())
            except HostUnread as error:
                return self._untested(Obstacle.UNSUPPORTED, str(error))
            except Ended:
                return self._untested(Obstacle.INTERRUPTED, self._ending.why)
            self._indices = {identity_of(gpu): gpu.index for gpu in before.nvml.gpus}
            self._uuids = frozenset(gpu.uuid for gpu in before.nvml.gpus if gpu.uuid)
            gpus = selected(before.nvml.gpus, self._order.gpus)
            if self._order.choose is not None:
                gpus = self._order.choose(gpus)
            if not gpus:
                return self._untested(Obstacle.UNSUPPORTED, "NVML finds no GPU here; see gpuwarden doctor")
            stack.push_async_callback(self._lease.over)
            user = identity()
            cache = stack.enter_context(cache_folder(self._order.state_dir, user))
            node = self._node(before, user, environment(cache))
            rounds = Rounds(node, self._lease, self._ending, self._order.asked.proc)
            tests, notes = await self._afterwards(readings, before, await rounds.tests(gpus, before))
            return await self._judged(tests, notes)

    def _node(self, before: HostFacts, user: Identity, variables: Mapping[str, str]) -> Node:
        return Node(
            level=self._order.level,
            identity=user,
            environment=variables,
            nvml_library=self._order.nvml.library,
            occupancy=SharedOccupancy(self._order.asked, len(before.nvml.gpus)).answer,
            started=self._lease.workers.append,
            announced=self._lease.announced,
            progress=self._order.progress,
            ended=self._ending.event,
            clock=self._order.clock,
            driver=before.nvml.driver_version,
            transfers=Transfers(),
            parallel=self._order.parallel,
            turns=asyncio.Semaphore(self._order.parallel),
            starting=asyncio.Lock(),
        )

    # --- afterwards

    async def _afterwards(
        self, readings: HostReadings, before: HostFacts, tests: tuple[GpuTest, ...]
    ) -> tuple[tuple[GpuTest, ...], list[str]]:
        """Add the counters that grew to the first test of each GPU; also return notes for the report."""
        if all(test.obstacle is not None and test.seconds == 0.0 for test in tests):
            return tests, []
        try:
            after = await self._ending.unless(readings.read())
        except HostUnread as error:
            return tests, [f"counters of errors could not be read after the test: {error}"]
        except Ended:
            return tuple(self._interrupted(test) for test in tests), []
        notes = [
            f"GPU {gpu.index} ({gpu.slot}) no longer answers: see gpuwarden status"
            for gpu in vanished(before.nvml, after.nvml)
        ]
        return with_growth(tests, before.nvml, after.nvml), notes

    def _interrupted(self, test: GpuTest) -> GpuTest:
        """Return the test as one that was ended before its counters were read."""
        return (
            test if test.obstacle is not None else replace(test, obstacle=Obstacle.INTERRUPTED, text=self._ending.why)
        )

    async def _judged(self, tests: tuple[GpuTest, ...], notes: list[str]) -> Report:
        identified = tuple(test for test in tests if test.uuid in self._uuids)
        answer = await self._lease.result(
            identified, INTERRUPTED_WITHIN if self._ending.event.is_set() else RESULT_WITHIN
        )
        outcomes, judged = judge(tests), None if answer is None else by_daemon(answer, identified)
        if judged is not None:
            outcomes |= judged
            if self._lease.unannounced:
                notes.append(
                    f"the test was not announced to the daemon, which may have taken it for work: {self._lease.unannounced}"
                )
        elif any(outcome.verdict is not ActiveVerdict.NO_VERDICT for outcome in outcomes.values()):
            why = self._lease.error or "the daemon's answer is of another version"
            notes.append(f"judged without earlier results of these GPUs, and not recorded: {why}")
        return self._report(tests=tests, outcomes=outcomes, notes=(*self._notes, *notes))

    def _untested(self, met: Obstacle, text: str) -> Report:
        return self._report(obstacle=met, text=text)

    def _report(self, **parts: object) -> Report:
        now = self._order.clock()
        made = Report(
            node=self._order.node,
            level=self._order.level,
            started=self._started,
            seconds=now.boottime - self._started.boottime,
            indices=self._indices,
            notes=self._notes,
        )
        return replace(made, **parts)  # type: ignore[arg-type]  # the callers above give what fields there are


def _held(held: Held, now: Stamp) -> str:
    since = "" if held.holder.since is None else f", for {now.boottime - held.holder.since:.0f} s"
    return f"{held}{since}: wait for its end, or end it with SIGTERM"


def by_daemon(answer: Mapping[str, Any], tests: Sequence[GpuTest]) -> dict[str, Outcome] | None:
    """Return the daemon's outcomes by UUID from its answer to `test-result`; None if it is malformed or lacks a GPU.

    The daemon uses the past of each GPU. Without its outcomes the run is judged on its own.
    """
    try:
        outcomes = {uuid: from_wire(Outcome, value) for uuid, value in answer["outcomes"].items()}
    except (CodecError, KeyError, AttributeError):
        return None
    return outcomes if {test.uuid for test in tests} <= outcomes.keys() else None
