"""The rules for Prometheus: what they ask for exists, each has what to do, and each fires when it should and only then."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from gpuwarden.features.repair.shown import STATES as REPAIR_STATES
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.model import Health
from gpuwarden.health.runbooks import OWN_FAILURES, OWN_WARNINGS
from gpuwarden.publish.metrics.dcgm_names import FIELDS, PREFIX
from gpuwarden.publish.metrics.table import METRICS, SHADOW
from prometheus_rules.alerts import SEVERITIES, alerts
from prometheus_rules.model import Alert, Pace, Recording, Settings
from prometheus_rules.recording import recordings
from rules import FILES, FOLDER, write
from support.prometheus import program, promtool
from support.quick import first_quick

ROOT = Path(__file__).parent.parent
RUNBOOKS = ROOT / "docs/use/runbooks"
SETTINGS = Settings()
GROUPS = (*recordings(SETTINGS.pace), *alerts(SETTINGS))
ALERTS = [rule for group in GROUPS for rule in group.rules if isinstance(rule, Alert)]
RECORDINGS = [rule for group in GROUPS for rule in group.rules if isinstance(rule, Recording)]
NAMES = sorted({alert.name for alert in ALERTS})
TESTS = sorted((FOLDER / "tests").glob("*.yml"))

# --- the files


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_rules_is_what_the_tables_make(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == FILES[name](SETTINGS), "run `make docs`"


def test_the_command_that_the_page_prints_makes_the_folder_and_names_one_that_cannot_be_made(tmp_path: Path) -> None:
    page = (FOLDER / "README.md").read_text()
    (line,) = (line for line in page.splitlines() if line.startswith(".venv/bin/python tools/rules.py"))
    _, *words, folder = line.split()
    assert folder == "/etc/prometheus/gpuwarden"
    (tmp_path / "file").touch()
    made, refused = (
        subprocess.run(
            [sys.executable, *words, tmp_path / name / "gpuwarden"],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )
        for name in ("prometheus", "file")
    )  # fmt: skip
    assert (made.returncode, made.stderr) == (0, "")
    assert {path.name for path in (tmp_path / "prometheus/gpuwarden").iterdir()} == {*FILES}
    assert 'job="gpu-nodes"' in (tmp_path / "prometheus/gpuwarden/alerts.rules.yml").read_text()
    assert refused.returncode == 2
    assert refused.stderr.endswith(f"cannot write to {tmp_path}/file/gpuwarden: Not a directory\n")


def test_prometheus_and_alertmanager_accept_rules_and_examples() -> None:
    checked = [
        promtool("check", "rules", *(FOLDER / name for name in FILES)),
        promtool("check", "config", FOLDER / "prometheus.yml"),
        subprocess.run(
            [program("amtool"), "check-config", FOLDER / "alertmanager.yml"],
            capture_output=True, text=True, timeout=60, check=False,
        ),
    ]  # fmt: skip
    assert [run.stdout + run.stderr for run in checked if run.returncode] == []


def test_the_check_that_the_page_prints_reports_no_fault() -> None:
    line = next(line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("promtool check"))
    words = line.partition(" && ")[0].split()[1:]
    run = promtool(*words[:-1], *sorted(FOLDER.glob(words[-1])))
    assert (run.returncode, "FAILED" in run.stdout + run.stderr) == (0, False)


@pytest.mark.slow
@pytest.mark.parametrize("file", first_quick(2, TESTS), ids=lambda file: file.stem)
def test_the_rules_pass_their_unit_tests(file: Path) -> None:
    run = promtool("test", "rules", file)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_unit_tests_evaluate_all_groups_in_a_fixed_order(file: Path) -> None:
    """Promtool evaluates in a random order what is not listed, and an alert then sees a recording that is a step old."""
    (order,) = re.findall(r"^group_eval_order: \[(.*)\]$", file.read_text(), re.MULTILINE)
    assert order.split(", ") == [group.name for group in GROUPS]


def test_the_inhibitions_of_the_example_name_alerts_that_exist() -> None:
    named = set(re.findall(r"Gpuwarden\w+", (FOLDER / "alertmanager.yml").read_text()))
    assert named <= set(NAMES)


def test_other_jobs_other_runbooks_and_another_pace_make_sound_rules(tmp_path: Path) -> None:
    write(tmp_path, Settings(job="gpu-nodes", runbooks="https://wiki.example.org/gpu", pace=Pace(60)))
    text = (tmp_path / "alerts.rules.yml").read_text()
    assert 'up{job="gpu-nodes"}' in text
    assert "'https://wiki.example.org/gpu/GpuwardenGpuMissing.md'" in text
    assert "interval: 500ms" in text
    assert not re.findall(r"(?:for|keep_firing_for): \d+(?:h|d)\b", text)
    run = promtool("check", "rules", *(tmp_path / name for name in FILES))
    assert run.returncode == 0, run.stdout + run.stderr


# --- what they ask for exists


def _known() -> dict[str, set[str]]:
    """The labels of every series, without those that Prometheus adds."""
    own = {metric.name: set(metric.labels) for metric in METRICS}
    dcgm = {PREFIX + field.name: {"gpu", "UUID", "pci_bus_id"} for field in FIELDS}
    recorded = {
        "gpuwarden:node:last_seen_timestamp_seconds": {"node"},
        "gpuwarden:node:name": {"node"},
        "gpuwarden:node:exclusion": set[str](),
        "gpuwarden:node:failing_since_timestamp_seconds": set[str](),
        "gpuwarden:finding:active": {"node", "check", "severity", "gpu", "uuid", "pci_bus_id"},
        "gpuwarden:fleet:nodes": set[str](),
        "gpuwarden:fleet:many": set[str](),
        "gpuwarden:gpu:temperature_excess_celsius": {"gpu", "UUID", "pci_bus_id"},
    }
    assert {rule.record for rule in RECORDINGS} == set(recorded)
    return own | dcgm | recorded | {"up": set()}


KNOWN = _known()
ZERO_SERIES = {metric.name for metric in METRICS if metric.name in ("gpuwarden_finding", "gpuwarden_xid_total")}
"""Hundreds of series of value 0 on each healthy node: a rule over them takes seconds at 1,000 nodes."""
TARGET = {"job", "instance"}
SERIES = re.compile(r"\b((?:gpuwarden[_:]|DCGM_)[\w:]+|up\b)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)(?:"([^"]*)"|\'([^\']*)\'|(%q))')


@pytest.mark.parametrize("rule", [*RECORDINGS, *ALERTS], ids=lambda rule: getattr(rule, "record", None) or rule.name)
def test_no_rule_reads_a_metric_whose_series_are_there_on_every_healthy_node(rule: Alert | Recording) -> None:
    assert len(ZERO_SERIES) == 2
    assert not ZERO_SERIES & {name for name, _ in SERIES.findall(rule.expr)}


def test_a_finding_that_holds_is_recorded_once_whatever_its_texts_are() -> None:
    (rule,) = [rule for rule in RECORDINGS if rule.record == "gpuwarden:finding:active"]
    dropped = {label.strip() for labels in re.findall(r"without \(([^)]*)\)", rule.expr) for label in labels.split(",")}
    assert dropped == KNOWN["gpuwarden_finding_info"] - KNOWN["gpuwarden_finding"]


def _asked(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield each series that a query names, with its matchers."""
    for name, selector in SERIES.findall(text):
        yield name, [(label, value or other) for label, _, value, other, _ in MATCHER.findall(selector)]


