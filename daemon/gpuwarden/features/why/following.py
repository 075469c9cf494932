"""What is known of jobs in this life of the daemon: those that run, with what they use, and those that have ended and settle. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from gpuwarden.features.why.members import Members
from gpuwarden.features.why.model import NAME, SETTLES, End, Epoch, Record
from gpuwarden.features.why.use import NOT_READ, Meter
from gpuwarden.health.memory import State
from gpuwarden_collectors.dataclass import dataclass

UNWRITTEN_MOST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A job that runs, or has ended a moment ago."""

    epoch: Epoch
    """As it was last written down, or would be; what touched one that is in the ledger is in memory alone."""
    meter: Meter = NOT_READ
    by_slot: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Its processes now."""
    oom_kills: int = 0
    """As of `Member`."""
    in_ledger: bool = False
    seen: bool = False
    """A source has had it in this life of the daemon."""
    end: End | None = None
    is_asked: bool = False
    """As of `Member`."""
    missing: float | None = None
    """Since when no source has it, seconds of CLOCK_BOOTTIME."""
    unknown: float | None = None
    """Since when no source could say whether it is there."""

    def metered(self, meter: Meter) -> Live:
        """Return the job after a pass. Spelled out, since it is done for every job in every pass, and `replace` takes thrice as long."""
        return Live(
            epoch=self.epoch,
            meter=meter,
            by_slot=self.by_slot,
            oom_kills=self.oom_kills,
            in_ledger=self.in_ledger,
            seen=self.seen,
            end=self.end,
            is_asked=self.is_asked,
            missing=self.missing,
            unknown=self.unknown,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many records of short jobs may be written now (`budget.py`)."""

    tokens: float
    at: float
    """Seconds of CLOCK_BOOTTIME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What this life of the daemon knows of jobs, and no event carries."""

    live: Mapping[str, Live] = field(default_factory=dict)
    """By name."""
    done: Mapping[str, float] = field(default_factory=dict)
    """By name, when the jobs began that have ended for good and are still reported."""
    dropped: frozenset[str] = frozenset()
    """Names of jobs whose facts raised, and that are still reported."""
    unwritten: tuple[Record, ...] = ()
    """Newest records of short jobs that are not in the ledger."""
    left_out: int = 0
    """How many such records there were since the daemon started."""
    unreported: int = 0
    """How many of these no record in the ledger counts yet."""
    budget: Budget | None = None
    metered: float = 0.0
    """The newest pass of NVML that was taken in, seconds of CLOCK_BOOTTIME."""
    sources: tuple[Any, ...] = ()
    """What the last step was made of, as objects."""
    at: float = 0.0
    """When that was, seconds of CLOCK_BOOTTIME."""
    began: float | None = None
    """When the first step was made, seconds of CLOCK_BOOTTIME."""
    members: Members | None = None
    facts: tuple[Any, ...] = ()
    """The facts that the members were made of, as objects, and"""
    made_of: tuple[Any, ...] = ()
    """what else they were made of."""

    def waits_for_log(self, now: float, *, read: bool) -> bool:
        """Return True while the kernel log may have lines from before this life of the daemon that were not read: for SETTLES at most, since a log
        with a gap is never read to its end.
        """
        return not read and (self.began is None or now - self.began < SETTLES)


NOTHING = Following()


def following_of(state: State) -> Following:
    following: Following = state.moments.features.get(NAME, NOTHING)
    return following


def with_following(state: State, following: Following) -> State:
    return replace(state, moments=replace(state.moments, features={**state.moments.features, NAME: following}))
