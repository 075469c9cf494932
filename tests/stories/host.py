"""Stories about what a node has beside its GPUs: NVSwitches, the fabric manager, ports, lines of the kernel log."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from evaluate.kernel_text import SWITCH, happened
from gpuwarden.health.model import Health
from gpuwarden.health.xid.sxid_catalogue import SXIDS
from gpuwarden_collectors.host_facts import PortFacts, ServiceFacts
from gpuwarden_collectors.pci_facts import PciDevice, PciKind
from stories.story import Story
from support.hosts import Host, slot
from support.whole_hosts import WholeHost, port, service

HOURS = 3600.0

# --- NVSwitches

PRIV = "nvidia-nvswitch2: SXid (PCI:{switch}): 12028, Non-fatal, Link 61 egress non-posted PRIV error (First)"


def lines_of_healthy_hosts() -> Host:
    """Every line that imbue's operators had declared harmless after months, some of them several times."""
    host = Host(8)
    host.run(60)
    for text in HARMLESS:
        happened(host, *[text] * 3)
        host.run(300, every=20)
    for sxid in (number for number, row in SXIDS.items() if row.harmless):
        text = f"nvidia-nvswitch0: SXid (PCI:{SWITCH}): {sxid}"
        first, echo = "Non-fatal, Link 44 x", "Severity 0 Engine instance 44 Sub-engine instance 00"
        happened(host, f"{text}, {first}", f"{text}, {echo}", f"{text}, Data {{0x0000002c, 0x00000000}}")
        host.run(60, every=20)
    host.run(2 * HOURS, every=60)
    return host


HARMLESS = (
    "mlx5_core 0000:5a:00.0: mlx5_pcie_event:299:(pid 1133): Detected insufficient power on the PCIe slot (27W).",
    "nvidia-peermem nv_get_p2p_free_callback:125 ERROR detected invalid context, skipping further processing",
    "mlx5_core 0000:5a:00.0: Port module event: module 1, Cable unplugged",
    "mlx5_core 0000:5a:00.0 enp90s0np0: Link down",
    "EDAC i10nm: No hbm memory",
    "ACPI Error: No handler for Region [SYSI] (00000000c25e0e29) [IPMI] (20210730/evregion-130)",
    "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023",
    "python3[4242]: segfault at 0 ip 00007f79 sp 00007ffc error 4 in python3.10[5a8000+2c0000]",
    "pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c error 4 in libc.so.6[7f7c+195000]",
    "INFO: NMI handler (nmi_cpu_backtrace_handler) took too long to run: 1.021 msecs",
    "workqueue: drm_fb_helper_damage_work hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND",
    "pid 4242 (python3) over core_pipe_limit",
    "Memory cgroup out of memory: Killed process 4242 (python3) total-vm:1024kB, anon-rss:512kB",
)


def privilege_error(*, again: bool = False, gpu_lost: bool = False) -> Host:
    """The line that user code causes. `again`: a second time at the same port; `gpu_lost`: and a GPU does not answer any more."""
    host = Host(8)
    host.run(60)
    happened(host, PRIV.format(switch=SWITCH))
    host.run(300, every=15)
    if again:
        happened(host, PRIV.format(switch=SWITCH))
    if gpu_lost:
        del host.gpus[3]
    host.run(1.2 * HOURS, every=15)
    return host


