"""Operators' orders: events like any other, carried out by the actuators' tasks, and answered in a line of text."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gpuwarden.actuators.reconciler import Reconciler
from gpuwarden.engine import override_text
from gpuwarden.engine.journal import Append, Step
from gpuwarden.health.model import Event, Verdict
from gpuwarden.policy import orders
from gpuwarden.policy.model import Act, Intent, Outcome, Result, Settings
from gpuwarden.policy.situation import live
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.base import Clock

SETTLES_WITHIN = 3.0
"""Seconds that an operator waits for the outcome of an order; the control socket answers within 4."""


class Outcomes:
    """The last outcome of each actuator's intents. Iteration yields actuator, key of the intent, and outcome."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, Outcome]] = {}
        self._settled = asyncio.Event()

    def __iter__(self) -> Iterator[tuple[str, str, Outcome]]:
        return ((name, key, outcome) for name, (key, outcome) in self._last.items())

    def put(self, intent: Intent, outcome: Outcome) -> tuple[str, Outcome] | None:
        """Keep an outcome. Returns the one it replaces, with the key of its intent, or None."""
        before = self._last.get(intent.actuator)
        self._last[intent.actuator] = (intent.key, outcome)
        return before

    def of(self, name: str, key: str) -> Outcome | None:
        """Outcome of this intent, or None if there is none yet."""
        last_key, outcome = self._last.get(name, ("", None))
        return outcome if last_key == key else None

    def forget(self, name: str) -> None:
        self._last.pop(name, None)

    def settled(self) -> None:
        """Wake waiting orders: all events of the last outcome are recorded."""
        self._settled.set()

    async def wait(self, keys: Mapping[str, str], within: float) -> None:
        """Wait until all these intents, by actuator, have an outcome, for at most `within` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while any(self.of(name, key) is None for name, key in keys.items()):
                    self._settled.clear()
                    await self._settled.wait()


class StaysOut(ValueError):  # noqa: N818 - a state of the node
    """A restoration ended the operator's exclusion, and the node stays out for failures."""


class Orders:
    """Carries out operators' orders. `append` is the journal's. `state` and `settings` are called each time, since both
    change.
    """

    def __init__(
        self,
        boxes: Mapping[str, Reconciler],
        outcomes: Outcomes,
        *,
        append: Append,
        state: Callable[[], PolicyState],
        settings: Callable[[], Settings],
        boot_id: str,
        clock: Clock,
    ) -> None:
        self._boxes = boxes
        self._outcomes = outcomes
        self._append = append
        self._state = state
        self._settings = settings
        self._boot_id = boot_id
        self._clock = clock

    async def exclude(self, by: str, text: str) -> str:
        """Exclude the node. Returns the result for people. Raises ValueError, with the reason, if it cannot be ordered
        or cannot be done.
        """
        return await self._order([orders.exclude(by, text, self._boot_id, self._clock())], Act.EXCLUDE)

    async def restore(self, by: str, verdict: Verdict, *, force: bool = False, untested: bool = False) -> str:
        """Restore the node. Returns the result for people. Raises ValueError as `exclude` does, and StaysOut where
        failures keep the node out.
        """
        state, settings = self._state(), self._settings()
        failures = live(state, verdict)
        try:
            ordered = orders.restore(
                state,
                verdict,
                self._boxes,
                by=by,
                boot_id=self._boot_id,
                now=self._clock(),
                settings=settings,
                force=force,
                untested=untested,
            )
        except orders.FailuresStand as error:
            raise ValueError(override_text.refusal(error.findings, verdict, enforce=settings.enforce)) from error
        forgotten = [
            f"{name}: forgotten, since it is no longer configured; its exclusion may still be in force there"
            for name in orders.unconfigured(state, self._boxes)
        ]
        if not failures:
            return "; ".join((await self._order(ordered, Act.RESTORE), *forgotten))
        if force:
            answer = await self._order(ordered, Act.RESTORE)
            return "\n".join(("; ".join((answer, *forgotten)), *override_text.overridden(failures, verdict)))
        outcomes = await self._outcomes_of(ordered, Act.EXCLUDE)
        lines = [*map(_line, outcomes.items()), *forgotten]
        raise StaysOut(override_text.stays_out(failures, verdict, lines, done=_done(outcomes.values())))

    def announce(self, within: float, text: str, by: str) -> str:
        """Announce the end of this machine. Returns what follows from it, for people."""
        self._append([orders.announce(within, text, by, self._boot_id, self._clock())], step=Step.NEXT)
        settings = self._settings()
        when = f"{settings.horizon:g} s before it" if within > settings.horizon else "at once"
        effect = f"the heartbeat shows it {when}"
        if self._boxes:
            effect += (
                ", and the node is excluded" if settings.enforce else "; no scheduler is changed, since mode is observe"
            )
        return f"announced: this machine ends in {within:g} s; {effect}"

    def call_off(self, by: str) -> None:
        """Call off the announced end. Raises ValueError if there is nothing to call off."""
        called_off = orders.call_off(self._state(), by, self._boot_id, self._clock(), self._settings().horizon)
        self._append([called_off], step=Step.NEXT)

    async def _order(self, events: Sequence[Event], act: Act) -> str:
        outcomes = await self._outcomes_of(events, act)
        answers = list(map(_line, outcomes.items()))
        if _rejected(outcomes.values()):
            raise ValueError("; ".join(answers))
        return "; ".join(answers) or self._no_request(act)

    async def _outcomes_of(self, events: Sequence[Event], act: Act) -> dict[str, Outcome | None]:
        """Append these events. Returns, by actuator, the outcomes of the resulting intents within SETTLES_WITHIN; None
        if there is none yet.
        """
        self._append(events, step=Step.NOW)
        pending = self._state().pending
        keys = {name: pending[name].key for name in self._boxes if name in pending and pending[name].act is act}
        for name in keys:  # the cause of an earlier refusal may be fixed by now
            self._outcomes.forget(name)
            self._boxes[name].wake.set()
        await self._outcomes.wait(keys, SETTLES_WITHIN)
        return {name: self._outcomes.of(name, key) for name, key in keys.items()}

    def _no_request(self, act: Act) -> str:
        if self._boxes:
            reasons = "; ".join(hold.reason for hold in self._state().holds.values())
            return f"already excluded, and left as it is: {reasons}" if reasons else "it waits for the scheduler"
        done = "excluded" if act is Act.EXCLUDE else "no longer excluded by an operator"
        return f"{done}: the heartbeat and the verdict file show it; no scheduler is configured"


def _rejected(outcomes: Iterable[Outcome | None]) -> bool:
    return any(outcome is not None and outcome.result in (Result.DROPPED, Result.REFUSED) for outcome in outcomes)


def _done(outcomes: Iterable[Outcome | None]) -> bool:
    return all(outcome is not None and outcome.result in (Result.DONE, Result.ALREADY) for outcome in outcomes)


def _line(outcome: tuple[str, Outcome | None]) -> str:
    return f"{outcome[0]}: {_answer(outcome[1])}"


def _answer(outcome: Outcome | None) -> str:
    match outcome:
        case None:
            return "no answer yet: the order stays in force, and is carried out when the scheduler answers"
        case Outcome(result=Result.DONE):
            return f"done; {outcome.text}" if outcome.text else "done"
        case Outcome(result=Result.ALREADY):
            return outcome.text or "no change was needed"
        case Outcome(result=Result.DROPPED):
            return f"not done: {outcome.text}"
        case Outcome(result=Result.REFUSED):
            return f"refused: {outcome.text}"
    return f"not done yet, will be retried: {outcome.text}"
