"""The report of a run, as a value and as the one JSON document for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from gpuwarden.features.active_test.judging.outcome import ActiveVerdict, Outcome, worst
from gpuwarden.publish.times import rfc3339
from gpuwarden_collectors.active_test.facts import GpuTest, Obstacle
from gpuwarden_collectors.active_test.level import Level
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of one run on one node."""

    node: str
    level: Level
    started: Stamp
    seconds: float
    tests: tuple[GpuTest, ...] = ()
    """Tests in the order of the GPUs; the repeats of a GPU follow all first tests."""
    indices: Mapping[str, int] = field(default_factory=dict, hash=False)
    """NVML's index by UUID."""
    outcomes: Mapping[str, Outcome] = field(default_factory=dict, hash=False)
    """Outcomes by UUID."""
    obstacle: Obstacle | None = None
    """Why no GPU was tested at all."""
    text: str = ""
    """The obstacle, for people."""
    notes: tuple[str, ...] = ()
    """Further facts for people: how the results were judged, what could not be read."""

    @property
    def verdict(self) -> ActiveVerdict:
        """Verdict of the worst GPU; NO_VERDICT if there is no GPU."""
        return worst(outcome.verdict for outcome in self.outcomes.values())

    def first(self) -> tuple[GpuTest, ...]:
        """Return the first test of each GPU."""
        return tuple({test.uuid: test for test in reversed(self.tests)}.values())[::-1]


def document(report: Report) -> dict[str, Any]:
    """Return the report as a document. Keys may be added, but none renamed. Speeds: bytes and operations per second."""
    return {
        "node": report.node,
        "level": report.level.value,
        "verdict": report.verdict.value,
        "exit_code": report.verdict.exit_code,
        "started_at": rfc3339(report.started.wall),
        "seconds": round(report.seconds, 3),
        "obstacle": None if report.obstacle is None else report.obstacle.value,
        "text": report.text,
        "notes": list(report.notes),
        "gpus": [_gpu(report, test) for test in report.first()],
    }


def _gpu(report: Report, test: GpuTest) -> dict[str, Any]:
    outcome = report.outcomes.get(test.uuid, Outcome(verdict=ActiveVerdict.NO_VERDICT))
    return {
        "index": report.indices.get(test.uuid),
        "uuid": test.uuid,
        "pci_bus_id": test.slot,
        "name": test.name,
        "verdict": outcome.verdict.value,
        "obstacle": None if test.obstacle is None else test.obstacle.value,
        "text": outcome.text,
        "findings": [
            {"check": finding.code, "detail": finding.detail, "severity": finding.severity.value, "text": finding.text}
            for finding in outcome.findings
        ],
        "tests": [to_wire(each) for each in report.tests if each.uuid == test.uuid],
    }
