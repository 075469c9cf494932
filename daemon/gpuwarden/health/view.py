"""The newest observation of each collector, and the newest facts that are still fresh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Generic, Literal, TypeVar

from gpuwarden.health.host.limits import Limits
from gpuwarden.health.model import Advice, Severity
from gpuwarden_collectors.base import NamedFacts, Observation, PassOutcome
from gpuwarden_collectors.dataclass import dataclass, replace
from gpuwarden_collectors.dcgm.facts import DcgmFacts
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, NvmlFacts, Stamp
from gpuwarden_collectors.options import bounded
from gpuwarden_collectors.pci_facts import PciDevice, PciFacts, PciKind
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts

Facts = TypeVar("Facts")
Named = TypeVar("Named", bound=NamedFacts)


@dataclass(frozen=True, slots=True)
class Seen(Generic[Facts]):
    """One collector: its newest pass and its newest facts."""

    latest: Observation[Facts] | None = None
    """The newest pass with any outcome; None before the first."""
    facts: Facts | None = None
    """The newest facts; None before the first, and while the source is absent."""
    at: Stamp | None = None
    """When the pass of these facts ended."""
    started: Stamp | None = None
    """When that pass began."""

    def after(self, observation: Observation[Facts]) -> Seen[Facts]:
        if observation.outcome is PassOutcome.OBSERVED:
            return Seen(observation, observation.facts, observation.finished, observation.started)
        if observation.outcome is PassOutcome.ABSENT:
            return Seen(observation, None, observation.finished)
        return Seen(observation, self.facts, self.at, self.started)

    def fresh(self, now: Stamp, within: float) -> Facts | None:
        if self.facts is None or self.at is None or now.boottime - self.at.boottime > within:
            return None
        return self.facts

    @property
    def outcome(self) -> PassOutcome | None:
        return None if self.latest is None else self.latest.outcome


_NEVER: Seen[Any] = Seen()

LONGEST = 7 * 86_400.0
"""Longest rise or fall time in seconds that a site may set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRule:
    """Settings of one condition, by its code ([conditions.md](conditions.md)). A key that is not set has the value in that table."""

    enabled: bool = True
    """Check for this condition."""
    shadow: bool | None = None
    """Report the condition, but let no action follow."""
    rise: float | None = bounded(None, 0.0, LONGEST)
    """How long the condition must be observed before it is a finding. A line of the kernel log counts as observed for 45 s, an Xid, SXid or PCIe error
    for 5 s: with a longer rise only lines that keep coming make a finding.
    """
    fall: float | None = bounded(None, 0.0, LONGEST)
    """How long the condition must be checked and not observed before the finding ends."""
    severity: Severity | None = None
    """Severity of the finding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XidRule:
    """Settings of one Xid or SXid, by its number ([xids.md](xids.md)). A key that is not set has the value in that table."""

    severity: Literal["", "record", "warning", "failure"] = ""
    """Severity of its finding. `record`: the Xid is counted and makes no finding."""
    advice: Advice | None = None
    """What an operator is to do about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedSettings:
    """Settings that every GPU of this host must have (else the finding `gpu_misconfigured`). One that is not given must only be the same on all GPUs."""

    persistence: Literal["", "on", "off"] = ""
    """Persistence mode."""
    mig: Literal["", "on", "off"] = ""
    """MIG mode."""
    power_limit_watts: int | None = bounded(None, 10, 10_000)
    """Power limit in watts, both the configured and the enforced one, within 5 %."""
    application_clock_sm_mhz: int | None = bounded(None, 100, 10_000)
    """Application clock of the SMs. Locked clocks cannot be read; they only appear as a reason for low clocks."""
    application_clock_memory_mhz: int | None = bounded(None, 100, 20_000)
    """Application clock of the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules of the site. The graces cover a driver reload, a GPU reset, a MIG change, and a slow boot."""

    expected_gpus: int | None = None
    """Expected number of GPUs; None: as learned."""
    expected: ExpectedSettings = field(default_factory=ExpectedSettings)
    """Settings that every GPU must have."""
    contained: bool = False
    """The daemon runs in a container, where a failing NVML does not mean that the host's fails."""
    machine_type: str = ""
    """`vendor/product` of this machine from the firmware or its cloud (`machine_types.py`)."""
    nvml_fresh_for: float = 15.0
    """Seconds for which facts of NVML count."""
    pci_fresh_for: float = 30.0
    """Seconds for which facts of the PCI bus count."""
    dcgm_fresh_for: float = 45.0
    """Seconds for which facts of DCGM count; 0: DCGM is not read here."""
    host_fresh_for: float = 180.0
    """Seconds for which facts of the other collectors count."""
    missing_grace: float = 30.0
    """Seconds for which a GPU may be missing from NVML."""
    driver_grace: float = 120.0
    """Seconds for which the driver may list no GPU at all."""
    boot_grace: float = 600.0
    """Seconds of uptime in which a driver may still be loading."""
    unresponsive_after: float = 20.0
    """Seconds without an answer after which the driver is unresponsive."""
    unresponsive_misses: int = 2
    """Deadlines that the driver must have missed for that."""
    off: tuple[str, ...] = ()
    """Disabled collectors other than NVML, PCI and DCGM. Their findings end."""
    stalled_after: float = 240.0
    """Seconds for which the activity of a job must stay low before it counts as stalled."""
    checks: Mapping[str, CheckRule] = field(default_factory=dict)
    """Rules by code of the condition."""
    xids: Mapping[str, XidRule] = field(default_factory=dict)
    """Rules by number of the Xid."""
    sxids: Mapping[str, XidRule] = field(default_factory=dict)
    """Rules by number of the SXid."""
    limits: Limits = field(default_factory=Limits)
    """Limits above which disk, memory and swap count as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The host as last observed."""

    boot_id: str
    """The running boot."""
    passes: Mapping[str, Seen[Any]] = field(default_factory=dict)
    """By name of the collector, for those that have made a pass."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Error of each component that does not work, by name (see `Component`)."""
    log_read: bool = True
    """Since the daemon's start the kernel log was read from the known position to its end, and no line was lost."""

    def seen(self, facts: type[Named]) -> Seen[Named]:
        """Return the newest pass and facts of the collector of these facts."""
        return self.passes.get(facts.collector, _NEVER)

    @property
    def nvml(self) -> Seen[NvmlFacts]:
        return self.seen(NvmlFacts)

    @property
    def pci(self) -> Seen[PciFacts]:
        return self.seen(PciFacts)

    @property
    def dcgm(self) -> Seen[DcgmFacts]:
        return self.seen(DcgmFacts)

    @property
    def jobs(self) -> Seen[JobsFacts]:
        return self.seen(JobsFacts)

    def after(self, observation: Observation[Any]) -> View:
        name = observation.collector
        seen = self.passes.get(name, _NEVER).after(observation)
        return replace(self, passes={**self.passes, name: seen})


