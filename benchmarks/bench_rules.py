"""Measure what the shipped rules and dashboard queries cost a Prometheus, at 100 and 1,000 nodes, with the default series of each.

Each node has the whole page of a real daemon on eight GPUs of the fake library, under its own name; one in twenty has the page of a daemon
with an uncontained memory error. A real Prometheus scrapes these pages and evaluates the shipped rule files unchanged. Each time is compared
with that of a plain sum over one series of each node, queried in the same run. `gpuwarden fleet` is run on the same series. `--nodes
100,1000,3000` for others; 3,000 nodes need about 8 GiB of memory. Exit code: 1 if a group takes longer than the limit at 1,000 nodes, else 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from bench_fleet import whole
from common import fake_host, spread, table

sys.path.insert(1, str(Path(__file__).parents[1] / "tools"))  # dashboards are made there

from support.daemons import children, listening_port
from support.dashboard_queries import QUERIES
from support.prometheus import Json, Server, ask, prometheus
from support.serving import serving

RULES = Path(__file__).parents[1] / "grafana" / "prometheus"
FILES = ("recording.rules.yml", "alerts.rules.yml")
PER_TARGET = 50
INTERVAL = 60  # seconds between scrapes
FAILING = 20  # one node in so many
ASKED = 5
YARDSTICK = 'sum(gpuwarden_node_health{state="failure"})'
BAR, BAR_NODES = 1.0, 1_000  # seconds of a group, and the size of the fleet at which it holds
MEMORY, FLEET = "MiB of memory", "`gpuwarden fleet`, whole process"
VALUES = {
    "cluster": ".*", "instance": "gpu-00020:9839", "node": "gpu-00020", "gpu": ".*", "__rate_interval": "4m", "__range": "6h",
}  # fmt: skip
SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(\{)?", re.MULTILINE)


def pages() -> tuple[str, str]:
    """Return the page of a healthy node and of one with an uncontained memory error, without comments, from real daemons."""
    taken = []
    for failing in (False, True):
        with fake_host(interval=1.0, pci_interval=1.0) as host, host.daemon() as daemon:
            daemon.wait_status("healthy")
            if failing:
                host.xid(3, 95)
                daemon.wait_status("failure")
                daemon.wait_passes(3)
            text = daemon.get("/metrics")[1].decode()
            taken.append("\n".join(line for line in text.splitlines() if line and not line.startswith("#")))
    return taken[0], taken[1]


def of_node(page: str, number: int) -> str:
    """Return the page with the node's own instance in each sample, and its name where a series has one."""
    name = f"gpu-{number:05}"
    page = re.sub(r'(?<=[{,])node="[^"]*"', f'node="{name}"', page)
    target = f'instance="{name}:9839",job="gpuwarden"'
    return SAMPLE.sub(lambda m: f"{m[1]}{{{target}," if m[2] else f"{m[1]}{{{target}}}", page)


@contextmanager
def targets(nodes: int, healthy: str, failing: str) -> Iterator[list[str]]:
    """Serve the nodes, PER_TARGET of them per target. Yields the addresses, with the paths."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            first = int(self.path.strip("/"))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            for number in range(first, min(first + PER_TARGET, nodes)):
                self.wfile.write((of_node(failing if number % FAILING == 0 else healthy, number) + "\n").encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
            pass

    with serving(Handler) as port:
        yield [f"127.0.0.1:{port}/{first}" for first in range(0, nodes, PER_TARGET)]


def configuration(addresses: list[str]) -> str:
    jobs = [
        {
            "job_name": f"part-{number}", "honor_labels": True, "scrape_interval": f"{INTERVAL}s", "scrape_timeout": f"{INTERVAL}s",
            "metrics_path": f"/{address.partition('/')[2]}", "static_configs": [{"targets": [address.partition("/")[0]]}],
        }
        for number, address in enumerate(addresses)
    ]  # fmt: skip
    return json.dumps({"rule_files": [str(RULES / name) for name in FILES], "scrape_configs": jobs})


def groups(server: Server) -> list[Json]:
    answer: list[Json] = ask(server.port, "/api/v1/rules")["data"]["groups"]
    return answer


def settle(server: Server, nodes: int) -> None:
    """Wait until all nodes were scraped, and each group was evaluated after that."""
    end = time.monotonic() + 20 * INTERVAL
    while (
        server.query("count(gpuwarden_node_info)") == []
        or int(server.query("count(gpuwarden_node_info)")[0]["value"][1]) < nodes
    ):
        if time.monotonic() > end:
            raise SystemExit(f"not all of {nodes} nodes were scraped within {20 * INTERVAL} s")
        time.sleep(1.0)
    seen = {group["name"]: group["lastEvaluation"] for group in groups(server)}
    slowest = max(group["interval"] for group in groups(server) if group["interval"] <= INTERVAL)
    time.sleep(2 * slowest)
    late = [g["name"] for g in groups(server) if g["interval"] <= INTERVAL and g["lastEvaluation"] == seen[g["name"]]]
    if late:
        raise SystemExit(f"not evaluated again within {2 * slowest} s: {', '.join(late)}")


def asked_as(page: str, expression: str) -> str:
    """Substitute Grafana's variables: all nodes, except in the dashboard of one node; the last six hours."""
    values = VALUES if page == "node.json" else VALUES | {"node": ".*"}
    for name in sorted(values, key=len, reverse=True):
        expression = expression.replace(f"${name}", values[name])
    if "$" in expression:
        raise SystemExit(f"no value for a variable of: {expression}")
    return expression


