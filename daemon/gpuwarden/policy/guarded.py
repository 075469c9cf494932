"""A requirement whose errors are objections: a feature that fails never consents to a return. Pure, apart from its `guard`.

While any call of the feature fails, whatever it was asked, its requirement is not met: what it last demanded is all that is known, and
may be out of date. An operator may restore the node all the same (`gpuwarden restore --untested`).
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
"""The call by which it follows events. Once it has failed it is not made again: what it would remember is not what happened."""
EVENTS = "requirement.events"
ASKED = frozenset({"requirement.applies", "requirement.answer", "requirement.standing", "requirement.unmet"})
"""Calls that are asked again, whichever of them failed before."""
SEEN = "seen"
"""The call of the feature that gives its requirement what it must know."""


class Guard(Protocol):
    """Calls a feature, and keeps what it raises."""

    @property
    def feature(self) -> str:
        """The feature's name in the list of features, as it is shown to operators."""

    def call(self, name: str, otherwise: Any, function: Callable[..., Any], *arguments: object) -> Any:
        """Return what the function returns, or `otherwise` if it raises."""

    def standing(self) -> dict[str, str]:
        """Return the errors that stand, by call."""


@dataclass(frozen=True, slots=True)
class Objection:
    """The answer of a requirement that cannot be asked."""

    text: str


@dataclass(frozen=True, slots=True)
class Guarded:
    """A requirement of a feature, `demand`; None where the feature could not be made, and what it demands is not known."""

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
            return f"not restored: {self._objection()}; or bring it back as it is: gpuwarden restore --untested"
        return text

    def _asked(self, method: str, *arguments: object) -> Any:
        """Return the answer of the demand, or None if it cannot be had."""
        if self.demand is None or self._in_doubt():
            return None
        return self.guard.call(f"requirement.{method}", None, getattr(self.demand, method), *arguments)

    def _in_doubt(self) -> bool:
        """Return True while a call fails on which its answers depend."""
        return bool(self.guard.standing().keys() - ASKED)

    def _objection(self) -> str:
        feature = self.guard.feature
        return f"the feature {feature} fails, and what it demands before a return is not known: see journalctl -u gpuwarden, and restart gpuwarden"


def demand_of(requirement: Requirement | None) -> Requirement | None:
    """Return the requirement that a guard is around, or the requirement itself where none is."""
    return requirement.demand if isinstance(requirement, Guarded) else requirement
