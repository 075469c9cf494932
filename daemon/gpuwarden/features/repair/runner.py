"""Carries out steps, one at a time. The ledger records the beginning before the helper gets the request, and the
outcome.

    all is saved -> look afresh -> the fleet's turn -> our reader leaves the GPUs -> look afresh -> REPAIR_BEGUN, on disk -> the helper -> REPAIR_ENDED

The preconditions are checked after each look, and again when the beginning is on disk.

A daemon that is killed leaves REPAIR_BEGUN without REPAIR_ENDED. The next one queries the helper for the result of that
step, by its id, and does nothing before that is known; a boot since then is the one that was ordered, or ended the
step.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuwarden.actuators.fleet_turn import Turn
from gpuwarden.base.log import get_logger
from gpuwarden.base.services import NoAnswer, NotBegun
from gpuwarden.engine.journal import Append, Step
from gpuwarden.features.repair import client
from gpuwarden.features.repair.client import Result
from gpuwarden.features.repair.memory import Memory
from gpuwarden.features.repair.model import TOUCHES_DRIVER, Ended, Outcome, StepKind, Try
from gpuwarden.features.repair.plan import DAY, Plan
from gpuwarden.features.repair.preconditions import Obstacle, Precondition, Scene, fitted, obstacles
from gpuwarden.features.repair.scene import Sight
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, Evidence, Key
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.dataclass import dataclass

WITHIN = {
    StepKind.RESTART_SERVICE: 180.0,
    StepKind.RESET_GPU: 300.0,
    StepKind.RESET_ALL: 600.0,
    StepKind.RELOAD_DRIVER: 600.0,
    StepKind.REBOOT: 120.0,
}
"""Seconds for the helper's answer; then its result is queried."""
FOUND_OUT_WITHIN = 900.0
"""Seconds for which the result is queried."""
LOOKED_AGAIN = 10.0
REBOOTS_WITHIN = 1_800.0
"""Seconds from the order of a reboot until it counts as failed. The shutdown of a hung machine takes many minutes."""
AGAIN = 60.0
"""Seconds until a step that was forbidden is tried again."""
AFTER_FAULT = 60.0
STOPS_WITHIN = 2.0
UNWRITTEN = "the ledger cannot be written: nothing is begun meanwhile"
UNREAD = "the scheduler could not be read right before the step"
BOOTED = "the machine has booted since"
SLURM = "slurm"
"""The actuator whose scheduler reboots the node."""

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hands:
    """The runner's access to the rest of the daemon.

    `saved` returns once other features have saved what a step may destroy, or cannot. `afresh` has all schedulers read
    now, and returns whether they were. `off_the_gpus` keeps the daemon's own reader off. `turn` is None if nothing
    limits repairs of the fleet.
    """

    append: Append
    committed: Callable[[], Awaitable[bool]]
    saved: Callable[[], Awaitable[None]]
    afresh: Callable[[], Awaitable[bool]]
    off_the_gpus: Callable[[str], AbstractAsyncContextManager[bool]]
    changed: Callable[[], None]
    turn: Turn | None = None


