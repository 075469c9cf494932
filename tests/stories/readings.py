"""Stories about readings of GPUs and lines of theirs: PCIe, power, settings, bit errors, Xids that blame others."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from evaluate.kernel_text import happened
from gpuwarden.health.model import Health
from gpuwarden.health.nvlink.nvlink5_catalogue import NVLINK5_RULES
from gpuwarden.health.xid.catalogue import XidClass
from gpuwarden_collectors.event_facts import GpuResetEvent
from gpuwarden_collectors.gpu_readings import GpuReadings
from stories.story import Story
from support.dcgm_hosts import FAIL, WARN, DcgmHost
from support.hosts import Host, slot

HOURS = 3600.0


def bus(index: int) -> str:
    """Return the bus address as the driver writes it."""
    return slot(index)[:-2]


# --- Xids


def consequences_of_a_link() -> Host:
    """GPU 3 loses a link for good; channels of its neighbours are torn down with it. The source gives no registers: they are those of
    the vendor's rule for such a link.
    """
    host = Host(8)
    host.nvml_change = lambda facts: replace(facts, driver_version="590.48.01")
    host.run(60)
    rule = next(r for r in NVLINK5_RULES if "NETIR_LINK_DOWN" in r.units and r.klass is XidClass.FAILURE)
    registers = f"0x{rule.sub_code << 20 | rule.since:08x} 0x{rule.status:08x} 0x00000000"
    happened(
        host,
        f"NVRM: Xid (PCI:{bus(3)}): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 14 ({registers})",
        f"NVRM: Xid (PCI:{bus(3)}): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
        *(
            f"NVRM: Xid (PCI:{bus(n)}): 45, pid={pid}, name=python3, Ch 0000000c caused by previous Xid 145"
            for n, pid in ((4, 1818992), (1, 1818993), (0, 1818994))
        ),
    )
    facts = host.gpus[3]
    host.gpus[3] = replace(facts, links=tuple(replace(link, active=link.link != 14) for link in facts.links))
    host.run(1.5 * HOURS, every=15)
    return host


def contained_error() -> DcgmHost:
    """The application dies, the GPU works on, its row is replaced at the reset a day later. DCGM keeps its incident."""
    host = DcgmHost(8)
    host.run(120)
    host.incident(131, gpu=2, health=WARN, xid=94, latched=True)
    host.change(2, remapped_rows_pending=1)
    happened(host, f"NVRM: Xid (PCI:{bus(2)}): 94, pid=4711, name=python3, Contained: SM (0x1). RST: No, D-RST: No")
    host.run(24 * HOURS, every=60)
    gone = host.gpus.pop(2)
    host.run(15)
    host.gpus[2] = replace(gone, readings=replace(gone.readings, remapped_rows_pending=0))
    host.step(GpuResetEvent(at=host.now, slot=slot(2), ok=True))
    host.run(600, every=15)
    return host


def privilege_by_nccl() -> Host:
    """The lines as they were published, without their registers."""
    host = Host(8)
    host.run(60)
    happened(
        host,
        "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS",
        f"NVRM: Xid (PCI:{bus(0)}): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (...)",
        f"NVRM: Xid (PCI:{bus(0)}): 137, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error",
    )
    host.run(1.5 * HOURS, every=15)
    return host


# --- PCIe


def generation_of_idle_cards() -> Host:
    """A host of generation 3 with cards of generation 4: the lower the power state, the lower the link."""
    host = Host(4)
    for n, (state, generation, load) in enumerate(((8, 1, 0), (5, 2, 3), (2, 3, 60), (0, 3, 100))):
        host.change(n, performance_state=state, pcie_generation=generation, pcie_generation_max=3, utilization_gpu=load)
    host.run(2 * HOURS, every=15)
    return host


def links_that_change_speed() -> Host:
    """Idle cards, several times in a minute; then load, which finds the link slow for a moment."""
    host = Host(4)
    for n in host.gpus:
        host.change(n, utilization_gpu=0, performance_state=8)
    for step in range(240):
        for n in host.gpus:
            host.change(n, pcie_generation=(5, 2, 1, 5)[(step + n) % 4])
        host.run(5)
    for n in host.gpus:
        host.change(n, utilization_gpu=100, performance_state=0, pcie_generation=1)
    host.run(10)
    for n in host.gpus:
        host.change(n, pcie_generation=5)
    host.run(600)
    return host


def lanes_split_by_the_board(*, accepted: bool) -> Host:
    host = Host(2)
    for n in host.gpus:
        host.change(n, pcie_width=8)
    host.run(1 * HOURS, every=15)
    if accepted:
        host.accept()
        host.run(24 * HOURS, every=60)
    return host


def repaired_bus_errors() -> Host:
    """Let a bus have repaired errors by the dozen, several in a second."""
    host = Host(4)
    host.run(60)
    for _ in range(30):
        happened(
            host,
            f"pcieport 0000:00:01.1: AER: Correctable error message received from {slot(1)}",
            f"nvidia {slot(1)}: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)",
            f"nvidia {slot(1)}:   device [10de:249c] error status/mask=00000001/0000a000",
            f"nvidia {slot(1)}:    [ 0] RxErr                  (First)",
            f"nvidia {slot(1)}: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Receiver ID)",
            f"nvidia {slot(1)}:    [ 6] BadTLP",
        )
        host.run(20)
    return host


# --- power, settings


def reading_for_hours(gpus: int = 8, odd: tuple[int, ...] = (), hours: float = 2, **values: int | None) -> Host:
    """All GPUs, or those in `odd`, report this, without a job; what `values` names the others have as an H100 does."""
    usual: dict[str, int | None] = {"ecc_mode": 1, "persistence_mode": 1, "power_limit_mw": 700_000, "gsp_mode": 1}
    host = Host(gpus)
    for n in range(gpus):
        host.change(n, **usual)
        if not odd or n in odd:
            host.change(n, **values)
    host.run(hours * HOURS, every=15 if hours < 24 else 120)
    return host


def without_readings() -> Host:
    """An RTX 4090: no row remapping, no ECC, no fabric, no recovery action."""
    host = Host(1)
    readings = GpuReadings(temperature=60, utilization_gpu=100, performance_state=2, clock_event_reasons=4)
    host.gpus[0] = replace(host.gpus[0], readings=readings, links=())
    host.run(2 * HOURS, every=15)
    return host


# --- DCGM


def incident_for(code: int, health: int, seconds: float, **values: int) -> DcgmHost:
    host = DcgmHost(8)
    host.run(120)
    for n in host.gpus:
        host.change(n, **values)
        host.incident(code, gpu=n, health=health)
    host.run(seconds, every=15)
    if seconds < 1 * HOURS:
        host.silence()
        host.run(1 * HOURS, every=15)
    return host


def profiler_has_the_counters() -> DcgmHost:
    """DCGM's profiling fields are blank, zero at full load, or above one; NVML's are zero."""
    host = DcgmHost(4)
    host.run(120)
    for n, share in enumerate((None, 0.0, 1.3, 0.0)):
        host.field(n, graphics_active=share, sm_active=share, tensor_active=share, nvlink_tx_bytes=share)
        host.change(n, utilization_gpu=100, gpm_sm_active=0.0 if n else None, gpm_tensor_active=0.0 if n else None)
    host.run(2 * HOURS, every=15)
    return host


STATES = "NVIDIA/open-gpu-kernel-modules#731, Syllo/nvtop#6, scitix/sichek#49"
SPLIT = "noonghunna/club-3090#998"
BUDGET = "stackhpc/ansible-slurm-appliance#975"
PERSISTENCE = "leptonai/gpud#1322, #1318, NVIDIA/NVSentinel#1382"
BER = "Azure/cyclecloud-healthagent a1302d3"
W, F = Health.WARNING, Health.FAILURE

STORIES: tuple[Story, ...] = (
    Story(
        id="A07", source="NVIDIA/open-gpu-kernel-modules#1150", name="Xid 149 of one GPU, Xids 45 of its neighbours",
        made=consequences_of_a_link, expects=("failure nvlink_down", "failure xid.149"), ends=F, incidents=1,
    ),
    Story(
        id="A08", source="NVIDIA/k8s-device-plugin#1014, NVIDIA/gpu-operator#1065", name="Xid 94, a reset a day later",
        made=contained_error, expects=("warning row_remap_pending", "warning xid.94"),
    ),
    Story(
        id="A13", source="NVIDIA/nccl#2241", name="Xids 145 and 137 out of a NCCL bug", made=privilege_by_nccl, expects=("warning xid.145",)
    ),
    Story(id="A26", source=STATES, name="PCIe generations below P0, and of a host of generation 3", made=generation_of_idle_cards),
    Story(
        id="A27", source="local-inference-lab/rtx6kpro#88", name="links of idle cards that change their speed", made=links_that_change_speed
    ),
    Story(
        id="A28", source=SPLIT, name="x8 on both cards, by the board", made=partial(lanes_split_by_the_board, accepted=False),
        expects=("warning pcie_link_degraded",), ends=W,
    ),
    Story(
        id="A28", source=SPLIT, name="x8 on both cards, accepted", made=partial(lanes_split_by_the_board, accepted=True),
        expects=("warning pcie_link_degraded",),
    ),
    Story(
        id="A31", source="Azure/azurehpc#595, hashcat/hashcat#4721", name="software power cap all the time",
        made=partial(reading_for_hours, clock_event_reasons=0x4),
    ),
    Story(
        id="A32", source=BUDGET, name="a board limit of 500 of 700 W on all four",
        made=partial(reading_for_hours, 4, hours=48, power_limit_mw=500_000, power_enforced_limit_mw=500_000),
    ),
    Story(
        id="A32", source=BUDGET, name="a limit of 230 of 700 W on one of eight, for a morning",
        made=partial(reading_for_hours, odd=(3,), hours=4, power_limit_mw=230_000),
    ),
    Story(
        id="A32", source=BUDGET, name="a limit of 230 of 700 W on one of eight", made=partial(reading_for_hours, odd=(3,), hours=25, power_limit_mw=230_000),
        expects=("warning gpu_misconfigured.set_by_jobs",), ends=W,
    ),
    Story(
        id="A43", source="NVIDIA/DCGM#303, #202, #152, #149", name="profiling counters that a profiler has taken", made=profiler_has_the_counters
    ),
    Story(id="A55", source="leptonai/gpud#351", name="an RTX 4090 without row remapping", made=without_readings),
    Story(id="A56", source=BER, name="DCGM's bit error rate watch, for five minutes", made=partial(incident_for, 119, FAIL, 300)),
    Story(
        id="A56", source=BER, name="DCGM's bit error rate watch, for two hours", made=partial(incident_for, 119, FAIL, 2 * HOURS),
        expects=("warning nvlink_errors",), ends=W,
    ),
    Story(
        id="A62", source="NVIDIA/NVSentinel#1666, #1668", name="DCGM's power watch under load",
        made=partial(incident_for, 12, WARN, 6 * HOURS, clock_event_reasons=0x4),
    ),
    Story(id="A64", source="gist cwrau/809415b2", name="PCIe errors that were repaired, by the dozen", made=repaired_bus_errors),
    Story(
        id="A68", source=PERSISTENCE, name="persistence mode off on all eight", made=partial(reading_for_hours, hours=48, persistence_mode=0)
    ),
    Story(
        id="A68", source=PERSISTENCE, name="persistence mode off on all four of a GB200", made=partial(reading_for_hours, 4, hours=48, persistence_mode=0)
    ),
    Story(
        id="A68", source=PERSISTENCE, name="persistence mode off on one of eight", made=partial(reading_for_hours, odd=(5,), hours=25, persistence_mode=0),
        expects=("warning gpu_misconfigured.set_by_jobs",), ends=W,
    ),
    Story(
        id="A68", source="row 23: Verda (ECC consistency)", name="ECC off on one of eight", made=partial(reading_for_hours, odd=(5,), ecc_mode=0),
        expects=("warning gpu_misconfigured",), ends=W,
    ),
    Story(
        id="E04", source="aws/aws-k8s-tester#821", name="GSP firmware off on all eight by choice", made=partial(reading_for_hours, hours=48, gsp_mode=0)
    ),
)  # fmt: skip
