"""The dashboards' queries, as Grafana would ask them, of a real Prometheus: of real daemons, and of a past."""

from __future__ import annotations

import math
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dashboards import FOLDER
from gpuwarden_collectors.codec import to_wire
from gpuwarden_collectors.facts import Stamp
from prometheus_rules.model import Pace, Settings
from rules import write
from support.active_tests import healthy
from support.dashboard_queries import QUERIES, VARIABLES, Asked
from support.jobs_ended import job_ended
from support.orders import given
from support.prometheus import Server, ask, prometheus, promtool, wait
from support.simulated_nodes import SimulatedNode, simulated_node

pytestmark = pytest.mark.xdist_group("prometheus")
EXAMPLE = FOLDER.parent / "prometheus" / "prometheus.yml"
Series = tuple[dict[str, str], float]
"""Labels, and the last number."""

NO_SCHEDULER = "there is no scheduler here, and a simulated GPU excludes nobody"
NO_JOB = "no job is notified of an end that is rehearsed"
EMPTY: Mapping[tuple[str, str], str] = {
    ("fleet.json", "Wanted, not done"): NO_SCHEDULER,
    ("fleet.json", "What gpuwarden did"): NO_SCHEDULER,
    ("node.json", "Jobs"): NO_SCHEDULER,
    ("terminations.json", "Slowest signal"): NO_JOB,
    ("terminations.json", "From notice to signal"): NO_JOB,
    ("terminations.json", "Sources of notices"): "there is no cloud here",
}
"""Panels that show nothing here, and why."""
ONLY_SILENT = {("fleet.json", "Silent nodes")}


@dataclass(frozen=True, slots=True)
class Site:
    """Three nodes that Prometheus scrapes: one healthy, one with a dead GPU, one that will end and was taken out."""

    healthy: SimulatedNode
    failing: SimulatedNode
    ending: SimulatedNode
    prometheus: Server


def _substituted(expr: str, values: Mapping[str, str]) -> str:
    """Substitute variables as Grafana does, longer names first."""
    for name in sorted(values, key=len, reverse=True):
        expr = expr.replace(f"${name}", values[name])
    assert "$" not in expr, expr
    return expr


COMMON = {"cluster": ".*", "gpu": ".*", "__rate_interval": "10s", "__range": "30s"}


def _values(query: Asked, site: Site) -> list[dict[str, str]]:
    """The dashboard of one node is queried for each node that has something to show."""
    if query.page != "node.json":
        return [COMMON | {"node": ".*"}]
    return [COMMON | {"node": node.name, "instance": f"127.0.0.1:{node.port}"} for node in (site.failing, site.ending)]


def _ask(server: Server, query: Asked, values: Mapping[str, str], at: float, step: int) -> list[Series]:
    """Return the series that a panel of its kind gets for a query, without values that are not numbers. A query that is
    refused fails the test.
    """
    expr = _substituted(query.expr, values)
    words: dict[str, object] = {"query": expr, "time": at}
    if not query.instant:
        words = {"query": expr, "start": at - 30 * step, "end": at, "step": step}
    kind = "query" if query.instant else "query_range"
    answer = ask(server.port, f"/api/v1/{kind}?{urllib.parse.urlencode(words)}")
    newest_values = []
    for series in answer["data"]["result"]:
        points = [float(value) for _, value in series.get("values", [series.get("value")])]
        if numbers := [point for point in points if not math.isnan(point)]:
            newest_values.append((series["metric"], numbers[-1]))
    return newest_values


def _shows(query: Asked, site: Site) -> bool:
    return any(_ask(site.prometheus, query, values, time.time(), 1) for values in _values(query, site))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        ended = [job_ended()]
        nodes = [stack.enter_context(simulated_node(name, tmp_path / name, past=ended)) for name in ("n1", "n2", "n3")]
        write(tmp_path, Settings(pace=Pace(60)))
        (tmp_path / "targets").mkdir()
        targets = ", ".join(f"'127.0.0.1:{node.port}'" for node in nodes)
        (tmp_path / "targets" / "nodes.yml").write_text(f"- targets: [{targets}]\n")
        config = tmp_path / "prometheus.yml"
        text = EXAMPLE.read_text().partition("alerting:")[0]
        config.write_text(text.replace("scrape_interval: 15s", "scrape_interval: 1s").replace("10s", "1s"))
        server = stack.enter_context(prometheus(config, tmp_path))
        server.wait_query("count(gpuwarden:node:name) == 3 and count(gpuwarden_heartbeat_timestamp_seconds) == 3")
        healthy, failing, ending = nodes
        yield Site(healthy, failing, ending, server)


