"""From an intent to its outcome: the intent is in the ledger; read, write, read back; the outcome goes into the ledger.

An attempt may end anywhere, with the process or without a response. What is left is the intent in the ledger, and the
next attempt begins with a read: what was written is found, what was not is written, and nothing is done twice. A write
that timed out has not failed: the scheduler may still do it, so that only a read shows its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from dataclasses import field, replace
from typing import TypeVar

from gpuwarden.actuators.base import (
    Actuator,
    ActuatorDenied,
    ActuatorError,
    ActuatorOverloaded,
    ActuatorUnavailable,
    ActuatorWaits,
    BudgetUnknown,
)
from gpuwarden.policy import breaker
from gpuwarden.policy.model import Act, Budget, FleetCount, Intent, NodeState, Outcome, Owner, Result, Why
from gpuwarden.policy.preconditions import answer, lost, still_closed
from gpuwarden.policy.reasons import parse
from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.dataclass import dataclass

T = TypeVar("T")
Committed = Callable[[], Awaitable[bool]]
"""Whether everything decided so far is on disk, after a short while at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times in seconds. A pause is by chance up to half as long again, except `away`. A number without a source was
    chosen, not measured.
    """

    budget: Budget = field(default_factory=Budget)
    recount_after: float = 2.0
    """From a write to the second count of the breaker: `breaker.recount_after`."""
    first: float = 2.0
    """Before the first retry; each further pause is twice as long."""
    most: float = 120.0
    away: float = 5.0
    """Before a retry while the scheduler is unreachable, at most, besides `breaker.spread_of_return`. docs/use/slurm.md has what that costs a
    controller, docs/develop/performance.md how soon its return is noticed."""
    breaker_first: float = 60.0
    """While the breaker is open, in the place of `first`: only a change of other nodes closes it."""
    breaker_most: float = 900.0
    refused_first: float = 60.0
    """After a refusal, in the place of `first`: it may pass by itself, as where a dynamic node is not registered yet, or an API server that
    starts does not know the rights of its clients."""
    refused: float = 3_600.0
    """After refusals in a row, in the place of `most`: an operator must correct something."""
    denied: float = 300.0
    """The same after those by a rule of the site."""
    backstop: float = 180.0
    """An actuator bounds its own calls, by `slurm.timeout` at 120 s at most; one that does not return is given up after this."""


class Reconciler:
    """Carries out one actuator's intents. `node_state` is the last read, `refused` why that was refused for good, `key`
    that of the current intent; `held_back` is why the breaker defers it. Both reasons are "" where there is none.

    `wake` ends a pause, for instance because the intent changed; `wanted` is true while an intent is still wanted.
    `limits` may be changed at any time, and hold from the next call on.
    """

    def __init__(
        self,
        actuator: Actuator,
        *,
        committed: Committed,
        wanted: Callable[[Intent], bool],
        on_read: Callable[[], None],
        limits: Limits,
        clock: Clock,
        chance: random.Random | None = None,
    ) -> None:
        self.actuator = actuator
        self.node_state: NodeState | None = None
        self.last_answer: NodeState | None = None
        """The last state that was read, also while the scheduler does not answer any more."""
        self.refused = ""
        self.held_back = ""
        self.key = ""
        self.wake = asyncio.Event()
        self._committed = committed
        self._wanted = wanted
        self._on_read = on_read
        self.limits = limits
        self._clock = clock
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, guards nothing
        self._backoff = Backoff(limits.first, limits.most, spread=_SPREAD, chance=self._chance)
        self._was_away = False  # in the attempt before
        self._waited = False  # likewise, for a moment that comes to the whole fleet at once
        self._overloaded = False  # in the attempt before, the scheduler was
        self._denied = False  # likewise, a rule of the site refused it
        self._pool: int | None = None  # nodes, as last known

    async def read(self) -> None:
        """Read the node's state. Never raises: an unreachable scheduler is a state too."""
        with contextlib.suppress(ActuatorError):
            await self._read()

    async def attempt(self, intent: Intent) -> tuple[Outcome, float]:
        """Make one attempt. Returns its outcome, and in how many seconds the next is due if the outcome leaves
        something to do.
        """
        first, self._waited = intent.key != self.key or self._waited, False
        if intent.key != self.key:
            self.key, self.held_back = intent.key, ""
            self._backoff.succeeded()
        soon = False
        try:
            outcome = await self._attempt(intent, first=first)
        except ActuatorError as error:
            # Whether the breaker is open is not known: a node that must roll back does so soon, and an unknown count defers the exclusion.
            self.held_back = str(error) if isinstance(error, BudgetUnknown) else ""
            soon = isinstance(error, BudgetUnknown) and error.soon
            self._waited = isinstance(error, ActuatorWaits)
            self._denied = isinstance(error, ActuatorDenied)
            self._overloaded = isinstance(error.__cause__ or error, ActuatorOverloaded)
            outcome = Outcome(result=Result.REFUSED if error.permanent else Result.RETRY, text=str(error))
        if outcome.result not in (Result.RETRY, Result.REFUSED):
            self.held_back = ""
        return outcome, self._next(outcome, soon=soon or not self.held_back)

    def idle(self) -> None:
        """Forget the intent: there is no current one."""
        self.key, self.held_back = "", ""

    async def pause(self, seconds: float) -> None:
        # Not wait_for: that of Python 3.11 loses a cancellation that comes together with the wake.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()

    async def _stay(self, intent: Intent, seconds: float) -> None:
        """Wait for all of these seconds, as long as the intent is wanted."""
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
        if intent.replaces and (await self._read()).owner is Owner.OURS:  # it is out already: the budget is not touched
            return await self._write(intent)
        counted: FleetCount | None = None
        overloaded, self._overloaded = self._overloaded, False
        if first or overloaded:
            pool = self._pool or (self.node_state or await self._read()).pool
            alone = self.actuator.sheds_load and not overloaded
            if not await self._spread(intent, breaker.spread_of_counts(pool) if alone else breaker.spread(pool)):
                return SUPERSEDED
            if alone and self._crowded(intent, counted := await self._fleet_count()):
                counted = None
                if not await self._spread(intent, breaker.spread(pool)):
                    return SUPERSEDED
        return await self._exclude(intent, counted) if self._wanted(intent) else SUPERSEDED

    async def _spread(self, intent: Intent, seconds: float) -> bool:
        """Wait for a part of these seconds by chance. Returns whether the intent is still wanted."""
        await self._stay(intent, self._chance.uniform(0.0, seconds))
        return self._wanted(intent)

    def _crowded(self, intent: Intent, fleet_count: FleetCount) -> bool:
        """True if others write, too, and the breaker lets this node write."""
        return breaker.crowded(fleet_count) and not self._refusal(intent, fleet_count)

    def _refusal(self, intent: Intent, fleet_count: FleetCount) -> str:
        """Apply the breaker. The domain is that of the reason that is written, by which others count this node."""
        own = parse(intent.reason)
        return breaker.refusal(self.limits.budget, fleet_count, own.domain if own is not None else "")

    async def _exclude(self, intent: Intent, counted: FleetCount | None) -> Outcome:
        """Exclude the node for a failure. The fleet count is checked before the write and after it; `counted` is that of a
        moment ago, if there is one.
        """
        fleet_count = counted or await self._fleet_count()
        outcome = answer(intent, await self._read())
        if outcome is None:
            self.held_back = self._refusal(intent, fleet_count)
            if self.held_back:
                return Outcome(result=Result.RETRY, text=f"the breaker is open: {self.held_back}")
            outcome = await self._written(intent)
        if outcome.result not in (Result.DONE, Result.ALREADY):
            return outcome
        await self._stay(intent, max(self.limits.recount_after, fleet_count.visible_after))
        return await self._recount(intent, outcome) if self._wanted(intent) else SUPERSEDED

    async def _recount(self, intent: Intent, outcome: Outcome) -> Outcome:
        """Count again after the write, and roll back if nodes that were excluded earlier use up the budget.

        A scheduler that crashes right after a write may come back without it.
        """
        fleet_count = await self._fleet_count()
        self.held_back = self._refusal(intent, fleet_count)
        if not self.held_back:
            counted = any(held.node == fleet_count.node for held in fleet_count.held)
            if not counted and lost(outcome.since, await self._read()):
                return Outcome(result=Result.RETRY, text="the scheduler was restarted, and has lost it")
            return outcome
        back = await self._write(replace(intent, act=Act.RESTORE, since=outcome.since))
        done = "rolled back" if back.result in (Result.DONE, Result.ALREADY) else f"cannot roll back ({back.text})"
        return Outcome(result=Result.RETRY, text=f"{done}, the breaker is open: {self.held_back}")

    async def _write(self, intent: Intent) -> Outcome:
        return answer(intent, await self._read()) or await self._written(intent)

    async def _written(self, intent: Intent) -> Outcome:
        """Write what the read a moment ago allows, if it is still wanted, and read back."""
        if not self._wanted(intent):
            return SUPERSEDED
        assert self.node_state is not None  # noqa: S101 - it was read a moment ago
        await self._bounded(self.actuator.apply(intent, self.node_state))
        after = await self._read()
        if intent.act is Act.RESTORE and after.owner is not Owner.OURS:
            return Outcome(
                result=Result.DONE, text=still_closed(after)
            )  # another party may have excluded it in that moment
        outcome = answer(intent, after)
        if outcome is None:
            return Outcome(result=Result.RETRY, text="it was written, but does not read back")
        return Outcome(result=Result.DONE, since=outcome.since) if outcome.result is Result.ALREADY else outcome

    async def _fleet_count(self) -> FleetCount:
        """Raises BudgetUnknown where this node can be read and the fleet cannot be counted."""
        try:
            return await self._bounded(self.actuator.fleet_count())
        except BudgetUnknown:
            raise
        except ActuatorError as error:
            await self._read()
            if isinstance(error, ActuatorWaits):
                raise
            raise BudgetUnknown(str(error), permanent=error.permanent, soon=True) from error

    def _away(self) -> bool:
        return self.node_state is not None and not self.node_state.reachable and not self.refused

    async def _read(self) -> NodeState:
        try:
            self.node_state, self.refused = await self._bounded(self.actuator.read()), ""
            self.last_answer = self.node_state
            self._pool = self.node_state.pool or self._pool
        except ActuatorError as error:
            self.refused = str(error) if error.permanent else ""
            self.node_state = NodeState(at=self._clock(), reachable=False, error=str(error))
            raise
        finally:
            self._on_read()
        return self.node_state

    async def _bounded(self, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self.limits.backstop):
                return await call
        except TimeoutError:
            name, seconds = self.actuator.name, self.limits.backstop
            raise ActuatorUnavailable(f"{name} has not finished within {seconds:g} s") from None

    def _next(self, outcome: Outcome, *, soon: bool) -> float:
        """Seconds until the next attempt: by chance up to half as long again, so that a fleet does not retry in step."""
        limits, away = self.limits, self._away()
        returned, self._was_away = self._was_away and not away, away
        if outcome.result not in (Result.RETRY, Result.REFUSED):
            return 0.0
        if returned:  # within this attempt: its failures do not predict the next one
            self._backoff.succeeded()
        bounds = (limits.first, limits.most) if soon else (limits.breaker_first, limits.breaker_most)
        if outcome.result is Result.REFUSED:
            bounds = (limits.refused_first, limits.denied if self._denied else limits.refused)
        self._backoff.first, self._backoff.most = bounds
        delay = self._backoff.failed()
        if outcome.result is Result.REFUSED:
            return delay
        if returned and soon:
            return self._until_return()
        if not away:
            return delay
        return self._until_return() if self._pool is not None else min(delay, self._until_return())

    def _until_return(self) -> float:
        """Seconds until an unreachable scheduler is tried again; a pool of unknown size is taken for the largest there is."""
        spread = breaker.spread_of_return(breaker.LARGEST_POOL if self._pool is None else self._pool)
        return self.limits.away * self._chance.uniform(0.5, 1.0) + self._chance.uniform(0.0, spread)


_SPREAD = (1.0, 1.5)
SUPERSEDED = Outcome(result=Result.RETRY, text="superseded by another intent")
