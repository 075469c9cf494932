"""The state of jobs since the daemon started: running ones with their use, and ended ones that settle. Pure."""

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
    """A job that runs, or has just ended."""

    epoch: Epoch
    """As last stored, or as it would be. What touches a job that is in the ledger is kept in memory only."""
    meter: Meter = NOT_READ
    by_slot: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Its processes now."""
    oom_kills: int = 0
    """As in `Member`."""
    in_ledger: bool = False
    seen: bool = False
    """A source has reported it since the daemon started."""
    end: End | None = None
    is_asked: bool = False
    """As in `Member`."""
    missing: float | None = None
    """Time since which no source reports it, seconds of CLOCK_BOOTTIME."""
    unknown: float | None = None
    """Time since which no source can tell whether it is there."""

    def metered(self, meter: Meter) -> Live:
        """Return the job after a pass. Written out: `replace` takes thrice as long, for every job in every pass."""
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
    """State of jobs since the daemon started that no event carries."""

    live: Mapping[str, Live] = field(default_factory=dict)
    """By name."""
    done: Mapping[str, float] = field(default_factory=dict)
    """By name, the begin of jobs that have ended for good and are still reported."""
    dropped: frozenset[str] = frozenset()
    """Names of jobs whose facts raised an error, and that are still reported."""
    unwritten: tuple[Record, ...] = ()
    """Newest records of short jobs that are not in the ledger."""
    left_out: int = 0
    """Number of such records since the daemon started."""
    unreported: int = 0
    """Number of these that no record in the ledger counts yet."""
    budget: Budget | None = None
    metered: float = 0.0
    """Time of the newest NVML pass that was added, seconds of CLOCK_BOOTTIME."""
    sources: tuple[Any, ...] = ()
    """The objects from which the last step was made."""
    at: float = 0.0
    """When that was, seconds of CLOCK_BOOTTIME."""
    began: float | None = None
    """When the first step was made, seconds of CLOCK_BOOTTIME."""
    members: Members | None = None
    facts: tuple[Any, ...] = ()
    """The facts from which `members` was made, as objects."""
    made_of: tuple[Any, ...] = ()
    """The other input from which `members` was made."""

    def waits_for_log(self, now: float, *, read: bool) -> bool:
        """Return True while lines of the kernel log from before the daemon's start may be unread: for SETTLES at most,
        since a log with a gap is never read to its end.
        """
        return not read and (self.began is None or now - self.began < SETTLES)


NOTHING = Following()


def following_of(state: State) -> Following:
    following: Following = state.moments.features.get(NAME, NOTHING)
    return following


def with_following(state: State, following: Following) -> State:
    return replace(state, moments=replace(state.moments, features={**state.moments.features, NAME: following}))