@pytest.mark.parametrize("rule", [*RECORDINGS, *ALERTS], ids=lambda rule: getattr(rule, "record", None) or rule.name)
def test_every_metric_label_and_value_that_a_rule_asks_for_exists(rule: Alert | Recording) -> None:
    templates = rule.summary + rule.description if isinstance(rule, Alert) else ""
    queries = " ".join(re.findall(r"query \(printf \"(.*?)\" \$", templates.replace('\\"', '"')))
    asked = list(_asked(f"{rule.expr} {queries}"))
    for name, matchers in asked:
        assert name in KNOWN, name
        assert {label for label, _ in matchers} <= KNOWN[name] | TARGET, (name, matchers)
    values = [(label, word) for _, matchers in asked for label, value in matchers for word in value.split("|") if word]
    allowed = {
        "check": set(CONDITIONS), "state": {*Health, *REPAIR_STATES}, "severity": {"warning", "failure", SHADOW},
        "cause": {"failure", "termination", "operator", "foreign", "maintenance"}, "job": {SETTINGS.job},
    }  # fmt: skip
    assert [pair for pair in values if pair[0] in allowed and pair[1] not in allowed[pair[0]]] == []
    labels = set().union(*(KNOWN[name] for name, _ in asked)) | TARGET
    grouped = re.findall(r"(?:\bby|\bon|group_left) \(([^)]*)\)", rule.expr)
    assert {label for group in grouped for label in group.split(", ") if label} <= labels | {"node"}
    assert set(re.findall(r"\$labels\.(\w+)", templates)) <= labels | {"node", "what"}


