"""The cost of `gpuwarden fleet` with 10,000 nodes, 130,000 series, in a real Prometheus.

The fleet is one target with series of all nodes under their own labels (honor_labels), scraped every 15 s.
The heartbeats of the
20 minutes before are written into Prometheus' storage by promtool, since they are read too. The whole process is measured, from
its start to the table.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path

from common import cpu_ns, spread, table
from gpuwarden.fleet.queries import QUERIES
from gpuwarden.prometheus.access import access
from gpuwarden.prometheus.client import query
from support.daemons import children, listening_port
from support.prometheus import prometheus, promtool
from support.serving import serving

NODES = 10_000
RUNS = 7
INTERVAL = 15  # seconds between scrapes
LIMIT = 2.0
FAILED, WARNED = 20, 100
STATES = ("healthy", "warning", "failure", "unknown")


def labels(number: int) -> str:
    return f'job="gpuwarden",instance="gpu-{number:05}.example:9839"'


def heartbeats(now: float, nodes: int) -> Iterator[str]:
    return (f"gpuwarden_heartbeat_timestamp_seconds{{{labels(number)}}} {now:.3f}" for number in range(nodes))


def _node(number: int, now: float) -> Iterator[str]:
    """12 series, and one of what is wrong; the heartbeat is the thirteenth."""
    name, of_node = f"gpu-{number:05}", labels(number)
    health = "failure" if number < FAILED else "warning" if number < FAILED + WARNED else "healthy"
    yield f'gpuwarden_node_info{{{of_node},node="{name}",boot_id="6a2f{number:08}"}} 1'
    for state in STATES:
        yield f'gpuwarden_node_health{{{of_node},state="{state}"}} {int(state == health)}'
    yield f"gpuwarden_gpus_present{{{of_node}}} {8 - (health == 'failure')}"
    yield f"gpuwarden_gpus_expected{{{of_node}}} 8"
    yield f"gpuwarden_enforcing{{{of_node}}} 1"
    for owner in ("failure", "operator"):
        yield f'gpuwarden_excluded{{{of_node},actuator="slurm",owner="gpuwarden",cause="{owner}"}} {int(health == owner)}'
    yield f"gpuwarden_breaker_open{{{of_node}}} 0"
    yield f'gpuwarden:node:last_seen_timestamp_seconds{{{of_node},node="{name}"}} {now:.3f}'
    if health != "healthy":
        check = f'check="xid",severity="{health}",gpu="3",uuid="GPU-{number:08}",pci_bus_id="0000:3a:00.0"'
        yield f'gpuwarden_finding_info{{{of_node},{check},detail="79",title="An Xid",advice="reboot the node"}} 1'


def fleet() -> Iterator[str]:
    now = time.time()
    return (line for number in range(NODES) for line in _node(number, now))


def backfill(folder: Path) -> None:
    """The heartbeats of the last 20 minutes."""
    now = int(time.time())
    with (folder / "history.txt").open("w") as file:
        file.write("# TYPE gpuwarden_heartbeat_timestamp_seconds gauge\n")
        times = range(now - 1200, now - 15, INTERVAL)
        for number in range(NODES):
            start = f"gpuwarden_heartbeat_timestamp_seconds{{{labels(number)}}}"
            file.writelines(f"{start} {at}.25 {at}\n" for at in times)
        file.write("# EOF\n")
    done = promtool("tsdb", "create-blocks-from", "openmetrics", folder / "history.txt", folder / "tsdb")
    assert done.returncode == 0, done.stderr


@contextmanager
def target(lines: Iterable[str], nodes: int = NODES) -> Iterator[int]:
    """Serve these lines, and a heartbeat of now of each node. Yields the port."""
    rest = "\n".join(lines)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = ("\n".join((rest, *heartbeats(time.time(), nodes))) + "\n").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
            pass

    with serving(Handler) as port:
        yield port


def configuration(port: int) -> str:
    job = {
        "job_name": "fleet", "honor_labels": True, "scrape_interval": f"{INTERVAL}s", "scrape_timeout": "10s",
        "static_configs": [{"targets": [f"127.0.0.1:{port}"]}],
    }  # fmt: skip
    return json.dumps({"scrape_configs": [job]})


@dataclass(frozen=True)
class Run:
    """Seconds until the table was printed, and of CPU time, which depends less on other load."""

    wall: float
    own: float
    prometheus: float
    size: int


def whole(port: int, server: int, *words: str, code: int) -> Run:
    """Run a command beside Prometheus, whose process is `server`; it must exit with `code`."""
    command = [sys.executable, "-m", "gpuwarden", *words, "--prometheus", f"http://127.0.0.1:{port}"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    before, theirs, began = _children(), cpu_ns(server), time.perf_counter()
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    wall = time.perf_counter() - began
    assert done.returncode == code, done.stderr
    return Run(wall, _children() - before, (cpu_ns(server) - theirs) / 1e9, len(done.stdout))


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def parts(port: int) -> Iterator[list[str]]:
    """Measure each query alone, after all of them ran once."""
    reached = access(f"http://127.0.0.1:{port}")
    for name, expression in QUERIES.items():
        took, samples = [], 0
        for _ in range(RUNS):
            began = time.perf_counter()
            samples = len(query(reached, {name: expression}, 60).samples[name])
            took.append((time.perf_counter() - began) * 1e3)
        yield [name, str(samples), spread(took, 0)]


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as name, target(fleet()) as served:
        folder = Path(name)
        (folder / "prometheus.yml").write_text(configuration(served))
        backfill(folder)
        with prometheus(folder / "prometheus.yml", folder) as server:
            server.wait_query(f"count(gpuwarden_node_info) == {NODES}")
            process = next(pid for pid in children(os.getpid()) if listening_port(pid) == server.port)
            series = server.query('count({__name__=~"gpuwarden.*"})')[0]["value"][1]
            beats = server.query("max(count_over_time(gpuwarden_heartbeat_timestamp_seconds[20m]))")[0]["value"][1]
            rows = []
            for form, words in (("table", ()), ("--json", ("--json",)), ("--status failure", ("--status", "failure"))):
                runs = [whole(server.port, process, "fleet", *words, code=2) for _ in range(RUNS)]
                times = [[run.wall for run in runs], [run.own for run in runs], [run.prometheus for run in runs]]
                rows.append([form, f"{runs[0].size / 1e6:.1f} MB", *map(spread, times)])
            title = f"gpuwarden fleet, {NODES} nodes, {series} series, {beats} heartbeats of each: median (least-most) of {RUNS} runs"
            table(
                title, ("what", "output", f"s, whole process (< {LIMIT:g})", "CPU s of it", "CPU s of Prometheus"), rows
            )
            table("Of it each query: asked, answered and parsed", ("query", "samples", "ms"), list(parts(server.port)))


if __name__ == "__main__":
    main()