@pytest.mark.slow
def test_every_query_of_every_panel_shows_something_of_real_daemons(site: Site) -> None:
    site.failing.order("inject", "--gpu", "3", "xid", "95")
    site.ending.order("notify-termination", "--in", "600", "--reason", "maintenance")
    site.ending.order("exclude", "--reason", "maintenance")
    _tested(site.failing)
    missing = [query for query in QUERIES if query.where not in EMPTY]

    def all_show() -> bool:
        missing[:] = [query for query in missing if not _shows(query, site)]
        return {query.where for query in missing} <= ONLY_SILENT

    try:
        wait(all_show, "every panel", site.prometheus.log)
    except AssertionError as error:
        raise AssertionError([(query.page, query.panel, query.ref) for query in missing]) from error
    site.healthy.kill()
    wait(lambda: all(_shows(query, site) for query in missing), "the silent node")
    wait(lambda: _tiles(site) == [("n2", 5), ("n1", 4), ("n3", 0)], "the failing node first, then the silent one")
    assert {query.where for query in QUERIES if query.where in EMPTY and _shows(query, site)} == set()


def _tested(node: SimulatedNode) -> None:
    """The result of a test of its first GPU is handed in, as `gpuwarden test` does on real ones."""

    def asked(**request: object) -> Any:
        return given(node, request)["result"]

    def listed() -> list[dict[str, Any]]:
        return list(asked(verb="status")["gpus"])

    wait(lambda: listed() and listed()[0]["uuid"], "the first pass")
    now = Stamp(time.clock_gettime(time.CLOCK_BOOTTIME), time.time())
    test = replace(healthy(), uuid=listed()[0]["uuid"], started=now)
    assert asked(verb="test-result", lease="", tests=[to_wire(test)])["outcomes"]


def _tiles(site: Site) -> list[tuple[str, float]]:
    (grid,) = (query for query in QUERIES if query.panel == "Nodes, worst first")
    (values,) = _values(grid, site)
    return [(labels["node"], value) for labels, value in _ask(site.prometheus, grid, values, time.time(), 1)]


def test_every_variable_but_the_cluster_has_something_to_choose(past: Server) -> None:
    """The cluster is an external label, which the Prometheus that scrapes does not have."""
    for page, name, selector, label in VARIABLES:
        asked = _substituted(selector, PAST | {"node": "n9"})
        answer = ask(past.port, f"/api/v1/label/{label}/values?{urllib.parse.urlencode({'match[]': asked})}")
        assert bool(answer["data"]) is (name != "cluster"), (page, name)


# --- what lies in the past, or needs a scheduler

