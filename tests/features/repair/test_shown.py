"""What is published of repairs: the document, its text, and the metrics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.features.repair.memory import NAME
from gpuwarden.features.repair.metrics import METRICS
from gpuwarden.features.repair.model import Outcome
from gpuwarden.features.repair.preconditions import Obstacle, Precondition
from gpuwarden.features.repair.shown import Shown
from gpuwarden.features.repair.status import document
from gpuwarden.features.repair.status_text import sections
from gpuwarden.publish.snapshot import Snapshot
from support.repair_scenes import FINDING, tried
from support.snapshots import slot, snapshot

ID = str(FINDING.key)
STEP = f"reset_gpu {slot(3)}"
WAITS = Shown(
    allowed=("reset_gpu",),
    state="waiting",
    finding=ID,
    step=STEP,
    text="slurm has jobs here",
    forbidden_by=(Obstacle(Precondition.JOBS, "slurm has jobs here"),),
)


def shown(repairs: Shown) -> Snapshot:
    return replace(snapshot(), features={NAME: repairs})


def lines(repairs: Shown) -> list[str]:
    ((_, section_lines),) = sections(document(shown(repairs)))
    return section_lines


def samples(name: str, repairs: Shown) -> dict[tuple[str, ...], float]:
    (metric,) = (candidate for candidate in METRICS if candidate.name == name)
    return {labels: number for labels, number in metric.samples(shown(repairs)) if number}


@pytest.mark.parametrize(
    ("repairs", "text"),
    [
        (Shown(), []),
        (WAITS, [f"waiting: {STEP} for {ID}: slurm has jobs here"]),
        (replace(WAITS, step="", text=f"{STEP} ended 9 s ago"), [f"waiting: {ID}: {STEP} ended 9 s ago"]),
        (replace(WAITS, state="running"), [f"running: {STEP} for {ID}"]),
        (
            replace(WAITS, state="person", text="2 steps did not help"),
            [f"needs an operator: {ID}: 2 steps did not help"],
        ),
    ],
)
def test_the_text_says_what_runs_waits_or_needs_a_person(repairs: Shown, text: list[str]) -> None:
    assert lines(repairs) == text


def test_the_last_tries_are_shown_with_what_came_of_them() -> None:
    tries = tried(1, outcome=Outcome.FAILED).tries
    (line,) = lines(Shown(tries=tries))
    assert line.startswith(f"{STEP} for {ID}: failed (")
    assert line.endswith("): said")
    assert document(shown(Shown(tries=tries)))["repair"]["tries"][0]["outcome"] == "failed"


def test_the_document_names_each_precondition_that_does_not_hold() -> None:
    assert document(shown(WAITS))["repair"]["forbidden_by"] == [{"precondition": "jobs", "why": "slurm has jobs here"}]


def test_one_state_is_1_and_a_site_that_repairs_nothing_has_no_series() -> None:
    assert samples("gpuwarden_repair_state", WAITS) == {("waiting",): 1}
    assert samples("gpuwarden_repair_state", Shown()) == samples("gpuwarden_repairs_total", Shown()) == {}


def test_steps_are_counted_by_what_came_of_them() -> None:
    counted = replace(WAITS, counts={"reset_gpu_done": 2, "reboot_rebooted": 1})
    assert samples("gpuwarden_repairs_total", counted) == {("reset_gpu", "done"): 2, ("reboot", "rebooted"): 1}
