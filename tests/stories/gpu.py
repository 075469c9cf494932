"""Stories about GPUs: links, IMEX, heat, Xids."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpuwarden.health.model import Health
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.facts import LinkFacts
from gpuwarden_collectors.host_facts import ServiceFacts
from stories.story import Story
from support.dcgm_hosts import WARN, DcgmHost
from support.hosts import Host

HOURS = 3600.0

# --- links


def links(host: Host, *, count: int, active: bool = False) -> None:
    """Every GPU has so many links. 0: NVML answers NOT_SUPPORTED for each."""
    made = tuple(LinkFacts(link=n, active=active) for n in range(count))
    host.gpus = {n: replace(facts, links=made) for n, facts in host.gpus.items()}


def card_without_bridge(reported: int) -> DcgmHost:
    """DCGM has links 0 to 11 down from its first answer on; NVML has `reported` links, all inactive."""
    host = DcgmHost(1)
    links(host, count=reported)
    for number in range(12):
        host.incident(14, link=number)
    host.run(2 * HOURS, every=15)
    return host


def links_once_active(*, memory: str) -> DcgmHost:
    """All 18 links of both GPUs go down. `memory`: what becomes of the daemon's before that, in an hour without links."""
    host = DcgmHost(2)
    host.run(300)
    host.away(PassOutcome.ABSENT)
    if memory == "restarted":
        host.restart_daemon()
    elif memory == "rebooted":
        host.reboot()
    links(host, count=18)
    host.run(1 * HOURS, every=15)
    return host


def links_never_active() -> DcgmHost:
    host = DcgmHost(2)
    links(host, count=18)
    host.run(1 * HOURS, every=15)
    return host


def rack_reboot() -> DcgmHost:
    """Links 16 and 17 of every GPU are down in one poll of DCGM after a planned reboot, and for two minutes more by NVML."""
    host = DcgmHost(4)
    host.run(120)
    host.reboot()
    host.uptime = 45.0
    up = host.gpus
    for n, facts in up.items():
        late = tuple(replace(link, active=link.link < 16) for link in facts.links)
        host.gpus = {**host.gpus, n: replace(facts, links=late)}
        host.incident(14, gpu=n, link=16)
        host.incident(14, gpu=n, link=17)
    host.run(30)
    host.silence()
    host.run(120)
    host.gpus = up
    host.run(600)
    return host


# --- IMEX

NOT_USED = ServiceFacts(unit="nvidia-imex.service", load="loaded", active="inactive", sub="dead")


def imex_not_ready(*, clique: int = 0, unit: ServiceFacts | None = None) -> DcgmHost:
    """DCGM reports the state -3 for hours. `clique`: of an NVLink domain of several nodes, 0 where there is none."""
    host = DcgmHost(8)
    host.services = () if unit is None else (unit,)
    for n in host.gpus:
        host.change(n, fabric_in_cluster=int(clique > 0), fabric_clique=clique)
    host.run(300)
    host.imex("UNAVAILABLE", -3)
    host.run(2 * HOURS, every=15)
    return host


# --- heat


def at_its_limit(margin: int) -> Host:
    """An H100 that works for hours beyond its highest operating temperature and below its slowdown point."""
    host = Host(8)
    host.change(3, temperature=87 - margin, temperature_margin=margin)
    host.run(2 * HOURS, every=15)
    return host


def thermal_by_dcgm() -> DcgmHost:
    """Its incident of one nanosecond of thermal violation within a minute, for hours."""
    host = DcgmHost(8)
    host.run(300)
    host.change(2, temperature=75, temperature_margin=12)
    host.incident(10, gpu=2, health=WARN)
    host.run(2 * HOURS, every=15)
    return host


# --- fabric


def rack_without_local_fabric_manager() -> Host:
    """Registered, and no bit of the health mask supported."""
    host = Host(4)
    for n in host.gpus:
        host.change(n, fabric_state=3, fabric_status=0, fabric_health_mask=0, fabric_in_cluster=1, fabric_clique=4026)
    host.run(1 * HOURS, every=15)
    return host


def rack_with_a_switch_out() -> Host:
    """All GPUs have less bandwidth, as DCGM and the driver report it."""
    host = DcgmHost(4)
    for n in host.gpus:
        host.change(n, fabric_health_mask=0x1A9, fabric_health_summary=3, fabric_in_cluster=1, fabric_clique=1)
        host.incident(33, gpu=n)
    host.run(1 * HOURS, every=15)
    return host


# --- Xids


def many_cleanups() -> Host:
    """280 lines every five minutes, on every GPU."""
    host = Host(4)
    host.run(60)
    for _ in range(40):
        lines = [replace(host.xid(n, 45), pid=4711, text="pid=4711, name=python3, Ch 00000008") for n in range(4)]
        host.step(*[line for line in lines for _ in range(70)])
        host.run(300, every=60)
    return host


