"""`gpuwarden_finding_info` and `gpuwarden_enforcing`: alerts take their text and their urgency from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuwarden.health.model import NODE, Severity, Subject, gpu
from gpuwarden.publish.metrics.table import INFOS_MOST
from support.scrape import scrape
from support.snapshots import finding, slot, snapshot


def test_a_finding_has_its_title_and_advice_with_the_labels_of_its_series() -> None:
    page = scrape(snapshot(findings=[finding("xid", gpu(slot(3)), detail="79")]))
    (labels,) = page.labels("gpuwarden_finding_info")
    assert (labels.pop("detail"), labels.pop("title"), labels.pop("advice")) == (
        "79", "the title of xid", f"Check `timeout 20 nvidia-smi -i {slot(3)}`",
    )  # fmt: skip
    assert page.value("gpuwarden_finding", **labels) == 1


def test_findings_of_one_check_on_one_gpu_are_distinguished() -> None:
    links = [finding("nvlink_down", Subject("link", slot(3), str(number))) for number in range(3)]
    page = scrape(snapshot(findings=[*links, finding("disk_full", NODE, Severity.WARNING)]))
    details = [labels["detail"] for labels in page.labels("gpuwarden_finding_info")]
    assert details == ["link 0", "link 1", "link 2", ""]


def test_a_shadow_finding_has_an_info_under_its_own_severity() -> None:
    shadow = replace(finding("gpu_missing", gpu(slot(3))), shadow=True)
    page = scrape(snapshot(findings=[shadow]))
    assert [labels["severity"] for labels in page.labels("gpuwarden_finding_info")] == ["shadow"]


def test_a_healthy_node_has_no_infos_and_a_very_sick_one_not_too_many() -> None:
    assert scrape(snapshot()).labels("gpuwarden_finding_info") == []
    links = [finding("nvlink_down", Subject("link", slot(g), str(number))) for g in range(8) for number in range(18)]
    assert len(scrape(snapshot(findings=links)).labels("gpuwarden_finding_info")) == INFOS_MOST


def test_many_findings_of_one_check_hide_no_other_check() -> None:
    links = [finding("nvlink_down", Subject("link", slot(g), str(number))) for g in range(8) for number in range(18)]
    page = scrape(
        snapshot(findings=[*links, finding("gpu_missing", gpu(slot(7))), finding("disk_full", NODE, Severity.WARNING)])
    )
    described = [(labels["check"], labels["gpu"]) for labels in page.labels("gpuwarden_finding_info")]
    assert len(described) == INFOS_MOST
    assert {("nvlink_down", str(g)) for g in range(8)} | {("gpu_missing", "7"), ("disk_full", "")} == set(described)


@pytest.mark.parametrize(("mode", "enforcing"), [("observe", 0), ("enforce", 1)])
def test_the_mode_is_published(mode: str, enforcing: int) -> None:
    shown = snapshot()
    page = scrape(replace(shown, service=replace(shown.service, mode=mode)))
    assert page.value("gpuwarden_enforcing") == enforcing
