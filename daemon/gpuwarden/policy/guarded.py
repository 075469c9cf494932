"""A requirement whose errors prevent a restoration: while a feature fails, its requirement is not met. Pure, except for
`guard`.

This holds for every failing call of the feature, since its requirement may be out of date. An operator may restore the
node anyway (`gpuwarden restore --untested`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, Protocol

from gpuwarden.health.model import Event, EventKind, Json, Verdict
from gpuwarden.policy.requirement import Answer, Requirement
from gpuwarden.policy.situation import Situation
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

FOLD = "requirement.after"
"""The call that folds events. It is not repeated after a failure, since the requirement's state would lack an event."""
EVENTS = "requirement.events"
ASKED = frozenset({"requirement.applies", "requirement.answer", "requirement.standing", "requirement.unmet"})
"""Calls that are repeated even if they failed before."""
SEEN = "seen"
"""The feature's call that returns the input of its requirement."""


class Guard(Protocol):
    """Calls a feature, and records the errors that it raises."""

    @property
    def feature(self) -> str:
        """The feature's name in the list of features, as it is shown to operators."""

    def call(self, name: str, otherwise: Any, function: Callable[..., Any], *arguments: object) -> Any:
        """Return what the function returns, or `otherwise` if it raises."""

    def standing(self) -> dict[str, str]:
        """Return the current errors, by call."""


@dataclass(frozen=True, slots=True)
class Objection:
    """The answer of a requirement that cannot be evaluated."""

    text: str


@dataclass(frozen=True, slots=True)
class Guarded:
    """A feature's requirement, `demand`; None if the feature could not be created, and its requirement is unknown."""

    demand: Requirement | None
    guard: Guard = field(compare=False)

    @property
    def applies(self) -> bool:
        demand = self.demand
        if demand is None or self._in_doubt():
            return True
        return bool(self.guard.call("requirement.applies", True, lambda: demand.applies))

    def after(self, event: Event) -> Guarded:
        if self.demand is None or FOLD in self.guard.standing():
            return self
        return self._with(self.guard.call(FOLD, self.demand, self.demand.after, event))

    def over(self) -> Guarded:
        if self.demand is None or FOLD in self.guard.standing():
            return self
        return self._with(self.guard.call(FOLD, self.demand, self.demand.over))

    def _with(self, demand: Requirement) -> Guarded:
        return self if demand is self.demand else Guarded(demand, self.guard)

    def events(self, now: Stamp, boot_id: str) -> Iterator[Event]:
        demand = self.demand
        if demand is not None:
            yield from self.guard.call(EVENTS, (), lambda: tuple(demand.events(now, boot_id)))

    def news(self, state: PolicyState, seen: Situation, now: Stamp) -> Iterator[tuple[EventKind, dict[str, Json]]]:
        demand = self.demand
        if demand is not None and not {SEEN, FOLD} & self.guard.standing().keys():
            yield from self.guard.call("requirement.news", (), lambda: tuple(demand.news(state, seen, now)))

    def answer(self, seen: Situation, now: Stamp) -> Answer:
        answer: Answer | None = self._asked("answer", seen, now)
        return Objection(self._objection()) if answer is None else answer

    def standing(self, seen: Situation, now: Stamp) -> str:
        text: str | None = self._asked("standing", seen, now)
        return self._objection() if text is None else text

    def unmet(self, verdict: Verdict) -> str:
        text: str | None = self._asked("unmet", verdict)
        if text is None:
            return f"not restored: {self._objection()}; or restore the node untested: gpuwarden restore --untested"
        return text

    def _asked(self, method: str, *arguments: object) -> Any:
        """Return the answer of the demand, or None if it fails or is in doubt."""
        if self.demand is None or self._in_doubt():
            return None
        return self.guard.call(f"requirement.{method}", None, getattr(self.demand, method), *arguments)

    def _in_doubt(self) -> bool:
        """Return True while a call fails on which the answers depend."""
        return bool(self.guard.standing().keys() - ASKED)

    def _objection(self) -> str:
        feature = self.guard.feature
        return f"the feature {feature} fails, so its condition for a return is unknown: see journalctl -u gpuwarden, and restart gpuwarden"


def demand_of(requirement: Requirement | None) -> Requirement | None:
    """Return the requirement inside a guard, or the requirement itself if it has none."""
    return requirement.demand if isinstance(requirement, Guarded) else requirement
