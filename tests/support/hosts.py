"""A GPU host as the judge sees it, driven pass by pass on a clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.health.confirmation import remembered
from gpuwarden.health.inventory import accept
from gpuwarden.health.judge import Step, acknowledge, judge
from gpuwarden.health.memory import Moments
from gpuwarden.health.model import Event, Finding, Health, Key
from gpuwarden.health.state import State, fold
from gpuwarden.health.view import Rules, Sight, View
from gpuwarden_collectors.base import Observation, PassOutcome, WorkerReport
from gpuwarden_collectors.event_facts import HostEvent, Source, XidEvent
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, LinkFacts, NvmlFacts, Stamp
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.pci_facts import PciDevice, PciFacts, PciKind

WALL = 1_800_000_000.0

SWITCHES = ("0000:05:00.0", "0000:06:00.0", "0000:85:00.0", "0000:86:00.0")
"""Where lines report an NVSwitch. On the bus they are of no kind: a host that shows switches has a fabric manager to run."""


def slot(index: int) -> str:
    return f"0000:{0x10 + index:02x}:00.0"


def readings(**changes: float | None) -> GpuReadings:
    """Return the readings of a healthy H100 at work, with these changes."""
    healthy = GpuReadings(
        temperature=55, temperature_memory=60, temperature_margin=32, temperature_slowdown=89, temperature_shutdown=95,
        temperature_gpu_max=87, temperature_memory_max=95, clock_event_reasons=0, utilization_gpu=90, performance_state=0,
        ecc_corrected_volatile=0, ecc_uncorrected_volatile=0, ecc_uncorrected_volatile_sram=0, sram_threshold_exceeded=0,
        remapped_rows_correctable=0, remapped_rows_uncorrectable=0, remap_banks_max=640, remap_banks_high=0, remap_banks_low=0,
        remap_banks_none=0, remapped_rows_pending=0, remapped_rows_failure=0, retired_pages_pending=0, recovery_action=0, inforom_valid=1,
        pcie_width=16, pcie_width_max=16, pcie_generation=5, pcie_generation_max=5, pcie_replays=0, mig_mode=0,
        slowdown_hw_thermal_ns=0, slowdown_hw_power_brake_ns=0, nvlink_replay_errors=0, nvlink_recovery_errors=0,
        fabric_state=3, fabric_status=0, fabric_health_mask=0x1AA, slowdown_sw_thermal_ns=0,
        clock_sm_mhz=1755, clock_sm_max_mhz=1980, power_usage_mw=520_000, power_limit_mw=700_000, power_enforced_limit_mw=700_000,
        ecc_mode=1, ecc_mode_pending=1, persistence_mode=1, gsp_mode=1,
        repair_channel_pending=0, repair_tpc_pending=0, memory_unrepairable=0,
    )  # fmt: skip
    return replace(healthy, **changes)  # type: ignore[arg-type]  # every reading is a number or None


def healthy_gpu(index: int) -> GpuFacts:
    return GpuFacts(
        slot=slot(index), index=index, uuid=f"GPU-{index:08d}", name="NVIDIA H100 80GB HBM3", serial=f"165{index}",
        minor=index, vbios="96.00.99.00.01", board_part="692-2G520-0200-000", readings=readings(), links=tuple(LinkFacts(link=n, active=True) for n in range(18)),
    )  # fmt: skip


class Host:
    """`gpus` and `devices` are what the next pass finds; tests change them in place. Times in seconds of uptime."""

    def __init__(self, gpus: int = 8, *, uptime: float = 10_000.0, rules: Rules | None = None) -> None:
        self.rules = rules or Rules()
        self.uptime = uptime
        self.booted = WALL
        self.boot_id = "boot-1"
        self.gpus: dict[int, GpuFacts] = {n: healthy_gpu(n) for n in range(gpus)}
        self.devices: dict[int, PciDevice] = {
            n: PciDevice(slot=slot(n), kind=PciKind.GPU, device_id=0x2330, driver="nvidia", responds=True)
            for n in range(gpus)
        }
        self.switches = [PciDevice(slot=at, kind=PciKind.OTHER, device_id=0x22A3) for at in SWITCHES]
        self.read_seconds: float | None = 0.1
        self.nvml_change: Callable[[NvmlFacts], NvmlFacts] = lambda facts: facts
        self.state = State()
        self.view = View(boot_id=self.boot_id)
        self.ledger: list[Event] = []
        self.last: Step | None = None
        self.most_incidents = 0

    @property
    def now(self) -> Stamp:
        return Stamp(self.uptime, self.booted + self.uptime)

    def change(self, index: int, **changes: float | None) -> None:
        facts = self.gpus[index]
        self.gpus[index] = replace(facts, readings=replace(facts.readings, **changes))  # type: ignore[arg-type]

    def answer(self, index: int, answer: GpuAnswer) -> None:
        self.gpus[index] = replace(self.gpus[index], answer=answer)

    def nvml(self, outcome: PassOutcome = PassOutcome.OBSERVED, **worker: object) -> Observation[NvmlFacts]:
        facts = None
        if outcome is PassOutcome.OBSERVED:
            gpus = tuple(self.gpus.values())
            facts = NvmlFacts(gpus=gpus, driver_version="570.86.15", read_seconds=self.read_seconds)
            facts = self.nvml_change(facts)
        report = WorkerReport(**worker) if worker else None  # type: ignore[arg-type]
        return Observation(
            collector="nvml", outcome=outcome, started=self.now, finished=self.now, facts=facts, worker=report
        )

    def pci(self) -> Observation[PciFacts]:
        facts = PciFacts(devices=(*self.devices.values(), *self.switches))
        return Observation(
            collector="pci", outcome=PassOutcome.OBSERVED, started=self.now, finished=self.now, facts=facts
        )

    def step(
        self,
        *events: HostEvent,
        nvml: Observation[NvmlFacts] | None = None,
        pci: Observation[PciFacts] | None = None,
        collect: bool = True,
    ) -> Step:
        """Judge once; with `collect`, after a pass of every collector."""
        if collect:
            nvml, pci = nvml or self.nvml(), pci or self.pci()
        view = replace(self.view, boot_id=self.boot_id)
        if nvml is not None:
            view = view.after(nvml)
        if pci is not None:
            view = view.after(pci)
        self.view = view
        result = judge(self.state, view, events, self.rules, self.now)
        self.state, self.last = result.state, result
        self.ledger.extend(result.events)
        self.most_incidents = max(self.most_incidents, len(result.verdict.incidents))
        return result

    def run(self, seconds: float, *, every: float = 5.0) -> Step:
        """Healthy passes (of whatever the host now is) for a while."""
        end = self.uptime + seconds
        result = self.step()
        while self.uptime + every <= end:
            self.uptime += every
            result = self.step()
        return result

    def later(self, seconds: float) -> Step:
        """Judge once, that many seconds later."""
        self.uptime += seconds
        return self.step()

    def xid(self, index: int, number: int, *, source: Source = Source.KERNEL_LOG, history: bool = False) -> XidEvent:
        return XidEvent(at=self.now, source=source, slot=slot(index), xid=number, text=f"Xid {number}", history=history)

    def reboot(self) -> None:
        """Counters since driver load start again; the GPUs are what the test left."""
        self.booted += self.uptime + 60.0
        self.boot_id, self.uptime = f"{self.boot_id}+", 700.0
        self.view = View(boot_id=self.boot_id)

    def restart_daemon(self) -> None:
        """Everything but the ledger is forgotten."""
        state = State()
        for event in self.ledger:
            state = fold(state, event)
        self.state = replace(state, moments=Moments(unconfirmed=remembered(state, State())))
        self.view = View(boot_id=self.boot_id)

    def acknowledge(self, key: str) -> None:
        event = acknowledge(self.state, Key.parse(key), "root", self.now, self.boot_id)
        self.ledger.append(event)
        self.state = fold(self.state, event)

    def take(self, *events: Event) -> None:
        """Events that another part of the daemon brings."""
        for event in events:
            self.ledger.append(event)
            self.state = fold(self.state, event)

    def record_event(self, kind: str, key: Key | None = None, **data: str) -> None:
        """Record an event of this kind now."""
        self.take(Event(kind=kind, at=self.now, boot_id=self.boot_id, key=key, data=data))

    def checkpointed(self) -> None:
        """A restart after which only the checkpoint is left of the ledger."""
        self.ledger = list(checkpoint(self.state, self.now))
        self.restart_daemon()

    def days(self, number: float) -> None:
        """Let that many days pass without a pass."""
        self.uptime += number * 86_400.0

    def accept(self) -> None:
        """Accept the inventory as `gpuwarden inventory accept` does."""
        for event in accept(self.state, Sight.of(self.view, self.rules, self.now)):
            self.ledger.append(event)
            self.state = fold(self.state, event)

    @property
    def health(self) -> Health:
        assert self.last is not None
        return self.last.verdict.health

    @property
    def codes(self) -> Sequence[str]:
        return [finding.key.code for finding in self.findings]

    @property
    def findings(self) -> Sequence[Finding]:
        assert self.last is not None
        return self.last.verdict.findings
