"""`gpuwarden fleet --why`: which label explains the nodes that fail, on fleets of public stories and by a real Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random

import pytest

from gpuwarden.fleet.model import Key, Row
from gpuwarden.fleet.status import Status
from gpuwarden.fleet.why import CAUSES_MOST, Why, why
from support.commands import gpuwarden
from support.prometheus import prometheus
from support.serving import serving

Labels = Mapping[str, str]


class Fleet:
    """Nodes by number: what they have, and which fail."""

    def __init__(self) -> None:
        self.labels: dict[Key, dict[str, str]] = {}
        self.rows: list[Row] = []

    def node(self, status: Status = Status.HEALTHY, **labels: str) -> None:
        name = f"n{len(self.rows):04}"
        row = Row(cluster="", job="gpuwarden", instance=name, node=name, status=status)
        self.rows.append(row)
        self.labels[row.key] = labels

    def why(self, *statuses: Status) -> Why:
        return why(self.rows, [row for row in self.rows if row.status in (statuses or (Status.FAILURE,))], self.labels)


def names(why: Why) -> list[Labels]:
    return [cause.labels for cause in why.causes]


# --- stories


def test_e05_nine_nodes_of_288_with_one_power_feed() -> None:
    """NVIDIA/NVSentinel#1666: 9 of 288 nodes braked. That they share a rack is our assumption: the source has no positions."""
    fleet = Fleet()
    for n in range(288):
        braked = n // 18 == 7 and n % 2 == 0
        fleet.node(
            Status.WARNING if braked else Status.HEALTHY, rack=f"r{n // 18}", driver="580.95", chassis_slot=str(n % 18)
        )
    why = fleet.why(Status.WARNING)
    assert names(why)[0] == {"rack": "r7"}
    best = why.causes[0]
    assert (best.failing_with, best.failing, best.having, best.nodes) == (9, 9, 18, 288)
    assert fleet.why(Status.FAILURE).causes == ()


def test_d02_eight_nodes_of_one_nvlink_domain_and_its_clique_and_cluster_are_one_cause() -> None:
    """marin#8934: eight nodes of one rack of 18, of a fleet of racks."""
    fleet = Fleet()
    for n in range(8 * 18):
        domain = n // 18
        fails = domain == 3 and n % 18 < 8
        fleet.node(
            Status.FAILURE if fails else Status.HEALTHY, cluster_uuid=f"c{domain}", clique=str(4000 + domain),
            chassis_serial=f"s{domain}", chassis_slot=str(n % 18), driver="580.1",
        )  # fmt: skip
    why = fleet.why()
    assert names(why) == [{"chassis_serial": "s3", "clique": "4003", "cluster_uuid": "c3"}]


def test_e04_every_node_with_the_new_driver_and_the_best_three() -> None:
    """awslabs/amazon-eks-ami#1523: the GSP fails under one driver, on each node type."""
    fleet = Fleet()
    for n in range(60):
        new = n < 20
        driver, image = ("535.54.03", "ami-2") if new else ("535.161.07", "ami-1")
        fleet.node(Status.FAILURE if new else Status.HEALTHY, driver=driver, ami=image, machine_type=f"g5.{n % 4}")
    assert names(fleet.why())[0] == {"ami": "ami-2", "driver": "535.54.03"}
    assert len(fleet.why().causes) <= CAUSES_MOST


# --- no cause


def test_fewer_than_five_failing_nodes_are_explained_by_nothing() -> None:
    fleet = Fleet()
    for n in range(200):
        fleet.node(Status.FAILURE if n < 4 else Status.HEALTHY, rack="a" if n < 4 else f"r{n // 10}")
    assert (fleet.why().failing, fleet.why().causes) == (4, ())


