"""Which step follows from which finding: by a table, at most two, and none where a person must look."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.features.repair.ladder import (
    BY_ADVICE,
    LADDERS,
    NOT_REPAIRED,
    REPAIRED,
    SERVICES,
    Ladder,
    Rung,
    ladder,
    why_none,
)
from gpuwarden.features.repair.model import RANK, Service, StepKind
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import NODE, Advice, Finding, Severity, Subject, gpu, link
from support.snapshots import finding, slot

RESET, RESET_ALL, RELOAD, REBOOT = map(
    Rung, (StepKind.RESET_GPU, StepKind.RESET_ALL, StepKind.RELOAD_DRIVER, StepKind.REBOOT)
)
TABLES = [*LADDERS.values(), *SERVICES.values(), *(ladder for rows in BY_ADVICE.values() for ladder in rows.values())]


def found(code: str, subject: Subject = NODE, advice: Advice = Advice.REBOOT, detail: str = "") -> Finding:
    return replace(finding(code, subject, Severity.FAILURE, detail=detail), advice=advice, evidence={})


@pytest.mark.parametrize(
    ("code", "subject", "advice", "detail", "steps"),
    [
        ("xid", gpu(slot(3)), Advice.RESET_GPU, "95", (RESET, REBOOT)),
        ("xid", gpu(slot(3)), Advice.REBOOT, "79", (REBOOT,)),
        ("xid", gpu(slot(3)), Advice.INSPECT_HARDWARE, "54", ()),
        ("xid", gpu(slot(3)), Advice.RESTART_APP, "13", ()),
        ("gpu_recovery_action", gpu(slot(3)), Advice.RESTART_SERVICE, "", (Rung(StepKind.RESTART_SERVICE, Service.IMEX),)),
        ("driver_unresponsive", NODE, Advice.REBOOT, "", (REBOOT,)),
        ("driver_not_loaded", NODE, Advice.RESTART_SERVICE, "", (RELOAD,)),
        ("driver_library_mismatch", NODE, Advice.REBOOT, "", (RELOAD, REBOOT)),
        ("nvlink_down", link(slot(3), 4), Advice.RESET_GPU, "", (RESET_ALL, REBOOT)),
        (
            "service_down", Subject("service", part="nvidia-fabricmanager.service"), Advice.RESTART_SERVICE, "",
            (Rung(StepKind.RESTART_SERVICE, Service.FABRIC_MANAGER), REBOOT),
        ),
        ("service_down", Subject("service", part="slurmd.service"), Advice.RESTART_SERVICE, "", ()),
        ("gpu_missing", gpu(slot(3)), Advice.INSPECT_HARDWARE, "", ()),
        ("row_remap_failed", gpu(slot(3)), Advice.CONTACT_SUPPORT, "", ()),
        ("mount_hung", Subject("mount", part="/data"), Advice.RESTART_SERVICE, "", ()),
        ("gpu_unresponsive", gpu(slot(3)), Advice.INSPECT_HARDWARE, "", ()),
    ],
)  # fmt: skip
def test_the_steps_of_a_finding(code: str, subject: Subject, advice: Advice, detail: str, steps: Ladder) -> None:
    finding = found(code, subject, advice, detail=detail)
    assert ladder(finding) == steps
    assert bool(why_none(finding)) or steps


def test_what_came_back_after_a_reset_begins_with_the_reboot() -> None:
    finding = found("gpu_unresponsive", gpu(slot(3)), Advice.REBOOT)
    assert ladder(replace(finding, evidence={"came_back_after": "a GPU reset"})) == (REBOOT,)


def test_the_fabric_of_several_nodes_is_not_repaired_from_one() -> None:
    finding = found("fabric_unhealthy", gpu(slot(3)), Advice.RESTART_SERVICE)
    assert ladder(finding)
    assert not ladder(finding, domain="8f3c6a1e.0")
    assert "8f3c6a1e.0" in why_none(finding, domain="8f3c6a1e.0")


def test_no_ladder_has_more_than_two_steps_and_each_goes_on_with_a_stronger_one() -> None:
    assert all(1 <= len(steps) <= 2 for steps in TABLES)
    ranks = [[RANK[rung.kind] for rung in steps] for steps in TABLES]
    assert all(ranks_of == sorted(set(ranks_of)) for ranks_of in ranks)
    assert all(
        (rung.kind is StepKind.RESTART_SERVICE) == (rung.service is not None)
        for ladder_steps in TABLES
        for rung in ladder_steps
    )


def test_each_condition_whose_advice_is_a_step_has_a_ladder_or_a_reason_why_not() -> None:
    """A condition that is added is decided on, and not left out by chance."""
    treatable = {row.code for row in CONDITIONS.values() if row.advice in REPAIRED}
    assert treatable - {"service_down"} <= {*LADDERS, *BY_ADVICE, *NOT_REPAIRED}
    assert {*LADDERS, *BY_ADVICE, *NOT_REPAIRED} <= {*CONDITIONS}
