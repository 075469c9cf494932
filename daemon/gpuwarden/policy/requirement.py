"""What a feature demands before gpuwarden restores the node. Pure.

A requirement is a value that changes by events, as all of policy's state does: PolicyState holds it, `fold` changes it, a checkpoint
keeps it. The daemon gives policy those of the features that are configured; nothing of the others is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from gpuwarden.health.model import Event, EventKind, Json, Verdict
from gpuwarden_collectors.facts import Stamp

if TYPE_CHECKING:  # both hold requirements, or what these see
    from gpuwarden.policy.situation import Situation
    from gpuwarden.policy.state import PolicyState


class Answer(Protocol):
    """What a requirement says of a return now."""

    @property
    def text(self) -> str:
        """Why the node does not return yet, with what to do; "" if it may."""


class Requirement(Protocol):
    @property
    def applies(self) -> bool:
        """True if it demands something of this exclusion."""

    def after(self, event: Event) -> Requirement:
        """Return the requirement after an event of any kind; the same object if that changes nothing."""

    def over(self) -> Requirement:
        """Return the requirement as it is before the next exclusion."""

    def events(self, now: Stamp, boot_id: str) -> Iterator[Event]:
        """Yield the events whose fold gives this requirement."""

    def news(self, state: PolicyState, seen: Situation, now: Stamp) -> Iterator[tuple[EventKind, dict[str, Json]]]:
        """Yield the events that follow from this decision: kind and data."""

    def answer(self, seen: Situation, now: Stamp) -> Answer:
        """Return whether the node may return. Asked once nothing else is in the way, and only of one that applies."""

    def standing(self, seen: Situation, now: Stamp) -> str:
        """Return where it stands, for a person who decides on the return."""

    def unmet(self, verdict: Verdict) -> str:
        """Return why an operator's restoration would ignore it, with what to do; "" if it is met."""