def timed(server: Server, expression: str) -> list[float]:
    took = []
    for _ in range(ASKED):
        began = time.perf_counter()
        server.query(expression)
        took.append(time.perf_counter() - began)
    return took


def of_group(server: Server, group: Json) -> float:
    """Return the seconds of its expressions, queried one by one: one evaluation of all groups at once would show other load."""
    return sum(statistics.median(timed(server, rule["query"])) for rule in group["rules"])


def measure(nodes: int, healthy: str, failing: str) -> tuple[dict[str, float], dict[str, list[float]], int]:
    """Return the seconds of each group, those of each dashboard query, and the number of series."""
    with (
        tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as name,
        targets(nodes, healthy, failing) as addresses,
    ):
        folder = Path(name)
        (folder / "prometheus.yml").write_text(configuration(addresses))
        with prometheus(folder / "prometheus.yml", folder) as server:
            settle(server, nodes)
            seconds = {group["name"]: of_group(server, group) for group in groups(server)}
            asked = {"yardstick": timed(server, YARDSTICK)}
            for query in QUERIES:
                asked[f"{query.page}: {query.panel} {query.ref}"] = timed(server, asked_as(query.page, query.expr))
            series = int(ask(server.port, "/api/v1/status/tsdb")["data"]["headStats"]["numSeries"])
            (process,) = (pid for pid in children(os.getpid()) if listening_port(pid) == server.port)
            resident = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
            seconds[MEMORY] = int(resident[1]) / 1024 if resident else float("nan")
            runs = [whole(server.port, process, "fleet", code=2) for _ in range(ASKED)]
            seconds[FLEET] = statistics.median(run.wall for run in runs)
    return seconds, asked, series


def over_the_bar(seconds: Mapping[str, float]) -> list[str]:
    """Return the groups that take longer than the limit."""
    return [name for name, took in seconds.items() if name not in (MEMORY, FLEET) and took > BAR]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000", metavar="N,N", help="sizes of the fleet, rising")
    sizes = [int(word) for word in parser.parse_args().nodes.split(",")]
    healthy, failing = pages()
    results = {nodes: measure(nodes, healthy, failing) for nodes in sizes}
    least, most = results[sizes[0]], results[sizes[-1]]
    head = (
        "group",
        *(f"s at {nodes:,} nodes" for nodes in sizes),
        f"growth for {sizes[-1] / sizes[0]:g} times the nodes",
    )
    rows = [
        [
            name,
            *(f"{results[n][0].get(name, float('nan')):.3f}" for n in sizes),
            f"{most[0][name] / max(least[0].get(name, 1e-4), 1e-4):.1f}",
        ]
        for name in most[0]
    ]
    shown = ", ".join(f"{results[n][2]:,} series of {n:,} nodes" for n in sizes)
    table(f"Rules: {shown}; bar {BAR:g} s a group at {BAR_NODES:,} nodes", head, rows)
    yard = statistics.median(most[1]["yardstick"])
    slow = sorted(most[1].items(), key=lambda item: -statistics.median(item[1]))[:12]
    table(
        f"The slowest queries of the dashboards, each asked for one instant, at {sizes[-1]:,} nodes",
        ("query", "ms", "times the yardstick"),
        [[name, spread([s * 1e3 for s in took], 0), f"{statistics.median(took) / yard:.1f}"] for name, took in slow],
    )
    late = over_the_bar(results[BAR_NODES][0]) if BAR_NODES in results else []
    if late:
        print(f"longer than {BAR:g} s at {BAR_NODES:,} nodes: {', '.join(late)}", file=sys.stderr)
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
