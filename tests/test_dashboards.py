"""The dashboards: they are what the tables make, and ask only for what exists.

That they show something where there is something: test_dashboards_end_to_end.py.
"""

from __future__ import annotations

import json
import re

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards import FOLDER, PAGES
from gpuwarden.features.evacuation.metrics import OUTCOMES
from gpuwarden.features.evacuation.policy.model import Given
from gpuwarden.health.model import Health
from gpuwarden.policy.model import Owner
from gpuwarden.publish.metrics.dcgm_names import FIELDS, PREFIX
from gpuwarden.publish.metrics.table import METRICS, SHADOW
from grafana_dashboards import texts
from grafana_dashboards.build import NODE_UID, document
from prometheus_rules.model import Pace, Recording
from prometheus_rules.recording import recordings
from support.dashboard_queries import QUERIES, VARIABLES, panels, read

GRAFANA = FOLDER.parent

# --- the files


@pytest.mark.parametrize("name", PAGES)
def test_a_dashboard_is_what_the_tables_make(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == document(PAGES[name]), "run `make docs`"


def test_there_is_no_other_dashboard() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_dashboard_is_the_same_after_the_sdk_has_read_it(name: str) -> None:
    register_default_plugins()
    again = Dashboard.from_json(read(name))
    assert json.loads(JSONEncoder().encode(again)) == read(name)


@pytest.mark.parametrize("name", PAGES)
def test_panels_fill_their_lines_and_none_covers_another(name: str) -> None:
    cells: set[tuple[int, int]] = set()
    for panel in read(name)["panels"]:
        at = panel["gridPos"]
        taken = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        cells |= taken
    lines = {y for _, y in cells}
    assert cells == {(x, y) for x in range(24) for y in lines}
    assert lines == set(range(len(lines)))


@pytest.mark.parametrize("name", PAGES)
def test_a_panel_describes_what_it_shows_and_a_table_shows_what_its_queries_give(name: str) -> None:
    for panel in panels(name):
        assert 10 < len(panel["description"]) < 260, panel["title"]
        if panel["type"] != "table":
            continue
        values = (
            {"Value"} if len(panel["targets"]) == 1 else {f"Value #{target['refId']}" for target in panel["targets"]}
        )
        (shown,) = (
            transformation["options"]["include"]["names"]
            for transformation in panel["transformations"]
            if transformation["id"] == "filterFieldsByName"
        )
        labels = set(re.findall(r"\w+", " ".join(re.findall(r"by \((.*?)\)", panel["targets"][0]["expr"])))) | {
            "change"
        }
        assert set(shown) <= values | labels, panel["title"]
        sort = [column["displayName"] for column in panel["options"].get("sortBy", [])]
        (named,) = (
            transformation["options"]["renameByName"]
            for transformation in panel["transformations"]
            if transformation["id"] == "organize"
        )
        assert set(sort) <= set(named.values())


def test_links_to_a_node_lead_to_the_dashboard_of_the_node() -> None:
    urls = re.findall(r'"url": "([^"]+)"', "".join((FOLDER / name).read_text() for name in PAGES))
    assert len(urls) > 8
    assert read("node.json")["uid"] == NODE_UID
    variables = {variable["name"] for variable in read("node.json")["templating"]["list"]}
    for url in urls:
        path, _, texts = url.partition("?")
        assert path == f"/d/{NODE_UID}"
        assert set(re.findall(r"var-(\w+)=", texts)) | set(re.findall(r"\{(\w+):queryparam", texts)) <= variables


def test_provisioning_names_the_folder_and_a_source_of_the_right_kind() -> None:
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/gpuwarden.yml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"] in (GRAFANA / "README.md").read_text()
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    scrape = yaml.safe_load((GRAFANA / "prometheus/prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape


# --- what they ask for exists


def _known() -> dict[str, set[str]]:
    """The labels of every series, without those that a scrape adds."""
    own = {metric.name: set(metric.labels) for metric in METRICS if metric.kind != "histogram"}
    histograms = {f"{metric.name}_bucket": set(metric.labels) for metric in METRICS if metric.kind == "histogram"}
    dcgm = {PREFIX + field.name: {"gpu", "UUID", "pci_bus_id"} for field in FIELDS}
    recorded = {
        rule.record: {"node"} for group in recordings(Pace()) for rule in group.rules if isinstance(rule, Recording)
    }
    return own | histograms | dcgm | recorded


KNOWN = _known()
ADDED = {"cluster", "job", "instance"}
SERIES = re.compile(r"\b((?:gpuwarden[_:]|process_|DCGM_)[\w:]+)(?:\{([^}]*)\})?")
VALUES = {
    "state": {state.value for state in Health}, "severity": {"warning", "failure", SHADOW}, "outcome": set(OUTCOMES),
    "answer": {answer.value for answer in Given},
}  # fmt: skip


@pytest.mark.parametrize("name", PAGES)
def test_every_metric_label_and_value_that_a_dashboard_asks_for_exists(name: str) -> None:
    queries = [(query.panel, query.expr) for query in QUERIES if query.page == name]
    variables = [(variable, selector) for page, variable, selector, _ in VARIABLES if page == name]
    for title, expr in (*queries, *variables):
        asked = SERIES.findall(expr)
        assert asked, title
        for metric, selector in asked:
            assert metric in KNOWN, (title, metric)
            matchers = re.findall(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"', selector)
            assert {label for label, _ in matchers} <= KNOWN[metric] | ADDED, (title, metric)
            for label, value in matchers:
                assert set(value.split("|")) <= VALUES.get(label, set(value.split("|"))), (title, label, value)
        labels = set().union(*(KNOWN[metric] for metric, _ in asked))
        grouped = re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expr)
        added = (
            {"exported_job"} if "gpuwarden_gpu_job_info" in expr or "gpuwarden_job_ended_info" in expr else set[str]()
        )
        assert {label for group in grouped for label in group.split(", ")} <= labels | ADDED | added, title


@pytest.mark.parametrize("name", PAGES)
def test_every_series_is_chosen_by_cluster_and_every_variable_exists(name: str) -> None:
    variables = {variable["name"] for variable in read(name)["templating"]["list"]}
    for query in (query for query in QUERIES if query.page == name):
        assert set(re.findall(r"\$(?!__)(\w+)", query.expr)) <= variables
        assert set(re.findall(r"\$(__\w+)", query.expr)) <= {"__range", "__rate_interval"}
        assert all('cluster=~"$cluster"' in selector for _, selector in SERIES.findall(query.expr)), query.panel


def test_every_owner_state_and_value_has_its_text() -> None:
    assert set(texts.OWNER) == {"failure", "termination", "operator", Owner.FOREIGN.value, "maintenance"}
    assert {word for word, _ in texts.HEALTH.values()} == {state.value for state in Health}
    assert set(texts.SEVERITY) == VALUES["severity"]
    assert {word for word, _ in texts.RANK.values()} == VALUES["severity"]


def test_every_unit_is_one_of_grafana() -> None:
    all_units = {value for name, value in vars(units).items() if name.isupper() or isinstance(value, str)}
    written = "".join((FOLDER / name).read_text() for name in PAGES)
    used = {*re.findall(r'"unit": "(\w+)"', written), *re.findall(r'"id": "unit",\s+"value": "(\w+)"', written)}
    assert {"celsius", "dateTimeFromNow"} <= used <= all_units
