"""Carries out an intent: it is in the ledger first; then read, write, read back; then the outcome goes into the ledger.

An attempt may be interrupted anywhere, by the end of the process or a missing response. The intent remains in the
ledger, and the next attempt begins with a read, so a completed write is not repeated. A write that timed out has not
failed: the scheduler may still carry it out, and only a read shows its result.
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
"""Waits a short time; true if everything decided so far is on disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Times in seconds. Pauses are randomly extended by up to half, except `away`. Values without a source: own
    choice.
    """

    budget: Budget = field(default_factory=Budget)
    recount_after: float = 2.0
    """From a write to the breaker's second count: `breaker.recount_after`."""
    first: float = 2.0
    """Before the first retry; each further pause is twice as long."""
    most: float = 120.0
    away: float = 5.0
    """Longest pause while the scheduler is unreachable, in addition to `breaker.spread_of_return`. See
    docs/use/slurm.md for the load on a controller, docs/develop/performance.md for the time until its return is
    detected."""
    breaker_first: float = 60.0
    """Replaces `first` while the breaker is open: only a change of other nodes closes it."""
    breaker_most: float = 900.0
    refused_first: float = 60.0
    """Replaces `first` after a refusal, which may be transient: a dynamic node is not registered yet, or a starting API
    server has not loaded its clients' rights."""
    refused: float = 3_600.0
    """Replaces `most` after consecutive refusals: an operator must correct something."""
    denied: float = 300.0
    """The same after refusals by a rule of the site."""
    backstop: float = 180.0
    """Backstop for a call that does not return. Actuators limit their own calls, by `slurm.timeout` to 120 s."""


class Reconciler:
    """Carries out one actuator's intents.

    `node_state` is the last state read; `refused` is why a read was permanently refused, `held_back` why the breaker
    defers the current intent, whose key is `key`; both are "" without a reason. `wake` ends a pause, for instance
    because the intent changed; `wanted` is true while an intent is still wanted. `limits` may be changed at any time
    and apply from the next call on.
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
        """The last state that was read, even if the scheduler no longer answers."""
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
        self._waited = False  # in the attempt before, for a moment that is the same for the whole fleet
        self._overloaded = False  # in the attempt before, the scheduler was overloaded
        self._denied = False  # in the attempt before, a rule of the site refused it
        self._pool: int | None = None  # nodes, as last known

    async def read(self) -> None:
        """Read the node's state. Never raises: an unreachable scheduler is a state, too."""
        with contextlib.suppress(ActuatorError):
            await self._read()

    async def attempt(self, intent: Intent) -> tuple[Outcome, float]:
        """Make one attempt. Returns its outcome, and the seconds until the next attempt if one is needed."""
        first, self._waited = intent.key != self.key or self._waited, False
        if intent.key != self.key:
            self.key, self.held_back = intent.key, ""
            self._backoff.succeeded()
        soon = False
        try:
            outcome = await self._attempt(intent, first=first)
        except ActuatorError as error:
            # Breaker's state unknown: a node that must roll back does so soon; an unknown count defers the exclusion.
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
        """Forget the last intent: the next one starts without its pauses, and not as deferred by the breaker."""
        self.key, self.held_back = "", ""

    async def pause(self, seconds: float) -> None:
        # Not wait_for: in Python 3.11 it loses a cancellation that coincides with the wake.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wake.wait()

    async def _stay(self, intent: Intent, seconds: float) -> None:
        """Wait for these seconds, or until the intent is no longer wanted."""
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
        if intent.replaces and (await self._read()).owner is Owner.OURS:  # already excluded: the budget is unaffected
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
        """Wait for a random part of these seconds. True if the intent is still wanted."""
        await self._stay(intent, self._chance.uniform(0.0, seconds))
        return self._wanted(intent)

    def _crowded(self, intent: Intent, fleet_count: FleetCount) -> bool:
        """True if other nodes write, too, and the breaker allows this node's write."""
        return breaker.crowded(fleet_count) and not self._refusal(intent, fleet_count)

    def _refusal(self, intent: Intent, fleet_count: FleetCount) -> str:
        """Apply the breaker. Uses the domain in the written reason, since other nodes count this node by it."""
        own = parse(intent.reason)
        return breaker.refusal(self.limits.budget, fleet_count, own.domain if own is not None else "")

    async def _exclude(self, intent: Intent, counted: FleetCount | None) -> Outcome:
        """Exclude the node for a failure. Counts the fleet before and after the write. `counted`: a recent count."""
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

        A scheduler that crashes right after a write may have lost it after its restart.
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
        """Write the intent if it is still wanted, as the last read allows it, and read back."""
        if not self._wanted(intent):
            return SUPERSEDED
        assert self.node_state is not None  # noqa: S101 - it was read a moment ago
        await self._bounded(self.actuator.apply(intent, self.node_state))
        after = await self._read()
        if intent.act is Act.RESTORE and after.owner is not Owner.OURS:
            return Outcome(result=Result.DONE, text=still_closed(after))  # another party may have excluded it meanwhile
        outcome = answer(intent, after)
        if outcome is None:
            return Outcome(result=Result.RETRY, text="it was written, but does not read back")
        return Outcome(result=Result.DONE, since=outcome.since) if outcome.result is Result.ALREADY else outcome

    async def _fleet_count(self) -> FleetCount:
        """Count the fleet. Raises BudgetUnknown if this node can be read but the fleet cannot be counted."""
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
        """Seconds until the next attempt, randomly extended by up to half, so that a fleet does not retry in step."""
        limits, away = self.limits, self._away()
        returned, self._was_away = self._was_away and not away, away
        if outcome.result not in (Result.RETRY, Result.REFUSED):
            return 0.0
        if returned:  # the scheduler returned during this attempt: earlier failures do not predict the next one
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
        """Seconds until an unreachable scheduler is tried again. Assumes the largest pool if its size is unknown."""
        spread = breaker.spread_of_return(breaker.LARGEST_POOL if self._pool is None else self._pool)
        return self.limits.away * self._chance.uniform(0.5, 1.0) + self._chance.uniform(0.0, spread)


_SPREAD = (1.0, 1.5)
SUPERSEDED = Outcome(result=Result.RETRY, text="superseded by another intent")
