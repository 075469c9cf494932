"""A GPU host with all that is beside its GPUs: ports, mounts, memory, processes, services, site checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpuwarden.health.judge import Step
from gpuwarden.health.model import Finding
from gpuwarden.health.view import Rules
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import NvmlFacts
from gpuwarden_collectors.host_facts import (
    AdapterFacts,
    InfinibandFacts,
    MemoryController,
    MemoryFacts,
    MountFacts,
    PluginFacts,
    PluginResult,
    PluginState,
    PortFacts,
    ProcessesFacts,
    ServiceFacts,
    ServicesFacts,
    StorageFacts,
)
from gpuwarden_collectors.pci_facts import PciFacts
from support.hosts import Host

GIB = 1 << 30
FABRIC_MANAGER = "nvidia-fabricmanager.service"


def port(device: str, **more: Any) -> PortFacts:
    facts: dict[str, Any] = {"state": "active", "rate_gbps": 400.0, "link_downed": 0, "link_layer": "InfiniBand"}
    return PortFacts(device=device, port=1, **{**facts, **more})


def mount(path: str, **more: Any) -> MountFacts:
    numbers: dict[str, Any] = {
        "bytes_total": 1000 * GIB, "bytes_free": 500 * GIB, "bytes_available": 450 * GIB,
        "inodes_total": 1000, "inodes_free": 900, "type": "ext4", "source": "/dev/sda1",
    }  # fmt: skip
    return MountFacts(path=path, **{**numbers, **more})


def hung(path: str, **more: Any) -> MountFacts:
    return MountFacts(path=path, source="/dev/sda1", hung_for=7.0, **more)


def service(unit: str = FABRIC_MANAGER, **more: Any) -> ServiceFacts:
    facts: dict[str, Any] = {"load": "loaded", "active": "active", "sub": "running", "enabled": True, "restarts": 0}
    return ServiceFacts(unit=unit, **{**facts, **more})


def memory(available: int = 500 * GIB, uncorrected: int = 0) -> MemoryFacts:
    controllers = (MemoryController(name="mc0", corrected=0, uncorrected=uncorrected),)
    return MemoryFacts(total_bytes=2000 * GIB, available_bytes=available, controllers=controllers)


@dataclass
class Beside:
    """What the collectors find in the next pass; an outcome other than observed in place of facts, None for no pass."""

    infiniband: InfinibandFacts | PassOutcome | None
    storage: StorageFacts | PassOutcome | None
    memory: MemoryFacts | PassOutcome | None
    processes: ProcessesFacts | PassOutcome | None
    services: ServicesFacts | PassOutcome | None
    plugin: PluginFacts | PassOutcome | None


class WholeHost(Host):
    """`beside` is what the next pass finds; tests change it in place. Two GPUs, two ports, two mounts, two services."""

    def __init__(self, gpus: int = 2, *, uptime: float = 10_000.0, rules: Rules | None = None) -> None:
        super().__init__(gpus, uptime=uptime, rules=rules)
        self.adapters: tuple[AdapterFacts, ...] = ()
        self.beside = Beside(
            infiniband=InfinibandFacts(ports=(port("mlx5_0"), port("mlx5_1"))),
            storage=StorageFacts(mounts=(mount("/"), mount("/data", expected=True))),
            memory=memory(),
            processes=ProcessesFacts(fabric_manager=True),
            services=ServicesFacts(services=(service(), service("nvidia-persistenced.service"))),
            plugin=PassOutcome.ABSENT,
        )

    def ports(self, *ports: PortFacts) -> None:
        self.beside.infiniband = InfinibandFacts(ports=ports, adapters=self.adapters)

    def mounts(self, *mounts: MountFacts) -> None:
        self.beside.storage = StorageFacts(mounts=mounts)

    def services(self, *services: ServiceFacts, process: bool | None = False) -> None:
        """`process`: whether a process of the fabric manager runs where its unit does not, as in a container; None: they are hidden."""
        self.beside.services = ServicesFacts(services=services)
        active = any(each.unit == FABRIC_MANAGER and each.active == "active" for each in services)
        if isinstance(self.beside.processes, ProcessesFacts):
            self.beside.processes = replace(self.beside.processes, fabric_manager=active or process)

    def checked(self, *names: str, unknown_runs: int = 0, **states: PluginState) -> None:
        """Site checks by name: those in `states` have just run, `names` not yet."""
        results = tuple(
            PluginResult(name=name, state=state, at=self.now, text="so", unknown_runs=unknown_runs, fresh_for=210.0)
            for name, state in states.items()
        )
        self.beside.plugin = PluginFacts(names=(*names, *states), results=results)

    def step(
        self,
        *events: HostEvent,
        nvml: Observation[NvmlFacts] | None = None,
        pci: Observation[PciFacts] | None = None,
        collect: bool = True,
    ) -> Step:
        if collect:
            view = replace(self.view, boot_id=self.boot_id)
            for name in Beside.__dataclass_fields__:
                if (report := getattr(self.beside, name)) is not None:
                    view = view.after(self._pass(name, report))
            self.view = view
        return super().step(*events, nvml=nvml, pci=pci, collect=collect)

    def unread(self, collector: str) -> Observation[Any]:
        """Return a pass of this collector that failed."""
        return self._pass(collector, PassOutcome.FAILED)

    def _pass(self, collector: str, report: object) -> Observation[Any]:
        outcome = report if isinstance(report, PassOutcome) else PassOutcome.OBSERVED
        facts = None if isinstance(report, PassOutcome) else report
        error = "" if outcome is PassOutcome.OBSERVED else "no such thing"
        return Observation(
            collector=collector, outcome=outcome, started=self.now, finished=self.now, facts=facts, error=error
        )

    def found(self, code: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.key.code == code]

    @property
    def ids(self) -> set[str]:
        return {str(finding.key) for finding in self.findings}
