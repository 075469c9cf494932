"""Runs the test before the return, one at a time. The ledger records its start before it begins, and its end.

`rules.py` decides when it is due, and the results in the ledger whether it passed. A daemon that is killed meanwhile
leaves GATE_BEGUN without GATE_ENDED, which the next daemon adds; the test ends when the connection closes.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from pathlib import Path

from gpuwarden.actuators.fleet_turn import Turn
from gpuwarden.base.log import get_logger
from gpuwarden.base.services import NoAnswer, NoService, NotBegun
from gpuwarden.engine.journal import Append, Step
from gpuwarden.features.active_test.at_once import asked_again
from gpuwarden.features.active_test.gate.client import PROBE_WITHIN, ask, interrupted, shown
from gpuwarden.features.active_test.gate.rules import (
    HINDERED_FOR,
    Assessed,
    GateState,
    begun,
    ended,
    hindered,
    untested,
    void,
)
from gpuwarden.features.active_test.gate.state import Gate
from gpuwarden.features.active_test.snapshot import GateShown
from gpuwarden.health.event_data import write
from gpuwarden.health.model import Event, EventKind, GpuVerdict
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.dataclass import dataclass

AFTER_FAULT = 30.0
"""Seconds until the next attempt after an unexpected error of the daemon."""
PROBE_AGAIN = 10.0
"""Seconds between two probes that must both fail: the socket is missing for a moment while a package is replaced."""
WRITTEN_AGAIN = 10.0
"""Seconds until the next attempt when the ledger cannot be written."""
HINDERED_AGAIN = 60.0
"""Seconds between two probes whether a host still lacks something for a test."""
STOPPED = "gpuwarden was stopped while the test ran"
UNWRITTEN = "the ledger cannot be written: no test is begun meanwhile"
LEAVES_WITHIN = 5.0
FIRST_WITHIN = 5.0
"""Seconds within which the first request to Slurm is made, at random: a whole fleet may be restarted at once."""

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class GateOptions:
    """Settings of the gate. `turn` is None if nothing limits how many nodes are tested at once."""

    socket: Path
    within: float
    turn: Turn | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """The result of a probe. `lacking`: what this host lacks for a test, which may come back. `impossible`: why no GPU
    can be tested with its settings. Both are "" if a test may run. `untestable`: by slot, why a GPU cannot be tested
    while others can.
    """

    lacking: str = ""
    impossible: str = ""
    untestable: Mapping[str, str] = field(default_factory=dict, hash=False)


class ReturnGate:
    """Runs the test before the return.

    `append` is the journal's. `gate` returns the gate of policy's state, `level` the level that it requires,
    `could_test` whether this host was ever able to test, `gpus` the GPUs of the verdict; `changed` requests a step.
    `run`: the name of the test that is running.
    """

    def __init__(
        self,
        options: GateOptions,
        *,
        append: Append,
        gate: Callable[[], Gate | None],
        level: Callable[[], Level],
        could_test: Callable[[], bool],
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
        self._level = level
        self._could_test = could_test
        self._gpus = gpus
        self._changed = changed
        self._committed = committed
        self._boot_id = boot_id
        self._clock = clock
        self._host = Probed()
        self._not_now = ""
        self._refusals = 0
        self._cut_short = False
        self._hindered_since: float | None = None
        self._assessed: Assessed | None = None
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._first())

    def step(self, assessed: Assessed | None) -> None:
        """Begin a test if one is due. Called after each decision of policy. Does not block."""
        self._assessed = assessed
        due = assessed is not None and assessed.state is GateState.DUE
        if due and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._turn())

    def cut_short(self) -> None:
        """Record that the daemon itself ended the running test."""
        self._cut_short = True

    async def stop(self) -> None:
        """Close the connection, which ends the test. It does not count as a try."""
        self._ended(STOPPED, is_try=False, pause=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=LEAVES_WITHIN)

    def shown(self) -> GateShown:
        gate, assessed = self._gate(), self._assessed
        text = self._not_now or ("" if assessed is None else assessed.text)
        if gate is None or assessed is None:
            impossible = (
                "" if self._host.lacking and self._could_test() else self._host.lacking or self._host.impossible
            )
            state = "impossible" if impossible else "clear" if gate is None else "waiting"
            why = impossible or self._hindrance()
            return GateShown(state=state, text=why, level=self._level().value)
        state = assessed.state.value
        return GateShown(
            state={"due": "waiting", "void": "impossible", "passed": "clear"}.get(state, state),
            text=gate.text if assessed.state is GateState.VOID else text,
            level=self._level().value,
        )

    def _hindrance(self) -> str:
        """Return what would prevent or limit a test, for people; "" if nothing would."""
        if self._host.lacking:
            return f"a test could not begin now: {self._host.lacking}"
        return "; ".join(f"left out: {text}" for text in self._host.untestable.values())

    # --- one test

    async def _first(self) -> None:
        """Probe whether this host can test, and remove the mark that an earlier daemon may have left."""
        self._host = await self._probed()
        if why := self._host.lacking or self._host.impossible:
            log.warning("return gate: this host cannot test", reason=why, could_before=self._could_test())
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
                await self._pause(WRITTEN_AGAIN, UNWRITTEN)
                return
            self._host = await self._twice_probed()
            if self._host.lacking and self._could_test():
                await self._hindered(self._host.lacking)
                return
            self._hindered_since = None
            if (gate := self._gate()) is None or gate.run:
                return
            if why := self._host.lacking or self._host.impossible or untested(gate, self._host.untestable):
                self._appended(EventKind.GATE_ENDED, void(gate, why))
                return
            if not_now := await self._entered():
                self._refusals += 1
                await self._pause(
                    self._chance.uniform(*asked_again(self._refusals)), not_now
                )  # random: nodes do not ask in step
                return
            self._refusals = 0
            try:
                await self._tested(gate, self._host)
            finally:
                await self._leave()
        except Exception:  # an error here must not end the daemon; the node stays excluded
            log.exception("return gate failed unexpectedly")
            await asyncio.sleep(AFTER_FAULT)
        finally:
            self.run = self._not_now = ""
            asyncio.get_running_loop().call_soon(self._changed)

    async def _pause(self, seconds: float, why: str) -> None:
        self._not_now = why
        await asyncio.sleep(seconds)

    async def _hindered(self, why: str) -> None:
        """Retry later on a host that could test before: what it lacks may come back, for example when a package is
        replaced. After HINDERED_FOR an operator must act, so that no node returns untested for this reason.
        """
        now = self._clock().boottime
        since = self._hindered_since = now if self._hindered_since is None else self._hindered_since
        if now - since < HINDERED_FOR:
            until = f"retried every {HINDERED_AGAIN:g} s for {HINDERED_FOR / 60:.0f} minutes, then an operator must act"
            await self._pause(HINDERED_AGAIN, f"no test can begin: {why}; {until}")
            return
        self._hindered_since = None
        if (gate := self._gate()) is not None and not gate.run:
            self._appended(EventKind.GATE_ENDED, hindered(gate, why))

    async def _tested(self, gate: Gate, host: Probed) -> None:
        self.run, self._cut_short = secrets.token_hex(8), False
        self._appended(EventKind.GATE_BEGUN, begun(gate, self.run, host.untestable), step=Step.SOON)
        written = await self._committed()
        text = await self._answer() if written else UNWRITTEN
        self._ended(text, is_try=written and not self._cut_short)

    def _ended(self, text: str, *, is_try: bool, pause: bool = True) -> None:
        after = self._gate()
        if after is not None and self.run and after.run == self.run:
            self.run = ""
            over = ended(after, self._level(), self._gpus(), text, self._clock(), pause=pause, is_try=is_try)
            self._appended(EventKind.GATE_ENDED, over)

    async def _answer(self) -> str:
        """Request the test and return its result in one line. Records whether it was cut short or never began."""
        options = self._options
        try:
            document = await ask(options.socket, {"verb": "test", "level": self._level().value}, options.within)
        except NoAnswer as error:
            self._cut_short = self._cut_short or isinstance(error, NotBegun)
            return str(error)
        self._cut_short = self._cut_short or interrupted(document)
        return shown(document)

    async def _twice_probed(self) -> Probed:
        host = await self._probed()
        if why := host.lacking or host.impossible or "; ".join(host.untestable.values()):
            await self._pause(PROBE_AGAIN, f"{why}; checked again in {PROBE_AGAIN:g} s")
            host, self._not_now = await self._probed(), ""
        return host

    async def _probed(self) -> Probed:
        """Probe what cannot be tested here. Empty if the service does not answer: then the test itself reports the
        cause. Appends GATE_ABLE the first time that this host can test.
        """
        try:
            answer = await ask(self._options.socket, {"verb": "probe"}, PROBE_WITHIN)
        except NoService as error:
            return Probed(lacking=str(error))
        except NoAnswer:
            return Probed()
        lacking, impossible, some = answer.get("lacking"), answer.get("impossible"), answer.get("untestable")
        texts = some.items() if isinstance(some, dict) else ()
        host = Probed(
            lacking=lacking if isinstance(lacking, str) else "",
            impossible=impossible if isinstance(impossible, str) else "",
            untestable={slot: text for slot, text in texts if isinstance(text, str)},
        )
        if not host.lacking and not host.impossible and not self._could_test():
            able = Event(kind=EventKind.GATE_ABLE, at=self._clock(), boot_id=self._boot_id)
            self._append([able], step=Step.SOON)
        return host

    def _appended(self, kind: EventKind, gate: Gate, step: Step = Step.NOW) -> None:
        self._append([Event(kind=kind, at=self._clock(), boot_id=self._boot_id, data=write(gate))], step=step)

    # --- among the others of the fleet

    async def _entered(self) -> str:
        return "" if self._options.turn is None else await self._options.turn.enter()

    async def _leave(self) -> None:
        if self._options.turn is not None:
            await self._options.turn.leave()
