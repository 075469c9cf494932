"""Real Prometheus, real Alertmanager, real daemons: what is injected here is what somebody is notified of there.

The rules run sixty times as fast: each minute of theirs is a second. The daemons' own times are the real ones.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.to_do import first_sentence, of_xid
from gpuwarden.health.xid.catalogue import XIDS
from prometheus_rules.model import Pace, Settings
from rules import FOLDER, write
from support.prometheus import Server, Webhook, alertmanager, ask, prometheus, webhook
from support.simulated_nodes import SimulatedNode, simulated_node

pytestmark = pytest.mark.xdist_group("prometheus")
PACE = Pace(60)
PLACEHOLDER = "http://127.0.0.1:9099"


def alertmanager_config(folder: Path, port: int) -> Path:
    """The example as it is shipped, but for the address that it notifies, and as fast as the rules."""
    text = (FOLDER / "alertmanager.yml").read_text().replace(PLACEHOLDER, f"http://127.0.0.1:{port}")
    file = folder / "alertmanager.yml"
    file.write_text(re.sub(r"(group_wait|group_interval): (\w+)", lambda time: f"{time[1]}: {PACE(time[2])}", text))
    return file


def prometheus_config(folder: Path, manager: int) -> Path:
    """The example as it is shipped, but for Alertmanager's address, with a scrape each second."""
    text = (FOLDER / "prometheus.yml").read_text()
    for before, after in (
        ("127.0.0.1:9093", f"127.0.0.1:{manager}"),
        ("scrape_interval: 15s", "scrape_interval: 1s"),
        ("scrape_timeout: 10s", "scrape_timeout: 1s"),
    ):
        assert before in text, before
        text = text.replace(before, after)
    file = folder / "prometheus.yml"
    file.write_text(text)
    return file


@dataclass(frozen=True, slots=True)
class Site:
    nodes: tuple[SimulatedNode, ...]
    prometheus: Server
    webhook: Webhook


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Three nodes that Prometheus has scraped, on a site that is set up as in the examples."""
    with ExitStack() as stack:
        hook = stack.enter_context(webhook())
        manager = stack.enter_context(alertmanager(alertmanager_config(tmp_path, hook.port), tmp_path))
        nodes = tuple(stack.enter_context(simulated_node(name, tmp_path / name)) for name in ("n1", "n2", "n3"))
        write(tmp_path, Settings(pace=PACE))
        (tmp_path / "targets").mkdir()
        targets = ", ".join(f"'127.0.0.1:{node.port}'" for node in nodes)
        (tmp_path / "targets" / "nodes.yml").write_text(f"- targets: [{targets}]\n")
        server = stack.enter_context(prometheus(prometheus_config(tmp_path, manager.port), tmp_path))
        server.wait_query("count(gpuwarden:node:name) == 3 and count(gpuwarden_heartbeat_timestamp_seconds) == 3")
        yield Site(nodes, server, hook)


@pytest.mark.slow
def test_a_fault_and_a_killed_daemon_reach_a_person_with_the_right_text(site: Site) -> None:
    _, broken, killed = site.nodes
    broken.order("inject", "--gpu", "3", "xid", "95")
    page = site.webhook.wait_alert("GpuwardenNodeFailure", node="n2")
    assert page["signalled_at"] == "/page"
    assert page["labels"].items() >= {"severity": "page", "cluster": "gpu-east", "check": "xid", "gpu": "3"}.items()
    slot = page["labels"]["pci_bus_id"]
    assert page["annotations"]["summary"] == (
        f"GPU 3 ({slot}) of n2: {CONDITIONS['xid'].title} (95). To do: {first_sentence(of_xid(95, XIDS[95].advice)).replace('SLOT', slot)}."
    )
    assert page["annotations"]["runbook_url"].endswith("/docs/use/runbooks/gpu.md#xid")

    killed.kill()
    page = site.webhook.wait_alert("GpuwardenNodeSilent", node="n3")
    assert page["signalled_at"] == "/page"
    assert page["annotations"]["summary"].startswith("n3 has been silent for ")
    assert page["annotations"]["description"].startswith("Its target exists and does not answer.")

    assert site.webhook.wait_alert("GpuwardenSimulated", node="n1")["signalled_at"] == "/ticket"
    assert site.webhook.alerts("GpuwardenNodeFailure", node="n1") == []
    assert site.webhook.alerts("GpuwardenManyNodesFailing") == []


def test_a_thousand_nodes_with_a_bad_driver_are_one_page(tmp_path: Path) -> None:
    """The alerts are tested in test_rules.py; this tests what the example of Alertmanager lets through."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    common = {"cluster": "gpu-east", "job": "gpuwarden", "severity": "page"}
    single = [
        {"labels": common | {"alertname": "GpuwardenDriverUnresponsive", "node": f"n{number}"}, "startsAt": now}
        for number in range(990)
    ] + [{"labels": common | {"alertname": "GpuwardenBreakerOpen"}, "startsAt": now}]
    fleet = [{"labels": common | {"alertname": "GpuwardenManyNodesFailing"}, "startsAt": now}]
    other = {
        "labels": common | {"alertname": "GpuwardenGpuMissing", "node": "m1", "cluster": "gpu-west"},
        "startsAt": now,
    }
    with webhook() as hook, alertmanager(alertmanager_config(tmp_path, hook.port), tmp_path) as manager:
        ask(manager.port, "/api/v2/alerts", fleet)
        hook.wait_alert("GpuwardenManyNodesFailing")
        ask(manager.port, "/api/v2/alerts", single)
        # what is notified of another cluster afterwards shows that the groups of before had their turn
        ask(manager.port, "/api/v2/alerts", [other])
        hook.wait_alert("GpuwardenGpuMissing", cluster="gpu-west")
        suppressed = ask(manager.port, "/api/v2/alerts?inhibited=true&active=false")
    assert hook.names() == {"GpuwardenManyNodesFailing", "GpuwardenGpuMissing"}
    assert len(suppressed) == 991