def switches_after_a_lost_gpu() -> Host:
    """Xid 79, twelve seconds later the ends of its links on two switches; then the machine is started again with another GPU."""
    host = Host(8)
    host.run(60)
    bus = slot(3)[:-2]
    happened(host, f"NVRM: Xid (PCI:{bus}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    gone = host.gpus.pop(3), host.devices.pop(3)
    host.run(12)
    happened(
        host,
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
        "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
    )
    host.run(600, every=15)
    host.gpus[3], host.devices[3] = replace(gone[0], uuid="GPU-new"), gone[1]
    host.step()
    host.acknowledge(f"xid.79@gpu/{slot(3)}")
    host.run(1.2 * HOURS, every=15)
    return host


# --- The fabric manager

STOPPED: dict[str, Any] = {"active": "inactive", "sub": "dead", "enabled": False}
FAILED: dict[str, Any] = {"active": "failed", "sub": "failed", "result": "exit-code"}


def fabric_manager(
    unit: dict[str, Any], *, process: bool | None = False, switches: bool = True, **readings: int | None
) -> WholeHost:
    """Its unit is as `unit` says, from boot on; GPUs are registered, or say what `readings` has."""
    host = WholeHost(8)
    if switches:
        host.devices[99] = PciDevice(slot="0000:99:00.0", kind=PciKind.SWITCH, device_id=0x22A3)
    for n in host.gpus:
        host.change(n, **readings)
    units: tuple[ServiceFacts, ...] = (service(**unit), service("nvidia-persistenced.service"))
    host.services(*units, process=process)
    host.run(2 * HOURS, every=15)
    return host


def no_fabric_manager_unit() -> WholeHost:
    host = WholeHost(8)
    host.devices[99] = PciDevice(slot="0000:99:00.0", kind=PciKind.SWITCH, device_id=0x22A3)
    host.services(service("nvidia-persistenced.service"), process=True)
    host.run(2 * HOURS, every=15)
    return host


# --- Ports


def roce(device: str, **more: Any) -> PortFacts:
    return port(
        device, **{"link_layer": "Ethernet", "link_downed": None, "carrier_down": 0, "default_route": False, **more}
    )


RAILS = tuple(roce(f"mlx5_{n}") for n in range(1, 9))
PRIME: dict[str, Any] = {"rate_gbps": 100.0, "default_route": True}


def dual_port_front_end() -> WholeHost:
    """The second port is off by design, after each boot too."""
    host = WholeHost()
    aux = roce("mlx5_9", state="down", physical_state="disabled", rate_gbps=40.0)
    for _ in range(3):
        host.ports(*RAILS, roce("mlx5_0", **PRIME), aux)
        host.run(1 * HOURS, every=15)
        host.reboot()
    host.run(600, every=15)
    return host


def management_port(*, downs: int = 0, minutes: float = 0.0) -> WholeHost:
    """RoCE alone. The port with the default route loses its carrier so many times, or for so many minutes."""
    host = WholeHost()
    host.ports(*RAILS, roce("mlx5_0", **PRIME))
    host.run(300)
    for n in range(downs):
        host.ports(*RAILS, roce("mlx5_0", carrier_down=n + 1, **PRIME))
        host.run(600, every=15)
    if minutes:
        gone = tuple(replace(rail, default_route=None) for rail in RAILS)
        host.ports(*gone, roce("mlx5_0", rate_gbps=100.0, state="down", default_route=None, carrier_down=1))
        host.run(60 * minutes)
        host.ports(*RAILS, roce("mlx5_0", carrier_down=1, **PRIME))
        host.run(600, every=15)
    return host


SATURATED: dict[str, Any] = {
    "link_downed": 255, "excessive_buffer_overrun_errors": 15, "symbol_error": 0, "link_error_recovery": 0, "port_rcv_errors": 0,
}  # fmt: skip


def saturated_counters(*, outages: int) -> WholeHost:
    """A live port whose narrow counters stand at their maximum; then so many outages of 20 s within an hour."""
    host = WholeHost()
    host.ports(port("mlx5_0", **SATURATED, seen_down=0))
    host.run(1 * HOURS, every=15)
    for n in range(outages):
        host.ports(port("mlx5_0", **SATURATED, state="down", seen_down=n + 1))
        host.run(20)
        host.ports(port("mlx5_0", **SATURATED, seen_down=n + 1))
        host.run(580, every=20)
    return host


def function_of_the_fabric_manager() -> WholeHost:
    """Its counters are refused, and its port is down for ever."""
    host = WholeHost()
    refused = port("mlx5_8", state="down", physical_state="disabled", link_downed=None, rate_gbps=None)
    host.ports(port("mlx5_0"), port("mlx5_1"), refused)
    host.run(2 * HOURS, every=15)
    return host


def flaps_while_the_fabric_settles() -> WholeHost:
    host = WholeHost()
    host.run(60)
    for downs in range(1, 4):
        host.ports(port("mlx5_0"), port("mlx5_1", link_downed=downs, state="down"))
        host.run(30)
        host.ports(port("mlx5_0"), port("mlx5_1", link_downed=downs))
        host.run(300, every=15)
    host.run(3.5 * HOURS, every=15)
    return host


IMBUE = "imbue-ai/cluster-health dmesg_whitelist.py"
GPUD_PRIV = "leptonai/gpud (sxid fixture), imbue-ai/cluster-health"
OPERATOR = "NVIDIA/NVSentinel ADR-050, NVIDIA/gpu-driver-container"
DEAD_FM = "NVIDIA/NVSentinel#883, #889"
MANAGEMENT = "NVIDIA/NVSentinel#1529"
W, F = Health.WARNING, Health.FAILURE

STORIES: tuple[Story, ...] = (
    Story(
        id="A11", source="data-infra/cube-studio#29, NVIDIA/gpu-operator#356", name="an enabled fabric manager that ends at once, RTX 4090",
        made=partial(fabric_manager, FAILED, switches=False, fabric_state=None),
    ),
    Story(
        id="A14", source="NVIDIA/NVSentinel#1361, leptonai/gpud#989", name="the second port of a front-end card, off by design",
        made=dual_port_front_end,
    ),
    Story(id="A16", source=MANAGEMENT, name="a management port that trains again, RoCE alone", made=partial(management_port, downs=1)),
    Story(
        id="A16", source=MANAGEMENT, name="a management port that flaps", made=partial(management_port, downs=4),
        expects=("warning infiniband_flapping",), ends=W,
    ),
    Story(
        id="A16", source=MANAGEMENT, name="a management port that is down for ten minutes", made=partial(management_port, minutes=10),
        expects=("warning infiniband_down",),
    ),
    Story(
        id="A17", source="leptonai/gpud#943", name="counters that stand at their maximum", made=partial(saturated_counters, outages=0)
    ),
    Story(
        id="A17", source="leptonai/gpud#943", name="six outages of 20 s behind such a counter", made=partial(saturated_counters, outages=6),
        expects=("warning infiniband_flapping",), ends=W,
    ),
    Story(
        id="A18", source="leptonai/gpud#1164, prometheus/node_exporter#3434", name="an adapter's function of the fabric manager",
        made=function_of_the_fabric_manager,
    ),
    Story(
        id="A19", source="leptonai/gpud#1247", name="flaps while the fabric settles", made=flaps_while_the_fabric_settles,
        expects=("warning infiniband_flapping",),
    ),
    Story(id="A34", source=IMBUE, name="lines of 511 healthy H100 hosts", made=lines_of_healthy_hosts),
    Story(
        id="A35", source=GPUD_PRIV, name="SXid 12028, Non-fatal, by user code", made=privilege_error, expects=("warning sxid.12028",)
    ),
    Story(
        id="A35", source=GPUD_PRIV, name="SXid 12028 again at the same port", made=partial(privilege_error, again=True),
        expects=("failure sxid.12028", "warning sxid.12028"), ends=F,
    ),
    Story(
        id="A35", source=GPUD_PRIV, name="SXid 12028, and a GPU is lost", made=partial(privilege_error, gpu_lost=True),
        expects=("failure gpu_missing", "failure sxid.12028", "warning sxid.12028"), ends=F,
    ),
    Story(
        id="A37", source=OPERATOR, name="a fabric manager in the driver's container, its unit disabled",
        made=partial(fabric_manager, STOPPED, process=True),
    ),
    Story(
        id="A37", source=OPERATOR, name="the same, A100, whose GPUs say nothing of a fabric",
        made=partial(fabric_manager, STOPPED, process=True, fabric_state=None),
    ),
    Story(
        id="A37", source=OPERATOR, name="the same, processes of the host hidden from the daemon", made=partial(fabric_manager, STOPPED, process=None),
    ),
    Story(
        id="A37", source=OPERATOR, name="the same, processes hidden, A100",
        made=partial(fabric_manager, STOPPED, process=None, fabric_state=None),
    ),
    Story(id="A37", source=OPERATOR, name="the same, no unit installed", made=no_fabric_manager_unit),
    Story(
        id="A37", source=OPERATOR, name="a disabled unit and no fabric manager at all, GPUs not registered",
        made=partial(fabric_manager, STOPPED, fabric_state=2), expects=("failure fabric_unhealthy", "failure service_down"), ends=F,
    ),
    Story(
        id="A54", source="leptonai/gpud#1106", name="GB200: no fabric manager on the host, health mask not supported",
        made=partial(
            fabric_manager, STOPPED, switches=False, fabric_health_mask=0, fabric_clique=4026, fabric_in_cluster=1,
        ),
    ),
    Story(
        id="B04", source=DEAD_FM, name="a fabric manager dead for weeks, GPUs still registered", made=partial(fabric_manager, FAILED),
        expects=("failure service_down",), ends=F,
    ),
    Story(
        id="B04", source=DEAD_FM, name="GPUs that never finish registering", made=partial(fabric_manager, {}, fabric_state=2),
        expects=("failure fabric_unhealthy",), ends=F,
    ),
    Story(
        id="B04", source=DEAD_FM, name="a fabric manager dead for weeks, processes hidden from the daemon",
        made=partial(fabric_manager, FAILED, process=None), expects=("warning service_down",), ends=W,
    ),
    Story(
        id="C04", source="leptonai/gpud components/sxid/README.md", name="Xid 79, and its links on the switches 12 s later",
        made=switches_after_a_lost_gpu, expects=("failure gpu_missing", "failure xid.79", "warning sxid.20034"), incidents=1,
    ),
    Story(
        id="E03", source="NVIDIA/NVSentinel#1275", name="a fabric manager enabled on a node of an NVL72, where it runs on the switches",
        made=partial(fabric_manager, FAILED, switches=False, fabric_clique=1, fabric_in_cluster=1),
    ),
)  # fmt: skip
