"""A feature's requirement: what it demands before gpuwarden restores the node. Pure.

A requirement is a value that events change, like all of policy's state: PolicyState stores it, `fold` updates it, a
checkpoint contains it. Policy gets the requirements of configured features only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from gpuwarden.health.model import Event, EventKind, Json, Verdict
from gpuwarden_collectors.facts import Stamp

if TYPE_CHECKING:  # both import this module
    from gpuwarden.policy.situation import Situation
    from gpuwarden.policy.state import PolicyState


class Answer(Protocol):
    """The answer of a requirement: whether it allows a restoration now."""

    @property
    def text(self) -> str:
        """Why the node is not restored yet, with what to do; "" if it may be."""


class Requirement(Protocol):
    @property
    def applies(self) -> bool:
        """True if it must be met before this exclusion is lifted."""

    def after(self, event: Event) -> Requirement:
        """Return the requirement after an event of any kind; the same object if that changes nothing."""

    def over(self) -> Requirement:
        """Return the requirement, reset for the next exclusion."""

    def events(self, now: Stamp, boot_id: str) -> Iterator[Event]:
        """Yield the events whose fold gives this requirement."""

    def news(self, state: PolicyState, seen: Situation, now: Stamp) -> Iterator[tuple[EventKind, dict[str, Json]]]:
        """Yield the events that follow from this decision: kind and data."""

    def answer(self, seen: Situation, now: Stamp) -> Answer:
        """Return whether the node may be restored. Called only if the requirement applies."""

    def standing(self, seen: Situation, now: Stamp) -> str:
        """Return its status, for a person who decides on the restoration."""

    def unmet(self, verdict: Verdict) -> str:
        """Return why an operator's restoration would ignore it, with what to do; "" if it is met."""
