"""Puts a node's records through the replay and keeps what was reported: when, of what, how badly."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import process_time

from evaluate.quiet import QuietReplay
from gpuwarden.health.judge import Step
from gpuwarden.health.model import EventKind, Finding, Health, Severity
from gpuwarden.trace.records import Passed, Record


@dataclass(frozen=True, slots=True)
class Reported:
    """A finding was raised. `seconds`: of the node's uptime."""

    seconds: float
    finding: str
    severity: str
    why: str

    def __str__(self) -> str:
        return f"at {self.seconds:.1f}: {self.severity} {self.finding} ({self.why})"


@dataclass(slots=True)
class Jury:
    """`take` is the sink of a node. `spent`: seconds of this process in the judge; `steps` of them."""

    replay: QuietReplay = field(default_factory=QuietReplay)
    reported: list[Reported] = field(default_factory=list)
    cleared: set[str] = field(default_factory=set)
    last: Step | None = None
    passes: int = 0
    steps: int = 0
    spent: float = 0.0

    def take(self, record: Record) -> None:
        self.passes += isinstance(record, Passed) and record.observation.collector == "nvml"
        if self.replay.passes_over(record):
            return
        began = process_time()
        steps = self.replay.take(record)
        self.spent += process_time() - began
        for step in steps:
            self.steps += 1
            self.last = step
            for event in step.events:
                if event.kind == EventKind.RAISED:
                    why = " ".join(f"{name}={value}" for name, value in list(event.data.items())[:3])
                    self.reported.append(Reported(event.at.boottime, str(event.key), str(event.data["severity"]), why))
                elif event.kind == EventKind.CLEARED:
                    self.cleared.add(str(event.key))

    @property
    def health(self) -> Health:
        return Health.UNKNOWN if self.last is None else self.last.verdict.health

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The loud and the silent ones."""
        return () if self.last is None else (*self.last.verdict.findings, *self.last.verdict.silenced)

    def verdict(self) -> object:
        """Return health and findings, which a restart must not change."""
        return self.health, sorted((str(f.key), f.severity.value, f.latched) for f in self.findings)


def failures(reported: list[Reported]) -> list[Reported]:
    return [report for report in reported if report.severity == Severity.FAILURE.value]
