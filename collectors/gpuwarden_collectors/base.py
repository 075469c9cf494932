"""The interface of collectors: the outcome of one pass, and the errors that a pass may raise."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import ClassVar, Generic, Protocol, TypeVar

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

Clock = Callable[[], Stamp]
Facts = TypeVar("Facts")


def host_clock() -> Stamp:
    return Stamp(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


class CollectorError(Exception):
    """The source exists but could not be read. The message names the source, the cause and the remedy."""


class SourceAbsent(CollectorError):  # noqa: N818 - a state of the host, not an error of anybody's
    """The source does not exist on this host."""


class NamedFacts(Protocol):
    """The facts of one pass of a judged collector. Their class names the collector."""

    collector: ClassVar[str]
    """The name in the configuration, in traces and in metrics."""


class PassOutcome(StrEnum):
    OBSERVED = "observed"
    ABSENT = "absent"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    PAUSED = "paused"  # intentionally not read


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The state of a worker process, for the judge and the metrics. Counters start with the daemon."""

    pid: int | None = None
    """Process number of the running worker; None while there is none."""
    missed: int = 0
    """Deadlines missed since the last answer."""
    silent_since: Stamp | None = None
    """When the worker last answered (or was first asked); None while it answers."""
    ever_answered: bool = False
    """True if it has answered at least once since the daemon started."""
    stuck: bool = False
    """The process is in D state."""
    abandoned: bool = False
    """True if a worker could not be killed and was left behind."""
    parked: bool = False
    """True if the budget of kills is exhausted: the worker is no longer killed, only reported."""
    restarts: int = 0
    """Workers started after the first."""
    kills: int = 0
    """Workers ended with SIGKILL."""
    timeouts: int = 0
    """Passes that missed their deadline."""
    crashes: int = 0
    """Workers that exited by themselves."""
    events_dropped: int = 0
    """Host events dropped because they arrived faster than they were processed."""
    last_error: str = ""
    """Text of the newest error; empty if there was none."""
    silence: str = ""
    """The call that has not returned since the last answer, as in `no answer from 0000:4e:00.0 in
    nvmlDeviceGetFieldValues`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(Generic[Facts]):
    """One pass of one collector."""

    collector: str
    """Name of the collector, as in the configuration."""
    outcome: PassOutcome
    """How the pass ended."""
    started: Stamp
    """When the pass began."""
    finished: Stamp
    """When it ended."""
    facts: Facts | None = None
    """The facts; None unless the outcome is OBSERVED."""
    error: str = ""
    """Why the pass failed or timed out, or why the source is absent; empty if the outcome is OBSERVED."""
    worker: WorkerReport | None = None
    """State of the worker process; None for a collector without one."""