@dataclass(frozen=True, slots=True)
class Sight:
    """A view at `now` without stale facts: the input of detectors. Facts are None if there are no fresh ones."""

    now: Stamp
    """The instant of the step."""
    rules: Rules
    """The rules in force."""
    view: View
    """The whole view, stale facts included."""
    nvml: NvmlFacts | None
    """Facts of NVML."""
    gpus: Mapping[str, GpuFacts]
    """NVML's GPUs by slot; empty if NVML is not fresh."""
    answering: tuple[GpuFacts, ...]
    """GPUs with valid readings."""
    devices: Mapping[str, PciDevice] | None
    """GPUs on the PCI bus by slot, including those of a foreign driver (vfio); None if the bus could not be read."""
    dcgm: DcgmFacts | None = None
    """Facts of DCGM."""
    jobs: JobsFacts | None = None
    """Facts of the jobs."""

    @classmethod
    def of(cls, view: View, rules: Rules, now: Stamp) -> Sight:
        nvml = view.nvml.fresh(now, rules.nvml_fresh_for)
        pci = view.pci.fresh(now, rules.pci_fresh_for)
        devices = None if pci is None else {d.slot: d for d in pci.devices if d.kind is PciKind.GPU}
        if nvml is not None and devices:
            nvml = _with_hung_named(nvml, devices)
        gpus = {} if nvml is None else {gpu.slot: gpu for gpu in nvml.gpus if gpu.slot}
        answering = tuple([facts for facts in gpus.values() if facts.answer is GpuAnswer.OK])
        if devices == {} and answering:
            devices = None  # a container's sysfs has no devices: rely on NVML
        return cls(
            now,
            rules,
            view,
            nvml,
            gpus,
            answering,
            devices,
            dcgm=view.dcgm.fresh(now, rules.dcgm_fresh_for),
            jobs=view.jobs.fresh(now, rules.host_fresh_for),
        )

    def fresh(self, facts: type[Named]) -> Named | None:
        """Return the newest facts of a host collector, or None if they are stale."""
        return self.view.seen(facts).fresh(self.now, self.rules.host_fresh_for)


def _with_hung_named(nvml: NvmlFacts, devices: Mapping[str, PciDevice]) -> NvmlFacts:
    """Return the facts with the addresses of GPUs that hung before NVML could return them, where exactly their devices are
    left on the bus. NVML numbers GPUs by address.
    """
    nameless = [gpu for gpu in nvml.gpus if not gpu.slot]
    if not nameless or any(gpu.answer is not GpuAnswer.HUNG for gpu in nameless):
        return nvml
    named = {gpu.slot for gpu in nvml.gpus}
    left = sorted(slot for slot, device in devices.items() if not foreign(device) and slot not in named)
    if len(left) != len(nameless):
        return nvml
    slots = iter(left)
    return replace(nvml, gpus=tuple(gpu if gpu.slot else replace(gpu, slot=next(slots)) for gpu in nvml.gpus))


OUR_DRIVERS = ("nvidia", "", "nouveau")
"""Drivers of expected GPUs: NVIDIA's, none yet, and nouveau, which NVIDIA's replaces."""


def foreign(device: PciDevice | None) -> bool:
    """Return True if the device's driver assigns the GPU to another owner (vfio-pci, a hypervisor's)."""
    return device is not None and device.driver not in OUR_DRIVERS