def test_checks_with_an_alert_of_their_own_are_of_the_severity_that_the_alert_is_for() -> None:
    assert {CONDITIONS[check].severity for check in OWN_FAILURES} == {"failure"}
    assert {CONDITIONS[check].severity for check in OWN_WARNINGS} == {"warning"}


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_unit_tests_feed_metrics_as_the_daemon_exports_them(file: Path) -> None:
    fed = re.findall(r"series: '(\w+)\{([^']*)\}'", file.read_text())
    assert fed
    for name, selector in fed:
        labels = {label for label, *_ in MATCHER.findall(selector)}
        assert name in KNOWN, name
        extra = {"DCGM_FI_DRIVER_VERSION"} if name.startswith(PREFIX) else set()
        assert labels <= KNOWN[name] | TARGET | extra, (name, labels)


# --- the text of an alert


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_an_alert_has_a_severity_and_a_summary_that_names_where_and_what_to_do(alert: Alert) -> None:
    assert alert.severity in SEVERITIES
    assert len(alert.description) > 30
    where = set(re.findall(r"\$labels\.(\w+)", alert.summary))
    assert where & {"node", "instance", "job"}
    if where & {"node", "instance"} and alert.severity != "info" and alert.name != "GpuwardenTargetDown":
        assert "To do: " in alert.summary
    if "gpuwarden:finding:active" in alert.expr and "by (job)" not in alert.expr:
        assert {"gpu", "pci_bus_id", "node"} <= where
        assert "gpuwarden_finding_info" in alert.summary


SECTIONS = ["What it means", "How sure it is", "What gpuwarden did", "First commands", "What to do", "What not to do"]


@pytest.mark.parametrize("name", NAMES)
def test_every_alert_has_a_runbook_with_all_its_parts(name: str) -> None:
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    commands = text.partition("## First commands")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```\n(.*?)```", commands, re.DOTALL)
    assert len(block.strip().splitlines()) == 3
    for severity in {alert.severity for alert in ALERTS if alert.name == name}:
        assert f"**{severity}**" in text, severity


def test_there_is_no_runbook_without_an_alert() -> None:
    assert {page.stem for page in RUNBOOKS.glob("Gpuwarden*.md")} == set(NAMES)


# --- each alert is tested