@pytest.mark.slow
def test_failures_at_random_have_no_common_cause() -> None:
    """300 fleets with 60 racks: the correction leaves a hundredth of them, and not one in each second."""
    explained = 0
    for seed in range(300):
        chance, fleet = Random(seed), Fleet()
        failing = set(chance.sample(range(600), 12))
        for n in range(600):
            fleet.node(
                Status.FAILURE if n in failing else Status.HEALTHY, rack=f"r{n // 10}", slot=str(n % 10), row=f"w{n // 100}",
            )  # fmt: skip
        explained += bool(fleet.why().causes)
    assert explained <= 6


def test_what_all_nodes_have_what_one_has_and_what_is_not_known_explain_nothing() -> None:
    fleet = Fleet()
    for n in range(40):
        labels = {"driver": "580.1", "serial": f"s{n}"} | ({"rack": "r1"} if n < 6 else {})
        fleet.node(Status.FAILURE if n < 6 else Status.HEALTHY, **labels)
    assert (fleet.why().tests, fleet.why().causes) == (0, ())


# --- a real Prometheus


@contextmanager
def pages(texts: Mapping[str, str]) -> Iterator[int]:
    """Metrics of several nodes, each at a path of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(texts.get(self.path, "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler) as port:
        yield port


def metrics(name: str, *, state: str, driver: str, gpus: int = 4) -> str:
    labels = f'machine_type="Amazon EC2/g6e.12xlarge",model="NVIDIA L40S",driver="{driver}",clique=""'
    return "".join(
        f"{line}\n"
        for line in (
            f'gpuwarden_node_info{{node="{name}",boot_id="b"}} 1',
            f'gpuwarden_node_health{{state="{state}"}} 1',
            f"gpuwarden_gpus_expected {gpus}",
            f"gpuwarden_gpus_present {gpus}",
            f"gpuwarden_machine_info{{{labels}}} 1",
        )
    )


@pytest.mark.slow
@pytest.mark.xdist_group("prometheus")
def test_by_a_real_prometheus_the_driver_is_named_and_the_node_with_three_of_four_gpus(tmp_path: Path) -> None:
    nodes = [f"n{number:02}" for number in range(16)]
    texts = {
        f"/{name}": metrics(
            name, state="failure" if number < 6 else "healthy", driver="535.54.03" if number < 7 else "535.161.07",
            gpus=3 if number == 12 else 4,
        )
        for number, name in enumerate(nodes)
    }  # fmt: skip
    with pages(texts) as port:
        static = [
            {"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name, "__metrics_path__": f"/{name}", "rack": f"r{number % 2}"}}
            for number, name in enumerate(nodes)
        ]  # fmt: skip
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s"},
            "scrape_configs": [{"job_name": "gpuwarden", "static_configs": static}],
        }
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
        with prometheus(tmp_path / "prometheus.yml", tmp_path) as server:
            server.wait_query("count(gpuwarden_machine_info) == 16")
            address = ("fleet", "--prometheus", f"http://127.0.0.1:{server.port}")
            done = gpuwarden(*address, "--json", "--why", temporary=tmp_path)
            text = gpuwarden(*address, "--why", temporary=tmp_path).stdout
            plain = gpuwarden(*address, "--json", temporary=tmp_path)
            healthy = gpuwarden(*address, "--json", "--why", "--status", "warning", temporary=tmp_path)
    document = json.loads(done.stdout)
    (cause,) = document["why"]["causes"]
    assert cause["labels"] == {"driver": "535.54.03"}
    assert [cause[name] for name in ("failing_with", "failing", "having", "nodes")] == [6, 6, 7, 16]
    assert "driver=535.54.03: 6 of 6 of them, 1 of 10 others" in text
    reasons = {
        node["node"]: node["reasons"] for node in document["nodes"] if any("of this type" in r for r in node["reasons"])
    }
    assert reasons == {"n12": ["no GPU reading since its daemon started", "of 16 nodes of this type 15 have 4 GPUs"]}
    assert "why" not in json.loads(plain.stdout)
    assert json.loads(healthy.stdout)["why"]["causes"] == []