def every_program_faults(pause: float) -> Host:
    """Twelve programs on a host with one GPU, one after the other, each of which ends with a page fault at the same place."""
    host = Host(1)
    host.run(60)
    for pid in range(5000, 5012):
        text = (
            "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC6 GPCCLIENT_T1_13 faulted @ "
            "0x6f17_04027000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
        )
        host.step(replace(host.xid(0, 31), text=text, pid=pid))
        host.run(pause, every=60)
    return host


def xid_field_that_stays() -> DcgmHost:
    """Field 230 is the last Xid and no state."""
    host = DcgmHost(8)
    host.run(120)
    host.field(4, last_xid=31, last_xid_at=host.now.wall)
    host.step(host.xid(4, 31))
    host.run(6 * HOURS, every=60)
    return host


def kept_xid_31() -> DcgmHost:
    """DCGM keeps the incident until the engine is restarted."""
    host = DcgmHost(8)
    host.run(120)
    host.incident(101, gpu=4, xid=31, latched=True)
    host.step(host.xid(4, 31))
    host.run(6 * 3600, every=60)
    return host


SINGLE_NODE = "NVIDIA/NVSentinel#1471, aws/eks-node-monitoring-agent#63"
NO_BRIDGE = "NVIDIA/NVSentinel#1481, NVIDIA/DCGM#49"
DOWN = ("failure nvlink_down",)

STORIES: tuple[Story, ...] = (
    Story(id="A01", source=SINGLE_NODE, name="IMEX -3 on a single node, IMEX not installed", made=imex_not_ready),
    Story(id="A01", source=SINGLE_NODE, name="IMEX -3 on a single node, its unit disabled", made=partial(imex_not_ready, unit=NOT_USED)),
    Story(
        id="A01", source="NVIDIA/aicr#2641, NVIDIA/DCGM#308", name="IMEX -3 on a GB300 whose IMEX runs in the pods of the DRA driver",
        made=partial(imex_not_ready, clique=32766, unit=NOT_USED),
    ),
    Story(id="A04", source=NO_BRIDGE, name="a card without a bridge, links inactive", made=partial(card_without_bridge, 12)),
    Story(id="A04", source=NO_BRIDGE, name="a card without a bridge, links not supported", made=partial(card_without_bridge, 0)),
    Story(id="A06", source="NVIDIA/NVSentinel#1748", name="11,200 Xids 45 of jobs that ended", made=many_cleanups),
    Story(id="A09", source="NVIDIA/NVSentinel#911", name="an Xid 31 of an application, which DCGM keeps reporting", made=kept_xid_31),
    Story(id="A10", source="NVIDIA/dcgm-exporter#500", name="DCGM's field 230 that stays at 31", made=xid_field_that_stays),
    Story(id="A20", source="NVIDIA/DCGM#270", name="DCGM's thermal warning at 75 °C", made=thermal_by_dcgm),
    *(
        Story(id="A33", source="NVIDIA/NVSentinel ADR-042", name=f"a thermal margin of {margin} on an H100", made=partial(at_its_limit, margin))
        for margin in (0, -1)
    ),
    Story(
        id="A33", source="NVIDIA/NVSentinel ADR-042", name="an H100 at its slowdown point", made=partial(at_its_limit, -2),
        expects=("warning thermal_limit",), ends=Health.WARNING,
    ),
    Story(
        id="A40", source="NVIDIA/open-gpu-kernel-modules#1030", name="Xid 31 with every CUDA program on a host with one RTX 5090",
        made=partial(every_program_faults, 600.0),
    ),
    Story(
        id="A40", source="NVIDIA/open-gpu-kernel-modules#1030", name="the same, an hour apart",
        made=partial(every_program_faults, 4000.0),
    ),
    Story(id="A54", source="leptonai/gpud#1106", name="a GB200 whose fabric manager runs in the rack", made=rack_without_local_fabric_manager),
    Story(
        id="E03", source="NVIDIA/NVSentinel#1275; NMX-M, partition health", name="a switch of a rack is out, so that its GPUs have less bandwidth",
        made=rack_with_a_switch_out, expects=("warning fabric_unhealthy.limited_capacity",), ends=Health.WARNING,
    ),
    Story(id="A61", source="NVIDIA/NVSentinel#1701", name="links that train after a planned reboot", made=rack_reboot),
    *(
        Story(
            id="B07", source="NVIDIA/DCGM#198", name=f"all links down that were active, daemon {memory}", expects=DOWN,
            ends=Health.FAILURE, made=partial(links_once_active, memory=memory),
        )
        for memory in ("running", "restarted", "rebooted")
    ),
    Story(id="B07", source="NVIDIA/DCGM#198", name="all links down that nobody ever saw active", made=links_never_active),
)  # fmt: skip
