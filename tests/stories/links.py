"""Stories about links, ports and adapters, and about lines of the kernel log besides Xids."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from evaluate.kernel_text import happened
from gpuwarden.health.model import Health
from gpuwarden.health.nvlink.nvlink5_catalogue import NVLINK5_RULES
from gpuwarden.health.xid.catalogue import XidClass
from gpuwarden_collectors.facts import LinkFacts
from gpuwarden_collectors.host_facts import AdapterFacts, PcieLink, PortFacts
from stories.story import Story
from support.hosts import Host, slot
from support.whole_hosts import WholeHost, hung, mount, port

HOURS = 3600.0
DAY = 86_400.0


def bus(index: int) -> str:
    """Return the bus address as the driver writes it."""
    return slot(index)[:-2]


# --- NVLinks


def link_that_dies_in_five_days() -> Host:
    """Four GPUs; link 14 of GPU 0 has recovered 505 times, no other link ever. The source gives no registers of the Xid: they are those of the
    vendor's rule for a link that went down.
    """
    host = Host(4)
    host.nvml_change = lambda facts: replace(facts, driver_version="580.126.20")

    def recovered(times: int) -> None:
        for n, facts in host.gpus.items():
            links = tuple(
                LinkFacts(link=k, active=True, recoveries=times if (n, k) == (0, 14) else 0, recovery_failures=0)
                for k in range(18)
            )
            host.gpus[n] = replace(facts, links=links)

    recovered(505)
    host.run(1 * HOURS, every=60)
    for times in (506, 507, 508):
        recovered(times)
        host.run(420, every=60)
    host.run(6 * HOURS, every=60)
    recovered(509)
    host.run(1 * HOURS, every=60)
    host.run(4 * DAY, every=600)
    rule = next(r for r in NVLINK5_RULES if "NETIR_LINK_DOWN" in r.units and r.klass is XidClass.FAILURE)
    registers = f"0x{rule.sub_code << 20 | rule.since:08x} 0x{rule.status:08x} 0x00000000"
    happened(host, f"NVRM: Xid (PCI:{bus(0)}): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 14 ({registers})")
    host.run(600, every=15)
    return host


def links_that_train_after_planned_reboots() -> Host:
    """Every link counts some recoveries while it trains, another number after each boot."""
    host = Host(4)
    for boot in range(4):
        for n, facts in host.gpus.items():
            links = tuple(LinkFacts(link=k, active=True, recoveries=(n + k + boot) % 4) for k in range(18))
            host.gpus[n] = replace(facts, links=links)
        host.run(6 * HOURS, every=60)
        host.reboot()
        host.uptime = 60.0
    host.run(600, every=15)
    return host


# --- Adapters and ports


def adapter_on_eight_lanes() -> WholeHost:
    """Eight adapters of 32 GT/s and 16 lanes; from boot on one has 8. Its port is active with 400 Gb/s."""
    host = WholeHost(uptime=90.0)
    at = [f"0000:{0x90 + n:02x}:00.0" for n in range(8)]
    host.adapters = tuple(
        AdapterFacts(
            slot=here, device=f"mlx5_{n}",
            links=(PcieLink(at=here, width=8 if n == 4 else 16, width_max=16, gtps=32.0, gtps_max=32.0),),
        )
        for n, here in enumerate(at)
    )  # fmt: skip
    host.ports(*(port(f"mlx5_{n}", slot=here, driver="mlx5_core") for n, here in enumerate(at)))
    host.run(2 * HOURS, every=15)
    return host


def efa(n: int, **more: Any) -> PortFacts:
    facts = {
        "driver": "efa",
        "link_layer": "Unknown",
        "link_downed": None,
        "rate_gbps": 100.0,
        "no_completion_cmds": 0,
        "rx_drops": 0,
    }
    return port(f"rdmap{n}s0", **{**facts, **more})


def dead_efa(*, gone: bool) -> WholeHost:
    """Its state reads ACTIVE whatever happens: commands are never completed, or the device vanishes."""
    host = WholeHost()
    host.ports(*map(efa, range(32)))
    host.run(600, every=15)
    rest = [efa(n) for n in range(32) if n != 7]
    for count in range(1, 5):
        host.ports(*rest) if gone else host.ports(*rest, efa(7, no_completion_cmds=count))
        host.run(300, every=15)
    return host


FIRMWARE = (
    "mlx5_core {slot}: wait_func:964:(pid 112): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource",
    "mlx5_core {slot}: poll_health:852:(pid 0): device's health compromised - reached miss count",
    "mlx5_core {slot}: print_health_info:458:(pid 0): synd 0x8: unrecoverable hardware error",
)


def dead_firmware(line: str, *, times: int = 1, recovered: bool = False) -> WholeHost:
    """The port stays ACTIVE. A command without an answer is given up each minute."""
    host = WholeHost()
    at = "0000:9c:00.0"
    host.ports(port("mlx5_0", slot=at), port("mlx5_1", slot="0000:9d:00.0"))
    host.run(600, every=15)
    for _ in range(times):
        happened(host, line.format(slot=at))
        host.run(10 if recovered else 60)
    if recovered:
        happened(host, f"mlx5_core {at}: health recovery succeeded")
    host.run(1 * HOURS, every=15)
    return host


def recovery_wedged() -> WholeHost:
    """Two root ports report fatal errors, recovery hangs in the driver, processors lock up, until somebody reboots hours later."""
    host = WholeHost()
    ports = ("0000:00:00.0", "0002:00:00.0")
    at = ("0000:01:00.0", "0002:01:00.0")
    host.adapters = tuple(
        AdapterFacts(slot=here, device=f"mlx5_{n}", upstream=(ports[n],)) for n, here in enumerate(at)
    )
    host.ports(*(port(f"mlx5_{n}", slot=here) for n, here in enumerate(at)))
    host.run(600, every=15)
    for each in ports:
        happened(host, f"pcieport {each}: AER: Multiple Uncorrected (Fatal) error received: {each}")
    host.run(60)
    for _ in range(20):
        happened(
            host,
            "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [irq/112-aerdrv:215]",
            "RIP: 0010:native_queued_spin_lock_slowpath+0x61/0x2d0",
        )
        host.run(28)
    return host


# --- The kernel log


def spinning_in_nfs() -> WholeHost:
    """A soft lockup each 28 s, for three and a half days (here an hour); what touches the file system hangs."""
    host = WholeHost()
    host.run(600, every=15)
    host.mounts(mount("/"), hung("/nfs/home"))
    for _ in range(128):
        happened(
            host,
            "watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [mksquashfs:4711]",
            "RIP: 0010:_raw_spin_lock+0x17/0x30",
        )
        host.run(28, every=14)
    return host


def system_processor_dead() -> Host:
    """Lines come only while somebody asks."""
    host = Host(8)
    host.run(60)
    happened(
        host,
        f"NVRM: Xid (PCI:{bus(4)}): 119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP! "
        "Expected function 103 (GSP_RM_ALLOC) (0x2081 0x4).",
        f"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:{bus(4)} (printing 1 of every 30).  The GPU likely needs to be reset.",
    )
    host.run(2 * HOURS, every=15)
    return host


def gpu_that_does_not_initialise() -> Host:
    host = Host(4)
    host.run(600, every=15)
    host.reboot()
    gone = host.gpus.pop(2)
    for _ in range(3):
        happened(
            host, f"NVRM: GPU {slot(2)}: RmInitAdapter failed! (0x25:0x40:1470)",
            f"NVRM: GPU {slot(2)}: rm_init_adapter failed, device minor number 0",
        )  # fmt: skip
        host.run(60)
    del gone
    return host


W, F = Health.WARNING, Health.FAILURE
NIC = "NVIDIA/NVSentinel NIC health monitor"

STORIES: tuple[Story, ...] = (
    Story(
        id="A61", source="NVIDIA/NVSentinel#1701", name="links that count recoveries while they train after planned reboots",
        made=links_that_train_after_planned_reboots,
    ),
    Story(
        id="B03", source="marin-community/marin#9086, #8934", name="one NVLink with 505 recoveries that goes on, and dies five days later",
        made=link_that_dies_in_five_days, expects=("failure xid.149", "warning nvlink_link_errors"), ends=F,
    ),
    Story(
        id="B10", source="imbue-ai/cluster-health health_checks.py", name="an adapter on eight of sixteen lanes, its port at full rate",
        made=adapter_on_eight_lanes, expects=("warning adapter_pcie_degraded",), ends=W,
    ),
    Story(
        id="B11", source="NVIDIA/NVSentinel docs/nic-health-monitor.md", name="an EFA device whose commands are never completed, ACTIVE",
        made=partial(dead_efa, gone=False), expects=("warning infiniband_errors",), ends=W,
    ),
    Story(
        id="B11", source="NVIDIA/NVSentinel docs/nic-health-monitor.md", name="an EFA device that vanishes",
        made=partial(dead_efa, gone=True), expects=("failure infiniband_down",), ends=F,
    ),
    *(
        Story(
            id="B12", source=NIC, name=f"dead firmware of an adapter: {symptom}", made=partial(dead_firmware, line), expects=("failure adapter_failed",),
            ends=F,
        )
        for symptom, line in zip(("it counts no more", "a hardware error"), FIRMWARE[1:], strict=True)
    ),
    Story(
        id="B12", source=NIC, name="dead firmware of an adapter: commands without an answer", made=partial(dead_firmware, FIRMWARE[0], times=5),
        expects=("failure adapter_failed", "warning adapter_failed"), ends=F,
    ),
    Story(
        id="B12", source="Linux, mlx5 health.c", name="firmware of an adapter that its driver recovers", made=partial(dead_firmware, FIRMWARE[1], recovered=True),
    ),
    Story(
        id="B26", source="leptonai/gpud#1245", name="a processor that spins in NFS", made=spinning_in_nfs,
        expects=("warning mount_hung", "warning soft_lockup"), ends=W,
    ),
    Story(
        id="B32", source="leptonai/gpud#500, fixtures", name="a dead system processor, Xid 119 while somebody asks", made=system_processor_dead,
        expects=("failure xid.119", "warning gsp_not_answering"), ends=F,
    ),
    Story(
        id="C06", source="illinois-scicomp/machine-shop-maintenance#76", name="a GPU that does not initialise at boot",
        made=gpu_that_does_not_initialise, expects=("failure gpu_missing",), ends=F,
    ),
    Story(
        id="C18", source="MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#146", name="adapters in PCIe error recovery, then lockups",
        made=recovery_wedged, expects=("failure soft_lockup", "warning pcie_aer_fatal"), ends=F,
    ),
)  # fmt: skip
