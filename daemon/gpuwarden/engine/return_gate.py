"""The test before the return, carried out: one at a time, begun in the ledger before it is begun outside, its end in the ledger.

Policy says when it is due (`policy/return_gate.py`); whether it passed is decided by the results in the ledger. A daemon that is killed
meanwhile leaves GATE_BEGUN without GATE_ENDED, which the next one ends; the test ends with the connection.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuwarden.base.log import get_logger
from gpuwarden.engine.gate_client import PROBE_WITHIN, NoAnswer, NoService, ask, shown
from gpuwarden.engine.journal import Append, Step
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, GpuVerdict
from gpuwarden.policy.at_once import asked_again
from gpuwarden.policy.gate_state import Gate
from gpuwarden.policy.return_gate import Assessed, GateState, begun, ended, untested, void
from gpuwarden.publish.snapshot import ReturnGateShown
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.slurm.errors import SlurmError

AFTER_FAULT = 30.0
"""Seconds until it is begun again after a fault of ours."""
PROBE_AGAIN = 10.0
"""Seconds between two probes that both find that this host cannot test: while a package is replaced the socket is gone for a moment."""
WRITTEN_AGAIN = 10.0
"""Seconds until the ledger is tried again that could not be written."""
UNWRITTEN = "the ledger cannot be written: no test is begun meanwhile"
LEAVES_WITHIN = 5.0
FIRST_WITHIN = 5.0
"""Seconds by which the first question to Slurm is put off, by chance: a fleet may be restarted in one go."""

log = get_logger("gpuwarden")


class Turn(Protocol):
    """Whose turn it is among the nodes of the fleet."""

    async def enter(self) -> str:
        """Why it is not this node's turn; "" if it is. Raises SlurmError."""

    async def leave(self) -> None:
        """Raises SlurmError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """`turn` None: nobody can be asked how many nodes are tested."""

    socket: Path
    level: Level
    within: float
    turn: Turn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What cannot be tested here. `impossible`: why nothing can, "" if something may. `untestable`: by slot, why a GPU cannot where others can."""

    impossible: str = ""
    untestable: Mapping[str, str] = field(default_factory=dict, hash=False)


