"""Lines of the kernel about errors of main memory, where no controller counts them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluate.kernel_text import happened
from gpuwarden.health.model import Health
from support.whole_hosts import WholeHost, memory

H100 = "NVIDIA H100 80GB HBM3"
MEMORY = "Memory failure: 0x1840200: Sending SIGBUS to python3:4711 due to hardware memory corruption"


def memory_host(name: str = H100, *, edac: bool = False) -> WholeHost:
    host = WholeHost()
    host.beside.memory = memory() if edac else replace(memory(), controllers=())
    for index, gpu in host.gpus.items():
        host.gpus[index] = replace(gpu, name=name)
    host.run(60)
    return host


def test_a_process_that_the_kernel_ends_for_a_memory_error_fails_a_node_without_counters_until_a_reboot() -> None:
    host = memory_host()
    happened(host, MEMORY)
    host.run(10)
    (finding,) = host.findings
    assert (finding.key.code, host.health) == ("memory_ecc_uncorrectable", Health.FAILURE)
    assert "Sending SIGBUS" in str(finding.evidence["text"])
    host.run(3 * 3600.0, every=30.0)
    host.restart_daemon()
    host.run(60)
    assert host.codes == ["memory_ecc_uncorrectable"]
    host.reboot()
    host.restart_daemon()
    host.run(60)
    assert host.health is Health.HEALTHY


def test_a_memory_error_while_no_daemon_ran_fails_the_node_as_well() -> None:
    host = memory_host()
    host.uptime += 1200
    host.restart_daemon()
    happened(host, MEMORY)
    host.run(60)
    assert host.codes == ["memory_ecc_uncorrectable"]


@pytest.mark.parametrize(("name", "edac"), [(H100, True), ("NVIDIA GH200 480GB", False)], ids=["EDAC", "superchip"])
def test_where_counters_decide_or_the_memory_may_be_a_gpu_s_the_line_alone_is_no_finding(name: str, edac: bool) -> None:
    host = memory_host(name, edac=edac)
    happened(host, MEMORY)
    host.run(60)
    assert host.health is Health.HEALTHY
