"""The last line of `gpuwarden test`: what to do next about what was met."""

from __future__ import annotations

import pytest

from gpuwarden.features.active_test.judging.outcome import ActiveVerdict, Defect, Outcome
from gpuwarden.features.active_test.tester.report import Report
from gpuwarden.features.active_test.tester.text import shown
from gpuwarden.health.model import Severity
from gpuwarden_collectors.active_test.facts import Obstacle
from gpuwarden_collectors.active_test.level import Level
from support.active_tests import healthy, uuid


def lines(outcome: Outcome, obstacle: Obstacle | None = None) -> list[str]:
    test = healthy(obstacle=obstacle)
    report = Report(
        node="n1", level=Level.QUICK, started=test.started, seconds=6.2, tests=(test,), indices={uuid(0): 0}, outcomes={uuid(0): outcome}
    )  # fmt: skip
    return list(shown(report))


@pytest.mark.parametrize(
    ("verdict", "severity", "code", "to_do"),
    [
        (ActiveVerdict.FAILURE, Severity.FAILURE, "test_failed", "have the board inspected: gpuwarden explain test_failed"),
        (ActiveVerdict.WARNING, Severity.WARNING, "gpu_sm_slow", "test again when the node is free: gpuwarden explain gpu_sm_slow"),
    ],
)  # fmt: skip
def test_after_a_finding_it_says_what_to_do_about_it(
    verdict: ActiveVerdict, severity: Severity, code: str, to_do: str
) -> None:
    defect = Defect(code=code, detail="", severity=severity, text="text")
    printed = lines(Outcome(verdict=verdict, findings=(defect,), text="text"))
    assert printed[-1].startswith("to do: ")
    assert to_do in printed[-1]


@pytest.mark.parametrize(
    ("obstacle", "to_do"),
    [
        (Obstacle.BUSY, "test again when nobody uses the GPUs"),
        (Obstacle.UNSUPPORTED, "correct what is named above"),
        (Obstacle.RESET_FIRST, "drain the node, reset the GPU or reboot"),
        (Obstacle.GPU_ERROR, "before the GPU takes work again, see its findings"),
        (Obstacle.HUNG, "before the GPU takes work again, see its findings"),
    ],
)
def test_without_a_verdict_it_says_what_to_do_about_the_obstacle(obstacle: Obstacle, to_do: str) -> None:
    printed = lines(Outcome(verdict=ActiveVerdict.NO_VERDICT, findings=(), text="text"), obstacle)
    assert to_do in printed[-1]
    assert "verdict: no verdict, level quick, 6.2 s" in printed
