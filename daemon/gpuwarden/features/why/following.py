"""What is known of jobs in this life of the daemon: those that run, with what they use, and those that have ended and settle. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpuwarden.features.why.model import NAME, Epoch, Record
from gpuwarden.health.memory import State

UNWRITTEN_MOST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What is followed at the moment: no event carries it."""

    epochs: Mapping[str, Epoch] = field(default_factory=dict)
    """By name, the jobs that run, with what they used until now."""
    unwritten: tuple[Record, ...] = ()
    """Newest records of short jobs that are not in the ledger."""
    left_out: int = 0
    """How many such records there were since the daemon started."""


NOTHING = Following()


def following_of(state: State) -> Following:
    following: Following = state.moments.features.get(NAME, NOTHING)
    return following


def with_following(state: State, following: Following) -> State:
    return replace(state, moments=replace(state.moments, features={**state.moments.features, NAME: following}))