@cache
def _unit_tests() -> dict[str, set[tuple[str, bool]]]:
    """Return the unit tests of each alert: quiet or firing by the name of the test, and whether alerts are expected."""
    tests: dict[str, set[tuple[str, bool]]] = {name: set() for name in NAMES}
    for file in TESTS:
        for test in re.split(r"^  - name: ", file.read_text(), flags=re.MULTILINE)[1:]:
            kind = "quiet" if test.lstrip("'").startswith("quiet: ") else "firing"
            for part in re.split(r"^      - ", test.partition("alert_rule_test:")[2], flags=re.MULTILINE)[1:]:
                (name,) = re.findall(r"alertname: (\w+)", part)[:1]
                tests[name].add((kind, "exp_alerts" in part))
    return tests


@pytest.mark.parametrize("name", NAMES)
def test_every_alert_has_a_firing_and_a_quiet_unit_test(name: str) -> None:
    tests = _unit_tests()[name]
    assert ("firing", True) in tests
    assert ("quiet", False) in tests
    assert ("quiet", True) not in tests


# --- a thousand nodes


def _fleet(folder: Path, failing: int, expected: str) -> subprocess.CompletedProcess[str]:
    """1,000 nodes, of which `failing` have a driver that hangs from the third minute on; ten of those are taken out."""
    series = []
    for number in range(1000):
        target = f'job="gpuwarden",instance="n{number}:9839"'
        failure = "0x4 1x16" if number < failing else "0x20"
        out = "0x4 1x16" if number < min(failing, 10) else "0x20"
        driver = 'check="driver_unresponsive",severity="failure",gpu="",uuid="",pci_bus_id="",title="It hangs",advice="reboot it"'
        for name, values in (
            (f'gpuwarden_node_info{{{target},node="n{number}",boot_id="b"}}', "1x20"),
            (f'gpuwarden_node_health{{{target},state="failure"}}', failure),
            (f"gpuwarden_finding_info{{{target},{driver}}}", "_x5 1x15" if number < failing else "_x20"),
            (f'gpuwarden_excluded{{{target},actuator="slurm",owner="gpuwarden",cause="failure"}}', out),
            (f"gpuwarden_breaker_open{{{target}}}", "0x20" if number < 10 or number >= failing else "0x4 1x16"),
        ):
            series.append(f"      - {{series: '{name}', values: '{values}'}}")
    order = ", ".join(group.name for group in GROUPS)
    file = folder / "fleet.yml"
    file.write_text(
        f"rule_files: [{', '.join(str(FOLDER / name) for name in reversed(FILES))}]\nevaluation_interval: 30s\n"
        f"group_eval_order: [{order}]\ntests:\n  - interval: 30s\n    input_series:\n" + "\n".join(series) + "\n"
        "    promql_expr_test:\n"
        '      - expr: count by (alertname, severity) (ALERTS{alertstate="firing"})\n'
        f"        eval_time: 8m\n        exp_samples: [{expected}]\n"
    )
    return promtool("test", "rules", file)


def _counted(name: str, severity: str, count: int) -> str:
    return f'{{labels: \'{{alertname="{name}",severity="{severity}"}}\', value: {count}}}'


@pytest.mark.slow
def test_one_node_of_a_thousand_is_a_matter_of_that_node(tmp_path: Path) -> None:
    run = _fleet(tmp_path, 1, _counted("GpuwardenDriverUnresponsive", "ticket", 1))
    assert run.returncode == 0, run.stdout[-3000:]


@pytest.mark.slow
def test_a_bad_driver_on_a_thousand_nodes_is_an_event_of_the_fleet_which_holds_the_single_pages_back(
    tmp_path: Path,
) -> None:
    """A real Alertmanager then sends one page, as test_alerts_end_to_end.py tests."""
    expected = (
        _counted("GpuwardenManyNodesFailing", "page", 1),
        _counted("GpuwardenBreakerOpen", "page", 1),
        _counted("GpuwardenDriverUnresponsive", "page", 990),
        _counted("GpuwardenDriverUnresponsive", "ticket", 10),
    )
    run = _fleet(tmp_path, 1000, ", ".join(expected))
    assert run.returncode == 0, run.stdout[-3000:]
