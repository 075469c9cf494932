"""From an intent to its outcome: it is in the ledger, look, write, read back, and the outcome goes into the ledger.

An attempt may end anywhere, with the process or for want of an answer. What is left is the intent in the ledger, and the
next attempt begins with a look: what was written is found, what was not is written, and nothing is done twice. A write
that timed out is no failed one: it may be done when the scheduler wakes up, so that only a look says what came of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gpuwarden.actuators.base import Actuator, ActuatorError, ActuatorUnavailable, BudgetUnknown
from gpuwarden.policy import breaker
from gpuwarden.policy.model import Act, Budget, Census, Intent, Outcome, Owner, Result, Standing, Why
from gpuwarden.policy.preconditions import answer
from gpuwarden_collectors.base import Clock

Answer = TypeVar("Answer")
Committed = Callable[[], Awaitable[bool]]
"""Whether everything decided so far is on disk, after a short while at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds. The second count of the breaker comes `recount_after` the write. A retry comes after `first`, doubling up to
    `most`; where the scheduler is away within `away` and `breaker.spread_of_return`; where the breaker is open after `breaker_first`, up to `breaker_most`; after a refusal, which a
    person must mend, after `refused`. `backstop`: an actuator bounds its own calls; one that does not come back is given up
    after this.
    """

    budget: Budget = field(default_factory=Budget)
    recount_after: float = 2.0
    first: float = 2.0
    most: float = 120.0
    away: float = 5.0
    breaker_first: float = 60.0
    breaker_most: float = 900.0
    refused: float = 3_600.0
    backstop: float = 180.0


class Outbox:
    """One actuator's. `standing` is the last look, `refused` why that was refused for good, `key` that of the intent at hand;
    `held_back` is why the breaker holds it back. Both are "" where nothing does.

    `wake` ends a pause, for instance because something else is wanted; `wanted` says whether an intent still is. `limits`
    may be changed at any time, and hold from the next question on.
    """

    def __init__(
        self,
        actuator: Actuator,
        *,
        committed: Committed,
        wanted: Callable[[Intent], bool],
        looked: Callable[[], None],
        limits: Limits,
        clock: Clock,
        chance: random.Random | None = None,
    ) -> None:
        self.actuator = actuator
        self.standing: Standing | None = None
        self.refused = ""
        self.held_back = ""
        self.key = ""
        self.wake = asyncio.Event()
        self._committed = committed
        self._wanted = wanted
        self._looked = looked
        self.limits = limits
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._failed = 0  # its attempts so far that came to nothing
        self._pool: int | None = None  # nodes, as last known

    async def look(self) -> None:
        """Never raises: a scheduler that says nothing is a standing too."""
        with contextlib.suppress(ActuatorError):
            await self._look()

    async def attempt(self, intent: Intent) -> tuple[Outcome, float]:
        """One attempt, and in how many seconds the next is due if the outcome leaves something to do."""
        first = intent.key != self.key
        if first:
            self.key, self._failed, self.held_back = intent.key, 0, ""
        soon = False
        try:
            outcome = await self._attempt(intent, first=first)
        except ActuatorError as error:
            # Whether the breaker is open is not known, and who has to step back does so soon; where nobody counts, it is.
            self.held_back = str(error) if isinstance(error, BudgetUnknown) else ""
            soon = isinstance(error, BudgetUnknown) and error.soon
            outcome = Outcome(result=Result.REFUSED if error.permanent else Result.RETRY, text=str(error))
        if outcome.result not in (Result.RETRY, Result.REFUSED):
            self.held_back = ""
        return outcome, self._next(outcome, soon=soon or not self.held_back)

    def idle(self) -> None:
        """There is no intent at hand."""
        self.key, self.held_back = "", ""

    async def pause(self, seconds: float) -> None:
        # Not wait_for: that of Python 3.11 loses a cancellation that comes together with the wake.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()

    async def _stay(self, intent: Intent, seconds: float) -> None:
        """All of these seconds, as long as the intent is wanted."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while self._wanted(intent) and (left := until - loop.time()) > 0:
            self.wake.clear()
            await self.pause(left)

    async def _attempt(self, intent: Intent, *, first: bool) -> Outcome:
        if not await self._committed() and intent.act is Act.RESTORE:
            return Outcome(result=Result.RETRY, text="the ledger cannot be written: nothing is restored meanwhile")
        if intent.act is Act.RESTORE or intent.why is not Why.FAILURE:
            return await self._write(intent)
        if first:
            pool = self._pool or (self.standing or await self._look()).pool
            await self._stay(intent, self._chance.uniform(0.0, breaker.spread(pool)))
        return await self._exclude(intent) if self._wanted(intent) else SUPERSEDED

    async def _exclude(self, intent: Intent) -> Outcome:
        """For a failure: who else is out counts before the write and after it."""
        census = await self._census()
        found = answer(intent, await self._look())
        if found is None:
            self.held_back = breaker.refusal(self.limits.budget, census)
            if self.held_back:
                return Outcome(result=Result.RETRY, text=f"the breaker is open: {self.held_back}")
            found = await self._written(intent)
        if found.result not in (Result.DONE, Result.ALREADY):
            return found
        await self._stay(intent, max(self.limits.recount_after, census.visible_after))
        return await self._recount(intent, found) if self._wanted(intent) else SUPERSEDED

    async def _recount(self, intent: Intent, found: Outcome) -> Outcome:
        """It stands; now see who else came meanwhile, and step back if they were first."""
        self.held_back = breaker.refusal(self.limits.budget, await self._census())
        if not self.held_back:
            return found
        back = await self._write(replace(intent, act=Act.RESTORE, since=found.since))
        done = "stepped back" if back.result in (Result.DONE, Result.ALREADY) else f"cannot step back ({back.text})"
        return Outcome(result=Result.RETRY, text=f"{done}, the breaker is open: {self.held_back}")

    async def _write(self, intent: Intent) -> Outcome:
        return answer(intent, await self._look()) or await self._written(intent)

    async def _written(self, intent: Intent) -> Outcome:
        """Write what the look a moment ago allows, and read back."""
        assert self.standing is not None  # noqa: S101 - it was read a moment ago
        await self._bounded(self.actuator.apply(intent, self.standing))
        after = await self._look()
        if intent.act is Act.RESTORE and after.owner is not Owner.OURS:
            return Outcome(result=Result.DONE)  # whoever excluded it in that moment
        stands = answer(intent, after)
        if stands is None:
            return Outcome(result=Result.RETRY, text="it was written, and does not stand")
        return Outcome(result=Result.DONE, since=stands.since) if stands.result is Result.ALREADY else stands

    async def _census(self) -> Census:
        """Raises BudgetUnknown where this node can be looked at and nobody can be counted."""
        try:
            return await self._bounded(self.actuator.census())
        except BudgetUnknown:
            raise
        except ActuatorError as error:
            await self._look()
            raise BudgetUnknown(str(error), permanent=error.permanent, soon=True) from error

    def _away(self) -> bool:
        return self.standing is not None and not self.standing.reachable and not self.refused

    async def _look(self) -> Standing:
        try:
            self.standing, self.refused = await self._bounded(self.actuator.look()), ""
            self._pool = self.standing.pool or self._pool
        except ActuatorError as error:
            self.refused = str(error) if error.permanent else ""
            self.standing = Standing(at=self._clock(), reachable=False, trouble=str(error))
            raise
        finally:
            self._looked()
        return self.standing

    async def _bounded(self, call: Awaitable[Answer]) -> Answer:
        try:
            async with asyncio.timeout(self.limits.backstop):
                return await call
        except TimeoutError:
            name, seconds = self.actuator.name, self.limits.backstop
            raise ActuatorUnavailable(f"{name} has not come to an end within {seconds:g} s") from None

    def _next(self, outcome: Outcome, *, soon: bool) -> float:
        """Seconds until the next attempt: by chance up to half as long again, so that a fleet does not come in step."""
        limits = self.limits
        if outcome.result is Result.REFUSED:
            return self._about(limits.refused)
        if outcome.result is not Result.RETRY:
            return 0.0
        first, most = (limits.first, limits.most) if soon else (limits.breaker_first, limits.breaker_most)
        delay = self._about(min(most, first * 2.0 ** min(self._failed, 16)))
        self._failed += 1
        if not self._away():
            return delay
        return self._until_return() if self._pool is not None else min(delay, self._until_return())

    def _until_return(self) -> float:
        """Seconds until a scheduler that is away is asked again; a pool of unknown size is taken for the largest there is."""
        spread = breaker.spread_of_return(breaker.LARGEST_POOL if self._pool is None else self._pool)
        return self.limits.away * self._chance.uniform(0.5, 1.0) + self._chance.uniform(0.0, spread)

    def _about(self, seconds: float) -> float:
        return seconds * self._chance.uniform(1.0, 1.5)


SUPERSEDED = Outcome(result=Result.RETRY, text="something else is wanted by now")
