"""A daemon beside a kubelet: its series name the pods, a real Prometheus keeps these names, and a kubelet that starts again is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.daemons import FakeHost, RunningDaemon
from support.kubelet import answer, kubelet, training
from support.prometheus import prometheus, wait
from support.scrape import Scrape

pytestmark = pytest.mark.xdist_group("prometheus")


def pods_of(daemon: RunningDaemon) -> dict[str, str]:
    series = Scrape(daemon.get("/metrics")[1]).labels("DCGM_FI_DEV_GPU_TEMP")
    return {labels["gpu"]: labels.get("pod", "") for labels in series}


@pytest.mark.slow
def test_pods_are_named_on_the_page_in_prometheus_and_in_findings(tmp_path: Path) -> None:
    """The labels of the target are those that a PodMonitor gives it: of gpuwarden's own pod."""
    folder = tmp_path / "host"
    folder.mkdir()
    host = FakeHost(folder, 2)
    socket = folder / "kubelet.sock"
    host.configure(f'[kubernetes]\npod_labels = true\nkubelet_socket = "{socket}"\n')
    with (
        kubelet(socket, answer(training("first", "1"), training("other", "nvidia9"))) as server,
        host.daemon() as daemon,
    ):
        wait(lambda: pods_of(daemon).get("1") == "first", "the label of a pod", daemon.log)
        config = tmp_path / "prometheus.yml"
        target = f"static_configs: [{{targets: ['127.0.0.1:{daemon.port}'], labels: {{pod: gpuwarden-x7k2p, namespace: monitoring}}}}]"
        jobs = "".join(
            f"- {{job_name: {job}, honor_labels: {honour}, scrape_interval: 1s, {target}}}\n"
            for job, honour in (("honours", "true"), ("does_not", "false"))
        )
        config.write_text(f"scrape_configs:\n{jobs}")
        with prometheus(config, tmp_path) as monitor:
            for query in (
                'DCGM_FI_DEV_GPU_TEMP{job="honours",gpu="1",pod="first",namespace="team-a",container="main"}',
                'gpuwarden_gpu_job_info{job="honours",gpu="1",pod="first"}',
                'gpuwarden_node_health{job="honours",pod="gpuwarden-x7k2p",state="healthy"} == 1',
                'DCGM_FI_DEV_GPU_TEMP{job="does_not",pod="gpuwarden-x7k2p",exported_pod="first"}',
                'gpuwarden_pod_labels{job="honours",state="unmatched"} == 1',
                'DCGM_FI_DEV_GPU_TEMP{job="honours",gpu="0",pod="",namespace="",container=""}',
            ):
                assert len(monitor.wait_query(query)) == 1, query
        host.xid(1, 79)
        wait(lambda: b"team-a/first" in daemon.get("/v1/findings")[1], "the finding's pod", daemon.log)
        server.stop()
        server.response = answer(training("second", "0"))
        server.start()
        wait(lambda: pods_of(daemon) == {"0": "second", "1": ""}, "the pod of a kubelet that started again", daemon.log)
        assert b"team-a/first" in daemon.get("/v1/findings")[1]
