"""Defines a rule, and the speed of all rules, by which tests turn hours into seconds."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwarden.base.durations import format_duration, parse_duration
from gpuwarden.health.runbooks import RUNBOOKS

JOB = "gpuwarden"


@dataclass(frozen=True, slots=True)
class Pace:
    """Writes the durations of all rules. `speed` 60 makes each minute a second, evaluation and ranges alike."""

    speed: float = 1.0

    def __call__(self, duration: str) -> str:
        """Return the duration as text for `for:`, `interval:` and ranges, such as `3m`."""
        return format_duration(round(parse_duration(duration) / self.speed, 3))

    def seconds(self, duration: str) -> str:
        """Return the seconds as a number for arithmetic, such as `180`."""
        return f"{parse_duration(duration) / self.speed:.12g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`job`: the job name under which Prometheus scrapes the daemons. `runbooks`: the address of the folder of runbooks."""

    job: str = JOB
    runbooks: str = RUNBOOKS
    pace: Pace = Pace()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """`why` becomes a comment: what the series means, and what is odd about it."""

    record: str
    expr: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule. Two of one name differ in their severity: the urgency depends on whether the node still gets work.

    `lasts`: how long it must hold. `keeps`: how long it keeps firing then, so that a restart of the daemon or a scrape
    that failed does not end it and notify again. `runbook`: its address below the folder of runbooks, if that is not the page of its name.
    """

    name: str
    severity: str
    expr: str
    lasts: str = "0s"
    keeps: str = ""
    summary: str
    description: str
    runbook: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    interval: str
    rules: tuple[Recording | Alert, ...]
