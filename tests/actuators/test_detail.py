"""What a scheduler's field for details shows of the failures."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.actuators.detail import detail
from gpuwarden.health.model import Health, Severity, Verdict, gpu
from support.snapshots import at, finding, slot

FAILED = replace(
    finding("gpu_unresponsive", gpu(slot(3))), evidence={"silent_seconds": 240.0, "answer": "", "uuid": None}
)


def test_a_failure_is_shown_with_the_names_and_units_of_its_evidence() -> None:
    verdict = Verdict(at=at(0), health=Health.FAILURE, findings=(FAILED,))
    assert detail(verdict) == f"the title of gpu_unresponsive (gpu_unresponsive@gpu/{slot(3)}): no answer for: 4m"


def test_warnings_and_shadow_findings_are_left_out() -> None:
    others = (replace(FAILED, severity=Severity.WARNING), replace(FAILED, shadow=True))
    assert detail(Verdict(at=at(0), health=Health.WARNING, findings=others)) == ""
