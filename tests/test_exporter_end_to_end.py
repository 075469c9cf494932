"""A real Prometheus that scrapes a real daemon in both of its formats, and promtool's check of the page."""

from __future__ import annotations

import http.client
import subprocess
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from gpuwarden.publish.metrics.dcgm_names import FIELDS, PREFIX
from gpuwarden.publish.metrics.exposition import Renderer
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.gpu_readings import GpuReadings
from support.daemons import FakeHost
from support.dcgm_exporter import DEFAULTS
from support.prometheus import Server, ask, program, prometheus
from support.serving import serving
from support.snapshots import UPTIME, at
from support.trees import DATA
from support.whole_snapshots import everything

pytestmark = pytest.mark.xdist_group("prometheus")

TEXT, OPENMETRICS = "text", "openmetrics"
GPUS = 2
DASHBOARD = tuple(
    # NVIDIA/dcgm-exporter d5e5f51, grafana/dcgm-exporter-dashboard.json (12239): what its panels ask for
    query.replace("FILTER", 'job="JOB", instance=~"$instance", gpu=~"$gpu"')
    for query in (
        "DCGM_FI_DEV_GPU_TEMP{FILTER}",
        "avg(DCGM_FI_DEV_GPU_TEMP{FILTER})",
        "DCGM_FI_DEV_POWER_USAGE{FILTER}",
        "sum(DCGM_FI_DEV_POWER_USAGE{FILTER})",
        "DCGM_FI_DEV_SM_CLOCK{FILTER} * 1000000",
        "DCGM_FI_DEV_GPU_UTIL{FILTER}",
        "DCGM_FI_DEV_FB_USED{FILTER}",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{FILTER}",
    )
)
VARIABLES = ("instance", "gpu")
"""Of its dashboard: label_values(DCGM_FI_DEV_GPU_TEMP, …)."""


@contextmanager
def as_text(port: int) -> Iterator[int]:
    """A door before the daemon that asks for text 0.0.4, as older scrapers do: this Prometheus cannot be configured to."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            inner = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                inner.request("GET", self.path, headers={"Accept": "text/plain;version=0.0.4"})
                answer = inner.getresponse()
                body = answer.read()
            finally:
                inner.close()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
            pass

    with serving(Handler) as proxy:
        yield proxy


@dataclass(frozen=True, slots=True)
class Scraped:
    """The same daemon under two jobs, `text` and `openmetrics`."""

    prometheus: Server
    addresses: dict[str, str]


@pytest.fixture
def scraped(tmp_path: Path) -> Iterator[Scraped]:
    with ExitStack() as stack:
        (tmp_path / "host").mkdir()
        host = FakeHost(tmp_path / "host", GPUS)
        daemon = stack.enter_context(host.daemon())
        host.xid(0, 31)
        ports = {OPENMETRICS: daemon.port, TEXT: stack.enter_context(as_text(daemon.port))}
        addresses = {job: f"127.0.0.1:{port}" for job, port in ports.items()}
        config = tmp_path / "prometheus.yml"
        jobs = "".join(
            f"- {{job_name: {job}, scrape_interval: 1s, static_configs: [{{targets: ['{address}']}}]}}\n"
            for job, address in addresses.items()
        )
        config.write_text(f"scrape_configs:\n{jobs}")
        yield Scraped(stack.enter_context(prometheus(config, tmp_path)), addresses)


@pytest.mark.slow
def test_every_counter_and_the_official_dashboard_have_data_in_both_formats(scraped: Scraped) -> None:
    server = scraped.prometheus
    for job, address in scraped.addresses.items():
        for row in DEFAULTS:
            series = server.wait_query(f'{row.name}{{job="{job}"}}')
            assert len(series) == (1 if row.name == "DCGM_FI_DEV_XID_ERRORS" else GPUS), row.name
        for query in DASHBOARD:
            asked = query.replace("JOB", job).replace("$instance", address).replace("$gpu", "0|1")
            assert server.wait_query(asked), asked
        for label in VARIABLES:
            words = urllib.parse.urlencode({"match[]": f'DCGM_FI_DEV_GPU_TEMP{{job="{job}"}}'})
            assert ask(server.port, f"/api/v1/label/{label}/values?{words}")["data"], label
    kinds = {job: _kinds(server, address) for job, address in scraped.addresses.items()}
    for row in DEFAULTS:
        kinds_found = [kinds[job][row.name] for job in (TEXT, OPENMETRICS)]
        assert kinds_found == [row.kind, "unknown" if row.kind == "counter" else row.kind], row.name
    # OpenMetrics knows the family of our own counters without its ending, and Prometheus stores what is scraped of it with
    assert (kinds[TEXT]["gpuwarden_xid_total"], kinds[OPENMETRICS]["gpuwarden_xid"]) == ("counter", "counter")
    assert server.wait_query('gpuwarden_xid_total{job="openmetrics",gpu="0",xid="31"} == 1')


def _kinds(server: Server, address: str) -> dict[str, str]:
    words = urllib.parse.urlencode({"match_target": f'{{instance="{address}"}}'})
    rows = ask(server.port, f"/api/v1/targets/metadata?{words}")["data"]
    return {row["metric"]: row["type"] for row in rows}


def test_promtool_has_nothing_against_our_own_names_and_of_dcgms_what_is_known() -> None:
    renderer = Renderer()
    renderer.render(_with_every_reading(nvlink_tx_kib=0, at=at(UPTIME - 5)))  # what is a rate needs two
    page = renderer.render(_with_every_reading(nvlink_tx_kib=10**6, at=at(UPTIME))).text
    assert all(f"# TYPE {PREFIX}{field.name} ".encode() in page for field in FIELDS)
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=page, capture_output=True, timeout=300, check=False
    )
    messages = set(done.stderr.decode().splitlines())
    accepted_lines = (DATA / "dcgm_exporter" / "promtool.txt").read_text().splitlines()
    assert sorted(line for line in messages if not line.startswith(PREFIX)) == []
    assert messages == {line for line in accepted_lines if not line.startswith("#")}


def _with_every_reading(nvlink_tx_kib: int, at: Stamp) -> Snapshot:
    every = GpuReadings(**{field.name: 3 for field in fields(GpuReadings)})
    every = replace(every, memory_reserved_bytes=0, nvlink_tx_kib=nvlink_tx_kib)
    shown = everything(2)
    assert shown.nvml is not None
    gpus = tuple(replace(gpu, readings=every) for gpu in shown.nvml.gpus)
    return replace(shown, nvml=replace(shown.nvml, gpus=gpus), observed=at)
