"""The pod of the chart as a container of a real dockerd: what it may do, what it mounts, what its probes ask."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.daemons import slots
from support.disposable import kernel_log_writer
from support.docker import DOCKER, Container, Docker, injected, wait
from support.fake_nvml_library import FakeNvml
from support.helm import objects, render
from support.pod_spec import flags
from support.scrape import Scrape

pytestmark = DOCKER
ASK = "import sys, urllib.request; page = urllib.request.urlopen(sys.argv[1]); print(page.status, page.read().decode())"
EFFECTIVE = 'print([line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")][0])'
PYTHON = "/opt/gpuwarden/bin/python3"
SYSLOG, KILL, SYS_PTRACE, DAC_READ_SEARCH = 34, 5, 19, 2
"""Of capabilities(7)."""


def python(container: Container, *arguments: str) -> str:
    done = container.exec(PYTHON, "-c", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def reads_the_kernel_log(running: Container, address: str) -> None:
    """Assert that the kernel log is read by syslog(2), without the device. A process's own line is counted as
    disbelieved, since a test cannot write as the driver.
    """

    def counted() -> float:
        page = python(running, ASK, f"{address}/metrics").partition(" ")[2]
        return Scrape(page.encode()).value("gpuwarden_kernel_log_disbelieved_total", reason="facility") or 0.0

    before = counted()
    with kernel_log_writer() as write:
        write(f"<4>NVRM: Xid (PCI:{slots(1)[0].removesuffix('.0')}): 79, pid=77, GPU has fallen off the bus.")
        wait(lambda: counted() > before, "the line to be read", running.logs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "rights"),
    [((), {SYSLOG}), (("hostMounts.enabled=true", "jobs.signal=true"), {SYSLOG, KILL, SYS_PTRACE, DAC_READ_SEARCH})],
    ids=["defaults", "all that needs no cluster"],
)
def test_the_pod_of_the_chart_reads_the_gpus_of_its_node(
    docker: Docker, image: str, values: tuple[str, ...], rights: set[int], tmp_path: Path
) -> None:
    rendered = objects(render(*values))
    pod = rendered["DaemonSet/gpuwarden"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == image
    (tmp_path / "driver").mkdir()
    fake = FakeNvml.build(tmp_path / "driver")  # what the runtime class brings
    pod_flags = flags(pod, rendered["ConfigMap/gpuwarden"]["data"], tmp_path / "node")
    with docker.start(
        image, *container["args"], flags=[*pod_flags, *injected(fake), "--env=GPUWARDEN_PUBLISH__SERIES=full"]
    ) as running:
        status = running.wait_status("healthy")
        assert len(status["gpus"]) == 8
        assert status["node"] == "node7"  # NODE_NAME
        address = f"http://127.0.0.1:{container['ports'][0]['containerPort']}"
        assert python(running, ASK, address + container["livenessProbe"]["httpGet"]["path"]).startswith("200 ")
        assert int(python(running, EFFECTIVE), 16) == sum(1 << right for right in rights)
        reads_the_kernel_log(running, address)
        assert (tmp_path / "node/run/gpuwarden/job.sock").is_socket()
        assert running.stop() == 0
    assert (tmp_path / "node/var/lib/gpuwarden/ledger.db").exists()