END, HOUR, SCRAPE = 1_700_006_400, 3600, 15
SINCE = END - 6 * HOUR
ENDED = END - 3 * HOUR + 120
PAST = COMMON | {"node": ".*", "instance": ".*", "__range": f"{END - SINCE}s", "__rate_interval": "600s"}
STORY: tuple[tuple[str, str, str, int, int, float, float], ...] = (
    # metric, address, labels, from, until, value in the first three hours, value in the last three
    ("gpuwarden_node_info", "n9", 'node="n9",boot_id="b"', SINCE, END, 1, 1),
    ("gpuwarden_gpu_health", "n9", 'gpu="3",state="failure"', SINCE, END, 0, 1),
    ("gpuwarden_breaker_open", "n9", "", SINCE, END, 0, 1),
    ("gpuwarden_intents_pending", "n9", "", SINCE, END, 0, 1),
    ("gpuwarden_intents_total", "n9", 'kind="exclude",outcome="done"', SINCE, END, 0, 1),
    ("gpuwarden_gpu_job_info", "n9", 'gpu="3",exported_job="4711",user="",job_name=""', SINCE, END, 1, 1),
    ("gpuwarden_termination_source_up", "n9", 'source="aws"', SINCE, END, 1, 0),
    ("gpuwarden_jobs_signalled_total", "n9", 'outcome="sent"', SINCE, END, 0, 5),
    ("gpuwarden_jobs_signalled_total", "n9", 'outcome="unsent"', SINCE, END, 2, 3),
    ("gpuwarden_notice_to_signal_seconds_bucket", "n9", 'le="0.5"', SINCE, END, 0, 3),
    ("gpuwarden_notice_to_signal_seconds_bucket", "n9", 'le="1.0"', SINCE, END, 0, 5),
    ("gpuwarden_notice_to_signal_seconds_bucket", "n9", 'le="+Inf"', SINCE, END, 0, 5),
    ("gpuwarden_finding_info", "n9", 'check="xid",severity="failure",gpu="3",title="Xid"', END - HOUR, END, 1, 1),
    ("gpuwarden_finding_info", "n9", 'check="power_brake",severity="warning",gpu="1",title="brake"', SINCE, END - 2 * HOUR, 1, 1),
    ("gpuwarden_finding_info", "n9", 'check="lemon_node",severity="warning",gpu="",title="lemon"', SINCE, END, 1, 1),
    # a machine that ended three hours ago, two minutes after it was announced, and had signalled two jobs
    ("gpuwarden_node_info", "n8", 'node="n8",boot_id="b"', SINCE, ENDED, 1, 1),
    ("gpuwarden_termination_deadline_timestamp_seconds", "n8", "", ENDED - 120, ENDED, 0, ENDED),
    ("gpuwarden_jobs_signalled_total", "n8", 'outcome="sent"', SINCE, ENDED, 0, 2),
    # and one that has an address that another machine had before
    ("gpuwarden_node_info", "n7", 'node="n6",boot_id="b"', SINCE, ENDED, 1, 1),
    ("gpuwarden_node_info", "n7", 'node="n7",boot_id="c"', ENDED + 60, END, 1, 1),
    ("gpuwarden_jobs_signalled_total", "n7", 'outcome="sent"', SINCE, END, 0, 0),
)  # fmt: skip


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Server]:
    """A Prometheus that scraped a few nodes for six hours, which ended at END."""
    file = tmp_path / "past.txt"
    with file.open("w") as written:
        for metric, address, labels, since, until, before, after in STORY:
            selector = ",".join(filter(None, ('job="gpuwarden"', f'instance="{address}:9839"', labels)))
            for at in range(since, until + 1, SCRAPE):
                value = before if at < END - 3 * HOUR else after
                written.write(f"{metric}{{{selector}}} {value} {at}\n")
        written.write("# EOF\n")
    made = promtool("tsdb", "create-blocks-from", "openmetrics", file, tmp_path / "tsdb")
    assert made.returncode == 0, made.stderr
    config = tmp_path / "prometheus.yml"
    config.write_text("")
    with prometheus(config, tmp_path) as server:
        yield server


def _rows(server: Server, page: str, panel: str) -> list[list[Series]]:
    rows = [_ask(server, query, PAST, END, 600) for query in QUERIES if query.where == (page, panel)]
    assert rows, panel
    return rows


def test_panels_show_what_came_hours_ago_and_what_needs_a_scheduler(past: Server) -> None:
    for page, panel in EMPTY:
        assert all(_rows(past, page, panel)), panel

    (changed,) = _rows(past, "fleet.json", "What changed in this time")
    assert {(labels["change"], labels["title"]) for labels, _ in changed} == {("began", "Xid"), ("ended", "brake")}
    (findings,) = _rows(past, "fleet.json", "What is wrong, and what to do")
    assert [(labels["node"], labels["title"], rank) for labels, rank in findings] == [
        ("n9", "Xid", 2),
        ("n9", "lemon", 1),
    ]


def test_terminations_are_counted_of_machines_that_are_gone(past: Server) -> None:
    def number(panel: str) -> float:
        ((_, value),) = next(rows for rows in _rows(past, "terminations.json", panel) if rows)
        return value

    ((labels, lead),) = next(rows for rows in _rows(past, "terminations.json", "Lead time") if rows)
    assert labels == {"node": "n8"}
    assert lead == pytest.approx(120, abs=SCRAPE)
    assert number("Jobs signalled") == pytest.approx(5 + 1 + 2, abs=0.2)
    assert number("Jobs not signalled") == pytest.approx(1, abs=0.1)
    assert 0.5 < number("Slowest signal") <= 1
