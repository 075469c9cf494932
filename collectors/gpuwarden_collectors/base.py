"""The contract between readers and the rest: what one pass of one collector is, and what may go wrong in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from gpuwarden_collectors.facts import Stamp

Clock = Callable[[], Stamp]
Facts = TypeVar("Facts")


def host_clock() -> Stamp:
    return Stamp(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())


class CollectorError(Exception):
    """The source exists but could not be read. The message names the source, the cause and what an operator can do."""


class SourceAbsent(CollectorError):  # noqa: N818 - a state of the host, not an error of anybody's
    """The source does not exist on this host."""


class PassOutcome(StrEnum):
    OBSERVED = "observed"
    ABSENT = "absent"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReport:
    """The life of a worker process, for the judge and the metrics.

    `missed`: deadlines missed since the last answer. `silent_since`: when the worker was last known to answer (or was
    first asked), None while it answers. `stuck`: the process is in D state. `abandoned`: it could not be ended and was
    left behind. `parked`: the kill budget is used up, the worker is left alone and reported.
    """

    pid: int | None = None
    missed: int = 0
    silent_since: Stamp | None = None
    ever_answered: bool = False
    stuck: bool = False
    abandoned: bool = False
    parked: bool = False
    restarts: int = 0
    kills: int = 0
    timeouts: int = 0
    crashes: int = 0
    events_dropped: int = 0
    last_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation(Generic[Facts]):
    """One pass of one collector, with the time it started and ended. Facts are there exactly when it observed."""

    collector: str
    outcome: PassOutcome
    started: Stamp
    finished: Stamp
    facts: Facts | None = None
    error: str = ""
    worker: WorkerReport | None = None