class ReturnGate:
    """`append` is the journal's, `gate` that of policy's state, `gpus` those of the verdict; `changed` asks for a step. `run`: the name of the
    test that runs now.
    """

    def __init__(
        self,
        options: GateOptions,
        *,
        append: Append,
        gate: Callable[[], Gate | None],
        gpus: Callable[[], tuple[GpuVerdict, ...]],
        changed: Callable[[], None],
        committed: Callable[[], Awaitable[bool]],
        boot_id: str,
        clock: Clock,
    ) -> None:
        self.run = ""
        self._options = options
        self._append = append
        self._gate = gate
        self._gpus = gpus
        self._changed = changed
        self._committed = committed
        self._boot_id = boot_id
        self._clock = clock
        self._host = Probed()
        self._not_now = ""
        self._refusals = 0
        self._cut_short = False
        self._assessed: Assessed | None = None
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._first())

    def step(self, assessed: Assessed | None) -> None:
        """After each decision of policy. Does not wait."""
        self._assessed = assessed
        due = assessed is not None and assessed.state is GateState.DUE
        if due and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._turn())

    def cut_short(self) -> None:
        """The daemon ends the test that runs."""
        self._cut_short = True

    async def stop(self) -> None:
        """The connection is closed, and the test ends with it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=LEAVES_WITHIN)

    def shown(self) -> ReturnGateShown:
        gate, assessed = self._gate(), self._assessed
        text = self._not_now or ("" if assessed is None else assessed.text)
        if gate is None or assessed is None:
            state = "impossible" if self._host.impossible else "clear" if gate is None else "waiting"
            why = self._host.impossible or "; ".join(self._host.untestable.values())
            return ReturnGateShown(state=state, text=why, level=self._options.level.value)
        state = assessed.state.value
        return ReturnGateShown(
            state={"due": "waiting", "void": "impossible", "passed": "clear"}.get(state, state),
            text=gate.text if assessed.state is GateState.VOID else text, level=self._options.level.value,
        )  # fmt: skip

    # --- one test

    async def _first(self) -> None:
        """Whether this host can test, and the mark that a daemon before this one may have left."""
        self._host = await self._probed()
        if self._host.impossible:
            log.info("return gate is void: this host cannot test", reason=self._host.impossible)
        for slot, why in self._host.untestable.items():
            log.info("return gate leaves out a GPU that cannot be tested", gpu=slot, reason=why)
        self._changed()
        if self._options.turn is not None:
            await asyncio.sleep(self._chance.uniform(0.0, FIRST_WITHIN))
            await self._leave()
            self._changed()

    async def _turn(self) -> None:
        try:
            if not await self._committed():
                self._not_now = UNWRITTEN
                await asyncio.sleep(WRITTEN_AGAIN)
                return
            self._not_now = await self._entered()
            if self._not_now:
                self._refusals += 1
                await asyncio.sleep(self._chance.uniform(*asked_again(self._refusals)))  # not in step with others
                return
            self._refusals = 0
            try:
                await self._tested()
            finally:
                await self._leave()
        except Exception:  # a fault of ours here must not end the daemon; the node stays out
            log.exception("return gate failed unexpectedly")
            await asyncio.sleep(AFTER_FAULT)
        finally:
            self.run = self._not_now = ""
            asyncio.get_running_loop().call_soon(self._changed)

    async def _tested(self) -> None:
        self._host = host = await self._twice_probed()
        gate = self._gate()
        if gate is None or gate.run:
            return
        if why := host.impossible or untested(gate, host.untestable):
            self._appended(EventKind.GATE_ENDED, void(gate, why))
            return
        self.run, self._cut_short = secrets.token_hex(8), False
        self._appended(EventKind.GATE_BEGUN, begun(gate, self.run, host.untestable), step=Step.SOON)
        written = await self._committed()
        text = await self._answer() if written else UNWRITTEN
        after = self._gate()
        if after is not None and after.run == self.run:
            self.run = ""
            is_try = written and not self._cut_short
            over = ended(after, self._options.level, self._gpus(), text, self._clock(), is_try=is_try)
            self._appended(EventKind.GATE_ENDED, over)

    async def _answer(self) -> str:
        """What came of the test, in one line."""
        options = self._options
        try:
            return shown(await ask(options.socket, {"verb": "test", "level": options.level.value}, options.within))
        except NoAnswer as error:
            return str(error)

    async def _twice_probed(self) -> Probed:
        host = await self._probed()
        if why := host.impossible or "; ".join(host.untestable.values()):
            self._not_now = f"{why}; asked again in {PROBE_AGAIN:g} s"
            await asyncio.sleep(PROBE_AGAIN)
            host, self._not_now = await self._probed(), ""
        return host

    async def _probed(self) -> Probed:
        """Empty also where nothing is known: then the test itself says it."""
        try:
            answer = await ask(self._options.socket, {"verb": "probe"}, PROBE_WITHIN)
        except NoService as error:
            return Probed(impossible=str(error))
        except NoAnswer:
            return Probed()
        why, some = answer.get("impossible"), answer.get("untestable")
        texts = some.items() if isinstance(some, dict) else ()
        untestable = {slot: text for slot, text in texts if isinstance(text, str)}
        return Probed(impossible=why if isinstance(why, str) else "", untestable=untestable)

    def _appended(self, kind: EventKind, gate: Gate, step: Step = Step.NOW) -> None:
        self._append([Event(kind=kind, at=self._clock(), boot_id=self._boot_id, data=write(gate))], step=step)

    # --- among the others of the fleet

    async def _entered(self) -> str:
        if self._options.turn is None:
            return ""
        try:
            return await self._options.turn.enter()
        except SlurmError as error:
            return f"it cannot be counted how many nodes are tested: {error}"

    async def _leave(self) -> None:
        if self._options.turn is None:
            return
        try:
            await self._options.turn.leave()
        except SlurmError as error:
            log.info("mark of the test stays until its end", reason=str(error))
