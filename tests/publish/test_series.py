"""What `publish.series` serves: by default all that is read of gpuwarden, little else, and nothing that is 0 for good."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from gpuwarden.actuators.prometheus_count import queries
from gpuwarden.config.series import COUNTED_BY
from gpuwarden.features.why.fleet import queries as of_job
from gpuwarden.fleet.queries import QUERIES, WHY_QUERIES
from gpuwarden.fleet.report.reading import CHANGES, SETS, SLOW
from gpuwarden.health.gpu.pods import Device, PodsOnGpus
from gpuwarden.health.model import LemonDays, gpu
from gpuwarden.policy.model import NodeState, Owner
from gpuwarden.publish.metrics.chosen import ALL, BY_DEFAULT, FULL, chosen_series
from gpuwarden.publish.metrics.dcgm_names import OF_EXPORTER, PREFIX
from gpuwarden.publish.metrics.exposition import Renderer
from gpuwarden.publish.metrics.table import METRICS
from gpuwarden.publish.snapshot import Enforced, Snapshot, XidCount
from gpuwarden_collectors.kubelet.facts import PodContainer
from support.dashboard_queries import QUERIES as OF_PANELS
from support.dashboard_queries import VARIABLES
from support.dcgm_exporter import DEFAULTS
from support.prometheus import wait
from support.scrape import Scrape, scrape
from support.simulated_nodes import SimulatedNode, simulated_node
from support.snapshots import UPTIME, at, finding, missing, slot, snapshot
from support.whole_snapshots import everything
from tables import MOST_HEALTHY, MOST_OF_GPUS, MOST_WITH_FAULTS, MOST_WITH_NOTICES
from test_operations import QUERIES as OF_OPERATORS
from test_rules import ALERTS, RECORDINGS

DEFAULT = chosen_series(("default",))
GPUS = 8


def by_default() -> Renderer:
    return Renderer(series=DEFAULT)


def named_in(*texts: str) -> set[str]:
    """The metrics that texts name; a histogram by its buckets."""
    words = {
        word.removesuffix("_bucket")
        for text in texts
        for word in re.findall(r"\b(?:gpuwarden_|process_|DCGM_)\w+", text)
    }
    return words & ALL


# --- which names


def read() -> set[str]:
    """Return the names that rules, texts of alerts, dashboards, `gpuwarden fleet`, the breaker and the questions of the operations page read."""
    rules = (
        [rule.expr for rule in RECORDINGS]
        + [alert.expr for alert in ALERTS]
        + [alert.summary + alert.description for alert in ALERTS]
    )
    panels = [query.expr for query in OF_PANELS] + [selector for _, _, selector, _ in VARIABLES]
    jobs = of_job("4711").values()
    breaker = [*queries("n", "b", "").values(), "gpuwarden_machine_info"]
    report = (*CHANGES.values(), *SETS.values(), *SLOW.values())
    return named_in(*rules, *panels, *QUERIES.values(), *WHY_QUERIES.values(), *jobs, *report, *breaker, *OF_OPERATORS)


def test_all_that_is_read_is_served_by_default_and_of_our_own_nothing_else() -> None:
    exporter = {row.name for row in DEFAULTS}
    assert {PREFIX + name for name in OF_EXPORTER} == exporter
    assert read() | exporter == BY_DEFAULT
    assert len(read()) > 50


def test_the_runbooks_ask_for_what_is_served_by_default() -> None:
    pages = (Path(__file__).parents[2] / "docs/use/runbooks").glob("*.md")
    asked = [query for page in pages for query in re.findall(r"promtool query instant \S+ '([^']+)'", page.read_text())]
    assert len(asked) > 2
    assert named_in(*asked) <= BY_DEFAULT


def test_the_breaker_counts_by_the_names_that_the_configuration_demands() -> None:
    assert named_in(*queries("n", "b", "").values()) == set(COUNTED_BY)


def test_a_list_serves_the_metrics_that_it_names_and_no_other() -> None:
    page = scrape(snapshot(2), Renderer(series=chosen_series(("gpuwarden_xid_total", "DCGM_FI_DEV_PSTATE"))))
    assert {sample.name for sample in page.samples} == {"gpuwarden_xid_total", "DCGM_FI_DEV_PSTATE"}
    assert set(page.values("gpuwarden_xid_total")) == {0}


def test_default_stands_for_its_set_within_a_list() -> None:
    more = chosen_series(("default", "DCGM_FI_DEV_PSTATE", "gpuwarden_lemon"))
    assert more.names == BY_DEFAULT | {"DCGM_FI_DEV_PSTATE"}
    page = scrape(snapshot(2), Renderer(series=more))
    assert set(page.values("gpuwarden_lemon")) == {0}
    assert page.values("gpuwarden_xid_total") == []


def test_full_serves_every_series_that_there_is() -> None:
    shown = everything(2)
    assert FULL.names == ALL
    assert Renderer(series=FULL).render(shown) == Renderer(series=chosen_series(("default", "full"))).render(shown)
    assert {sample.name for sample in scrape(shown, by_default()).samples} < {s.name for s in scrape(shown).samples}


# --- how many


def healthy(enforced: Enforced) -> Snapshot:
    """Eight GPUs that answer everything, DCGM, twelve ports and every collector; nothing wrong, no jobs and no notice."""
    quiet, names = (
        snapshot(GPUS),
        ("verdict", "xids", "notice_sources", "pods", "hpc_jobs", "jobs", "receivers", "clients"),
    )
    well: Any = {name: getattr(quiet, name) for name in names}
    return replace(everything(GPUS), **well, enforced=enforced)


def series_by_default(shown: Snapshot) -> int:
    """Make two passes, which a rate needs."""
    renderer = by_default()
    return [renderer.render(replace(shown, observed=at(UPTIME + passed))).series for passed in (0, 5)][1]


def test_a_healthy_node_of_eight_gpus_has_few_series_and_slurm_notices_and_faults_add_few() -> None:
    slurm = Enforced(actuators=("slurm",), node_states={"slurm": NodeState(at=at(5.0), owner=Owner.NONE)})
    sources = everything(1).notice_sources
    alone, with_slurm = (series_by_default(healthy(enforced)) for enforced in (Enforced(), slurm))
    assert GPUS * (len(DEFAULTS) - 1) < alone < with_slurm <= MOST_HEALTHY
    assert with_slurm < series_by_default(replace(healthy(slurm), notice_sources=sources)) <= MOST_WITH_NOTICES
    assert MOST_WITH_NOTICES < series_by_default(everything(GPUS)) <= MOST_WITH_FAULTS


def test_a_daemon_serves_the_default_set_unless_it_is_told_otherwise(tmp_path: Path) -> None:
    with simulated_node("n1", tmp_path / "n1") as node:
        wait(lambda: len(_page(node).labels("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL_total")) == GPUS, "the second pass")
        samples = _page(node).samples
    names = {re.sub(r"_(bucket|sum|count)$", "", sample.name) for sample in samples}
    dcgm = {name.removesuffix("_total") for name in names if name.startswith(PREFIX)}
    assert {name for name in names if not name.startswith(PREFIX)} | dcgm <= BY_DEFAULT | {
        f"{name}_TOTAL" for name in dcgm
    }
    assert len(samples) <= MOST_OF_GPUS


def _page(node: SimulatedNode) -> Scrape:
    with urlopen(f"http://127.0.0.1:{node.port}/metrics", timeout=60) as answer:
        return Scrape(answer.read())


# --- what is left out while it is 0


def test_a_healthy_node_has_no_series_of_what_has_not_happened_and_each_appears_when_it_does() -> None:
    quiet = scrape(snapshot(2), by_default())
    for metric in (metric for metric in METRICS if metric.default and not metric.zeros):
        assert 0 not in quiet.values(metric.name), metric.name
    assert [labels["state"] for labels in quiet.labels("gpuwarden_gpu_health")] == ["healthy", "healthy"]
    shown = snapshot(2, findings=[finding("xid", gpu(slot(1)), detail="79")])
    verdict = replace(shown.verdict, lemons=(LemonDays(what="xids", days=2, slot=slot(1)),))
    bad = scrape(
        replace(shown, verdict=verdict, xids=(XidCount(slot=slot(1), xid=79, count=1, last=5.0),)), by_default()
    )
    assert bad.value("gpuwarden_xid_total", gpu="1", xid="79") == 1
    assert bad.value("gpuwarden_lemon", what="xids", gpu="1") == 2
    gone = scrape(missing(snapshot(2), 1), by_default())
    assert gone.value("gpuwarden_gpu_health", pci_bus_id=slot(1), state="failure") == 1


def test_what_alerts_and_dashboards_ask_the_increase_of_is_there_before_its_first_step() -> None:
    texts = [rule.expr for rule in RECORDINGS] + [alert.expr for alert in ALERTS] + [query.expr for query in OF_PANELS]
    counters = named_in(*(word for text in texts for word in re.findall(r"(?:increase|rate)\((\w+)", text)))
    own = {metric.name for metric in METRICS if metric.name in counters}
    assert len(own) >= 6
    shown = replace(everything(2), verdict=snapshot(2).verdict, dropped={"log": 0})
    page = scrape(shown, by_default())
    present = {re.sub(r"_bucket$", "", sample.name) for sample in page.samples}
    assert own <= present
    assert all(metric.zeros for metric in METRICS if metric.name in own)


# --- pods


@pytest.mark.parametrize("series", ["default", "full"])
def test_a_pod_that_comes_makes_new_series_of_the_default_counters_of_dcgm_exporter_only(series: str) -> None:
    def page(*pods: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
        containers: dict[Device, tuple[PodContainer, ...]] = {
            (slot(n), None): tuple(PodContainer(namespace="a", pod=pod, container="main") for pod in pods)
            for n in range(GPUS)
        }
        shown = replace(everything(GPUS), pods=PodsOnGpus(containers=containers, matched=GPUS), hpc_jobs=None)
        samples = scrape(shown, Renderer(series=chosen_series((series,)))).samples
        return {(s.name, frozenset((k, v) for k, v in s.labels.items() if v)) for s in samples}

    new = page("second") - page("first")
    telemetry = {name.removesuffix("_total") for name, _ in new if name.startswith(PREFIX)}
    assert telemetry <= {PREFIX + name.removesuffix("_total") for name in OF_EXPORTER}
    assert len(new) <= GPUS * (len(OF_EXPORTER) + 1)
    assert len(page("first", "second") - page("first")) == len(new)