class Runner:
    def __init__(
        self, socket: Path, sight: Sight, hands: Hands, memory: Callable[[], Memory], *, boot_id: str, clock: Clock
    ) -> None:
        self._socket = socket
        self._sight = sight
        self._hands = hands
        self._memory = memory
        self._boot_id = boot_id
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._waits = False
        self._ordered: tuple[Plan, str] | None = None
        self._wake = asyncio.Event()
        self._marked = True
        self._first = True
        self._stopped = False
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self.barred: tuple[Obstacle, ...] = ()
        """What forbade the step at the last complete check."""

    # --- life

    def step(self, planned: Plan | None) -> None:
        """Begin what is due. Called after each step of the daemon. Does not block."""
        if self._stopped or (self._task is not None and not self._task.done()):
            return
        begun, first = self._memory().open, self._first
        self._first = False
        if begun is None and first:
            # A daemon that was killed before its REPAIR_BEGUN may have left a mark, which delays other nodes.
            self._begin_task(self._leave())
            return
        ordered, self._ordered = self._ordered, None
        if begun is not None:
            self._begin_task(self._settle(begun))
        elif ordered is not None:
            self._begin_task(self._turn(*ordered))
        elif planned is not None:
            self._begin_task(self._turn(planned, ""))
        elif self._marked and self._out_of_date():
            self._marked = False
            self._begin_task(self._leave())

    def order(self, planned: Plan, by: str) -> str:
        """Take an operator's order for the next step of the daemon. Returns why it is refused; "" if it is taken."""
        busy = self._task is not None and not self._task.done()
        if self._memory().open is not None or (busy and not self._waits):
            return "another step is under way"
        self._ordered = planned, by
        self._wake.set()
        self._hands.changed()
        return ""

    def _begin_task(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = asyncio.create_task(self._guarded(work))

    def _out_of_date(self) -> bool:
        """Return True if no repair of this node counts any more, so that its mark is useless."""
        tries = self._memory().tries
        return bool(tries) and self._clock().wall - tries[-1].at.wall > DAY

    async def stop(self) -> None:
        """Stop waiting. A step that was begun continues without the daemon; the next daemon queries its result."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=STOPS_WITHIN)

    async def _guarded(self, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception:  # an error here must not end the daemon; the node stays excluded
            log.exception("repair failed unexpectedly")
            await asyncio.sleep(AFTER_FAULT)
        finally:
            asyncio.get_running_loop().call_soon(self._hands.changed)

    # --- one step

    async def _turn(self, planned: Plan, by: str) -> None:
        """Carry out a step, or wait until it is checked again. An operator's order ends the wait."""
        self.barred = await self._closely(planned, by)
        if not self.barred:
            return
        log.info(
            "repair: step not begun", step=str(planned.step), finding=str(planned.finding.key), reasons=self._why()
        )
        self._hands.changed()
        self._wake.clear()
        self._waits = True
        with suppress(TimeoutError):
            async with asyncio.timeout(AGAIN * self._chance.uniform(1.0, 3.0)):  # random: nodes do not retry in step
                await self._wake.wait()
        self._waits = False

    def _why(self) -> list[str]:
        return [obstacle.text for obstacle in self.barred]

    async def _closely(self, planned: Plan, by: str) -> tuple[Obstacle, ...]:
        """Read everything afresh, and carry out the step if nothing forbids it. Returns what does."""
        if not await self._hands.committed():
            return (Obstacle(Precondition.LEDGER, UNWRITTEN),)
        await self._hands.saved()
        try:
            host = await client.probe(self._socket, planned.step)
        except NoAnswer as error:
            return (Obstacle(Precondition.HELPER, str(error)),)
        if planned.step is not None:
            planned = replace(planned, step=fitted(planned.step, host.able))
        if barred := await self._obstacles(planned, by, host.unable):
            return barred
        if why := await self._entered():
            return (Obstacle(Precondition.FLEET, why),)
        self._marked = True
        try:
            return await self._begin(planned, by, host.unable)
        finally:
            if self._memory().open is None:
                await self._leave()

    async def _obstacles(self, planned: Plan, by: str, unable: Mapping[str, str]) -> tuple[Obstacle, ...]:
        """Read everything afresh. Returns what forbids the step."""
        if not await self._hands.afresh():
            return (Obstacle(Precondition.SCHEDULER, UNREAD),)
        scene = self._sight.scene(ordered=bool(by))
        again = self._sight.again(planned)
        if again is None:
            return (Obstacle(Precondition.FINDING, "it has ended"),)
        return obstacles(replace(scene, unable=unable), again)

    async def _begin(self, planned: Plan, by: str, unable: Mapping[str, str]) -> tuple[Obstacle, ...]:
        step = planned.step
        if step is None:
            return ()
        async with AsyncExitStack() as stack:
            if step.kind in TOUCHES_DRIVER:
                gone = await stack.enter_async_context(self._hands.off_the_gpus(f"{step} repairs it"))
                if not gone:
                    return (Obstacle(Precondition.PROCESSES, "gpuwarden's own reader cannot be ended"),)
            if barred := await self._obstacles(planned, by, unable):  # the turn of the fleet took time
                return barred
            before = self._memory()
            begun = Try(
                id=secrets.token_hex(8),
                step=step.kind,
                service=step.service,
                slot=step.slot,
                uuid=step.uuid,
                board=planned.board,
                number=planned.number,
                by=by,
                at=self._clock(),
                boot_id=self._boot_id,
                finding=str(planned.finding.key),
            )
            self._append(EventKind.REPAIR_BEGUN, begun.finding, write(begun))
            if not await self._hands.committed():
                self._ended(begun, Result(Outcome.REFUSED, UNWRITTEN))
                return (Obstacle(Precondition.LEDGER, UNWRITTEN),)
            scene = replace(self._sight.scene(ordered=bool(by)), memory=before, fleet="")  # without its own beginning
            if barred := obstacles(scene, planned):  # a disk may take long to write
                self._ended(begun, Result(Outcome.REFUSED, barred[0].text))
                return barred
            result = await self._result(begun, _reason(scene))
            if begun.step is StepKind.REBOOT and result.outcome is Outcome.DONE:
                log.warning("repair: the node is about to reboot", finding=begun.finding, text=result.text)
            else:
                self._ended(begun, result)
        return ()

    async def _result(self, begun: Try, reason: str) -> Result:
        """Request the step. Without an answer, query its result."""
        try:
            return await client.request(
                self._socket,
                begun.id,
                begun.what,
                WITHIN[begun.step],
                progress=lambda text: log.info("repair: step continues", step=str(begun.what), text=text),
                reason=reason if begun.step is StepKind.REBOOT else "",
            )
        except NotBegun as error:
            return Result(Outcome.REFUSED, str(error))
        except NoAnswer as error:
            log.warning("repair: no answer from the helper, asking for its state", reason=str(error))
            return await self._found_out(begun)

    async def _found_out(self, begun: Try) -> Result:
        """Query the result of a step until it is known. The step is never requested again."""
        loop = asyncio.get_running_loop()
        until, unknown, text = loop.time() + FOUND_OUT_WITHIN, 0, ""
        while loop.time() < until and unknown < 2:  # unanswered if the helper cannot read its notebook
            try:
                result = await client.result(self._socket, begun.id)
            except NoAnswer as error:
                text = str(error)
            else:
                if result.outcome not in (None, Outcome.UNKNOWN):
                    return result
                unknown += result.outcome is Outcome.UNKNOWN
                text = result.text
            if unknown < 2:
                await asyncio.sleep(LOOKED_AGAIN)
        return Result(Outcome.UNKNOWN, text)

    # --- what an earlier turn, or an earlier daemon, left

    async def _settle(self, begun: Try) -> None:
        """End a try that was begun, once its result is known."""
        async with AsyncExitStack() as stack:
            if begun.step in TOUCHES_DRIVER and begun.boot_id == self._boot_id:
                await stack.enter_async_context(self._hands.off_the_gpus(f"{begun.what} repairs it"))
            result = await self._came_of(begun)
            if result.outcome is not None:
                self._ended(begun, result)
        await self._leave()

    async def _came_of(self, begun: Try) -> Result:
        if begun.boot_id != self._boot_id:
            rebooted = begun.step is StepKind.REBOOT
            return Result(Outcome.REBOOTED, "") if rebooted else Result(Outcome.UNKNOWN, BOOTED)
        result = await self._found_out(begun)
        if begun.step is not StepKind.REBOOT or result.outcome is not Outcome.DONE:
            return result
        left = REBOOTS_WITHIN - (self._clock().boottime - begun.at.boottime)
        await asyncio.sleep(max(0.0, left))
        return Result(
            Outcome.FAILED, f"the node has not rebooted within {REBOOTS_WITHIN / 60:.0f} minutes: {result.text}"
        )

    # --- events, and the fleet

    def _ended(self, begun: Try, result: Result) -> None:
        over = Ended(
            id=begun.id,
            step=begun.step,
            outcome=result.outcome or Outcome.UNKNOWN,
            text=result.text,
            board=begun.board,
            at=self._clock(),
            boot_id=self._boot_id,
        )
        self._append(EventKind.REPAIR_ENDED, begun.finding, write(over), step=Step.NOW)

    def _append(self, kind: EventKind, finding: str, data: Evidence, step: Step = Step.SOON) -> None:
        event = Event(kind=kind, at=self._clock(), boot_id=self._boot_id, key=Key.parse(finding), data=data)
        self._hands.append([event], step=step)

    async def _entered(self) -> str:
        return "" if self._hands.turn is None else await self._hands.turn.enter()

    async def _leave(self) -> None:
        if self._hands.turn is not None:
            await self._hands.turn.leave()


def _reason(scene: Scene) -> str:
    """Return the text of the exclusion, as the reason of the reboot: Slurm writes that over the text, which must be the
    same after the boot.
    """
    holds = scene.policy.holds
    return (holds.get(SLURM) or next(iter(holds.values()))).reason
