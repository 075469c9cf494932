"""Each finding has an alert, and each alert leads to what an operator does about that finding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gpuwarden.cli.main import VERBS
from gpuwarden.health.conditions import CONDITIONS, condition
from gpuwarden.health.model import Advice, Severity
from gpuwarden.health.runbooks import OWN, PAGES, RUNBOOKS, Page, page_of
from gpuwarden.health.to_do import AGAIN, COMMON, RECOVERY, TO_DO, VARIANTS, first_sentence
from gpuwarden.health.xid.catalogue import XIDS, XidClass
from gpuwarden.health.xid.to_do import XID_TO_DO
from gpuwarden.publish.returning import comes_back_when
from prometheus_rules.recording import EVERY
from prometheus_rules.runbooks import alert_of
from rules import FOLDER as RULES
from runbook_pages import FOLDER, UNUSED, section
from support.prometheus import promtool
from test_rules import GROUPS

COMPONENTS = [page.name for page in PAGES]
SECTION = re.compile(r"^### (\w+)\n\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
UNLISTED = {"plugin_nhc": "host", "dcgm_faulty_memory": "driver", "dcgm_code_200": "driver"}
"""Codes that have no row in the table of conditions, and the page for each."""


def test_each_condition_has_one_runbook_and_no_runbook_is_of_another() -> None:
    listed = [*OWN, *(check for page in PAGES for check in page.checks)]
    assert sorted(listed) == sorted(CONDITIONS)


def test_each_page_of_a_part_is_in_the_table_and_each_row_has_its_page() -> None:
    assert {file.stem for file in FOLDER.glob("*.md") if not file.stem.startswith("Gpuwarden")} == {
        *COMPONENTS,
        "README",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_a_section_for_each_of_its_findings_with_what_the_table_says_and_what_to_do(page: Page) -> None:
    text = (FOLDER / f"{page.name}.md").read_text()
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["First commands", "Findings", "What not to do"]
    (commands,) = re.findall(r"^## First commands\n\n```\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    assert len(commands.strip().splitlines()) == 3
    sections = dict(SECTION.findall(text))
    assert tuple(sections) == page.checks
    for check, body in sections.items():
        assert body.startswith(f"{section(CONDITIONS[check])}\n\n"), "run `make docs`"


def test_what_the_pages_name_of_checks_exists() -> None:
    for file in FOLDER.glob("*.md"):
        text = file.read_text()
        named = set(re.findall(r"\[checks\.(\w+)\]|gpuwarden ack (\w+)@", text))
        assert {code for pair in named for code in pair if code} <= {*CONDITIONS, "CODE"}, file.name


@pytest.mark.parametrize("check", OWN)
def test_the_page_of_an_alert_for_one_finding_names_it(check: str) -> None:
    assert f"`{check}`" in (FOLDER / f"{OWN[check]}.md").read_text()


# --- what to do: one text, in the table and in the runbook


def one_line(text: str) -> str:
    """The text without the ends of wrapped lines."""
    return " ".join(text.split())


@pytest.mark.parametrize("check", CONDITIONS)
def test_what_to_do_is_the_first_line_of_the_runbook(check: str) -> None:
    text = (FOLDER / f"{page_of(check)}.md").read_text()
    start = "## What to do\n\n- " if check in OWN else f"### {check}\n\n"
    assert one_line(text.partition(start)[2]).startswith(TO_DO[check])


FAILURES = [row.code for row in CONDITIONS.values() if row.severity is Severity.FAILURE and not row.shadow]


@pytest.mark.parametrize("check", FAILURES)
def test_the_runbook_of_each_failure_says_when_the_node_comes_back(check: str) -> None:
    row, text = CONDITIONS[check], (FOLDER / f"{page_of(check)}.md").read_text()
    body = text if check in OWN else dict(SECTION.findall(text))[check]
    said = re.search(r"node comes back when\*? (.*?)\.(?: |$)", one_line(body))
    assert said is not None
    assert said[1] == comes_back_when(row.severity, row.advice)


def test_the_page_of_the_drain_says_how_a_repaired_node_comes_back() -> None:
    slurm = (FOLDER.parent / "slurm.md").read_text()
    assert "## I repaired it: how does the node come back?" in slurm
    assert "slurm.md#i-repaired-it-how-does-the-node-come-back" in (FOLDER / "GpuwardenNodeFailure.md").read_text()


def test_every_condition_has_what_to_do_and_no_text_is_of_none() -> None:
    made = [code for code in TO_DO if code.startswith("dcgm_") and code not in CONDITIONS]
    assert set(TO_DO) - set(made) == set(CONDITIONS)
    assert [code for code in made if condition(code) is None] == []
    assert {code for code, _ in VARIANTS} <= set(CONDITIONS)
    assert set(COMMON) == set(Advice)


_TABLES: tuple[Mapping[Any, str], ...] = (TO_DO, VARIANTS, RECOVERY, AGAIN, COMMON, XID_TO_DO)
ALL_TEXTS = sorted({text for table in _TABLES for text in table.values()})


@pytest.mark.parametrize("text", ALL_TEXTS, ids=lambda text: text[:40])
def test_a_text_begins_with_the_action_in_a_sentence_that_fits_a_line(text: str) -> None:
    assert re.fullmatch(r"[A-Z].*\.", text)
    assert len(text) <= MOST
    assert len(first_sentence(text)) <= LINE


MOST, LINE = 300, 150
"""Characters: three lines of a terminal, of which the action takes one and a half."""


def test_a_command_of_gpuwarden_s_in_a_text_exists() -> None:
    named = {word for text in ALL_TEXTS for word in re.findall(r"`gpuwarden (\w+)", text)}
    assert named <= set(VERBS)


def test_the_section_about_xids_has_every_number_that_is_a_finding_at_once() -> None:
    table = dict(SECTION.findall((FOLDER / "gpu.md").read_text()))["xid"]
    shown = {int(number) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for number in row.split(", ")}
    assert shown == {x.xid for x in XIDS.values() if x.klass is not XidClass.RECORD and x.xid in USED}
    assert all(
        re.search(rf"^\| (?:.*\b)?{number}\b.*\| {re.escape(XID_TO_DO[number][:40])}", table, re.MULTILINE)
        for number in (79, 160)
    )


USED = {number for number in XIDS if not XIDS[number].provenance.startswith(UNUSED)}


# --- the alerts themselves, by Prometheus

NODE = 'job="gpuwarden",instance="n1:9839"'
OF_MANY = {"job_stalled": "GpuwardenJobStalled"}
"""Counted over nodes: see the unit tests of warnings."""
CHECKS = [*(check for check in CONDITIONS if check not in OF_MANY), *UNLISTED]


def _where(check: str) -> str:
    """Below the folder of runbooks, as the alert of `check` has it."""
    page = UNLISTED.get(check) or page_of(check)
    return f"{page}.md#{check}"


def _alert(check: str, severity: str, urgency: str, description: str) -> str:
    alert = alert_of(check, severity)
    address = f"{alert}.md" if alert == OWN.get(check) else _where(check)
    return (
        f"    - exp_labels: {{severity: {urgency}, job: gpuwarden, instance: 'n1:9839', node: n1, check: {check}}}\n"
        f"      exp_annotations: {{summary: 'n1: {check}. To do: see the runbook.', description: '{description}', "
        f"runbook_url: '{RUNBOOKS}/{address}'}}\n"
    )


def _unit_test(folder: Path, severity: str, values: str, at: str, alerts: dict[str, list[str]]) -> str:
    """A node with every finding at once; `alerts`: by name, those that fire. What Prometheus objects to, if anything."""
    findings = "".join(
        f"""  - {{series: 'gpuwarden_finding_info{{{NODE},check="{check}",severity="{severity}",gpu="",uuid="",pci_bus_id="","""
        f"""detail="",title="{check}",advice="see the runbook"}}', values: '{values}'}}\n"""
        for check in CHECKS
    )
    wanted = "".join(
        f"  - eval_time: {at}\n    alertname: {name}\n"
        + "".join(["    exp_alerts:\n", *alert_lines] if alert_lines else [])
        for name, alert_lines in alerts.items()
    )
    text = (
        f"rule_files: [{', '.join(str(RULES / name) for name in ('recording.rules.yml', 'alerts.rules.yml'))}]\n"
        f"evaluation_interval: {EVERY}\ngroup_eval_order: [{', '.join(group.name for group in GROUPS)}]\n"
        f"tests:\n- interval: {EVERY}\n  input_series:\n"
        f"""  - {{series: 'gpuwarden_node_info{{{NODE},node="n1",boot_id="b"}}', values: '1x600'}}\n{findings}"""
        f"  alert_rule_test:\n{wanted}"
    )
    (folder / "test.yml").write_text(text)
    run = promtool("test", "rules", folder / "test.yml")
    return "" if run.returncode == 0 else run.stdout + run.stderr


def _expected(severity: str, urgency: str, description: str) -> dict[str, list[str]]:
    alerts: dict[str, list[str]] = {}
    for check in CHECKS:
        alerts.setdefault(alert_of(check, severity), []).append(_alert(check, severity, urgency, description))
    return alerts


@pytest.mark.slow
def test_every_failure_is_an_alert_that_leads_to_its_runbook(tmp_path: Path) -> None:
    description = (
        "This node is still in scheduling: gpuwarden is in mode observe, has no scheduler here, cannot reach it, its "
        "breaker is open, or an operator overrode the failure. On the node: gpuwarden status."
    )
    assert _unit_test(tmp_path, "failure", "1x600", "10m", _expected("failure", "page", description)) == ""


@pytest.mark.slow
def test_every_warning_that_lasts_is_an_alert_that_leads_to_its_runbook(tmp_path: Path) -> None:
    description = (
        "Seen for 4h 10m 30s of the last 24 hours. The node still takes work: nothing is done about a warning."
    )
    assert _unit_test(tmp_path, "warning", "1x600", "250m", _expected("warning", "ticket", description)) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("severity", "values"), [("failure", "1x2 stale _x597"), ("warning", "1x2 stale _x597"), ("shadow", "1x600")]
)
def test_no_alert_for_what_is_over_or_in_shadow(tmp_path: Path, severity: str, values: str) -> None:
    names = {alert_of(check, severity) for check, severity in product(CHECKS, ("failure", "warning"))}
    assert _unit_test(tmp_path, severity, values, "250m", {name: [] for name in sorted(names)}) == ""


def test_every_code_that_is_made_for_a_site_check_or_for_dcgm_has_a_page() -> None:
    assert [code for code in UNLISTED if condition(code) is None or code in CONDITIONS] == []
