"""The kernel gives up a device after a PCIe error: a GPU, or what is behind a port above one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluate.kernel_text import happened
from gpuwarden.health.model import Health
from support.hosts import Host, slot
from support.whole_hosts import WholeHost

ROOT, DOWNSTREAM, OTHERS = "0000:00:03.0", "0000:01:04.0", "0000:00:1c.0"
NO_CALLBACK = f"nvidia {slot(1)}: AER: can't recover (no error_detected callback)"


def behind_ports() -> WholeHost:
    """All GPUs are below one root port, each at a port of its own of a switch."""
    host = WholeHost()
    for index, device in host.devices.items():
        ports = (ROOT, DOWNSTREAM if index == 1 else f"0000:01:0{index}.1")
        host.devices[index] = replace(device, upstream=ports)
    host.run(30)
    return host


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        (NO_CALLBACK, slot(1)),
        (f"nvidia {slot(1)}: AER: Can't recover (no error_detected callback)", slot(1)),
        (f"pcieport {DOWNSTREAM}: AER: device recovery failed", DOWNSTREAM),
        (f"pcieport {ROOT}: AER: Device recovery failed", ROOT),
        (f"nvidia {slot(1)}: AER: device recovery failed", slot(1)),
    ],
)
def test_what_cannot_be_recovered_warns_for_a_gpu_and_the_ports_above_one(line: str, subject: str) -> None:
    host = behind_ports()
    happened(host, line)
    [finding] = host.findings
    assert (finding.key.code, finding.key.subject.slot, finding.severity) == ("pcie_aer_fatal", subject, "warning")
    host.run(4000, every=60)
    assert host.health is Health.HEALTHY


def test_the_finding_about_a_port_names_the_gpus_below_it() -> None:
    host = behind_ports()
    happened(host, f"pcieport {DOWNSTREAM}: AER: device recovery failed")
    [finding] = host.findings
    assert finding.evidence["gpus"] == slot(1)


@pytest.mark.parametrize(
    "line",
    [
        f"pcieport {OTHERS}: AER: device recovery failed",
        f"pcieport {ROOT}: AER: can't recover (no error_detected callback)",
        "xhci_hcd 0000:04:00.0: AER: can't recover (no error_detected callback)",
        "nvidia 0000:99:00.0: AER: can't recover (no error_detected callback)",
        f"pcieport {ROOT}: AER: device recovery successful",
    ],
)
def test_what_happens_to_other_devices_is_nothing_of_a_gpu_s(line: str) -> None:
    host = behind_ports()
    happened(host, line)
    host.run(60)
    assert (host.health, host.state.records) == (Health.HEALTHY, {})


def test_lines_of_one_error_are_no_more_than_a_warning_until_the_gpu_is_lost() -> None:
    """The lines are those of rwth-i6/returnn issue 1500, without what came later."""
    host = behind_ports()
    happened(
        host,
        f"pcieport {ROOT}: AER: Multiple Uncorrected (Fatal) error received: {ROOT}",
        f"pcieport {ROOT}: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        NO_CALLBACK,
        f"pcieport {ROOT}: AER: device recovery failed",
    )
    host.run(30)
    assert {(f.key.code, f.severity) for f in host.findings} == {("pcie_aer_fatal", "warning")}
    assert len(host.findings) == 2, "one of the port, one of the GPU"


def test_on_a_host_whose_sysfs_shows_no_ports_the_line_of_the_gpu_counts() -> None:
    host = Host(8)
    host.run(30)
    happened(host, NO_CALLBACK)
    assert [f.key.subject.slot for f in host.findings] == [slot(1)]
