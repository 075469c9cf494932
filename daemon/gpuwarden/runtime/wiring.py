"""What the configuration means on this host: the arguments of the daemon's parts, determined once before anything
starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden import __version__
from gpuwarden.actuators.base import Actuator
from gpuwarden.actuators.reconciler import Limits
from gpuwarden.actuators.registry import Detail, actuators
from gpuwarden.base.paths import LEDGER
from gpuwarden.collect.collectors import Sources
from gpuwarden.collect.termination_sources import chosen
from gpuwarden.config.model import Config
from gpuwarden.config.notify import NotifyOptions
from gpuwarden.engine.enforcement import FIRST_READ, EnforcementOptions
from gpuwarden.features import parts
from gpuwarden.health.view import Rules
from gpuwarden.notify.messages import Origin
from gpuwarden.notify.notifications import Notifications
from gpuwarden.publish.metrics.chosen import chosen_series
from gpuwarden.publish.metrics.exposition import Holder, Renderer
from gpuwarden.publish.metrics.hpc_jobs import HpcJobs
from gpuwarden.publish.snapshot import Service, Snapshot
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.source import CloudSource
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.host import MachineIdentity, boot_id, contained, identify, machine_type
from gpuwarden_collectors.registry import HOST_COLLECTORS
from gpuwarden_collectors.slurm.client import SlurmClient
from gpuwarden_collectors.slurm.options import SlurmOptions

if TYPE_CHECKING:  # imported where it is used
    from gpuwarden.collect.simulation import Simulation

ROOT = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The configuration and the facts of this host.

    `simulation` exists only with `--simulate`; no path then refers to a real GPU or to the real kernel log. `slurm`:
    None without Slurm, and with simulated GPUs. It is the process's only client; the creator of the site closes it
    (`close`).
    """

    config: Config
    boot_id: str
    machine: MachineIdentity
    sources: Sources
    rules: Rules
    simulation: Simulation | None = None
    slurm: SlurmClient | None = None

    @classmethod
    def of(cls, config: Config) -> Site:
        nvml, pci = config.collectors.nvml, config.collectors.pci
        simulation = None
        sysfs, kmsg = config.paths.sysfs, config.paths.kmsg
        host = config.paths.host or ROOT
        machine = identify(config.paths.sysfs, host / "etc", host / "var/lib", config.paths.proc / "self/mountinfo")
        if nvml.simulate:
            from gpuwarden.collect.simulation import Simulation  # noqa: PLC0415 - 0.1 MiB, only with --simulate

            simulation = Simulation(config.run.dir / "simulation", nvml.simulate)
            nvml = replace(nvml, simulate_dir=str(simulation.directory))
            machine = MachineIdentity(machine_id=f"simulated-{nvml.simulate}")
            sysfs, kmsg = simulation.sysfs, simulation.kmsg
        slurm = None if simulation else _slurm_client(config.slurm)
        sources = Sources(
            collectors=replace(config.collectors, nvml=nvml),
            sysfs=sysfs,
            proc=config.paths.proc,
            host=config.paths.host,
            kmsg=kmsg if config.collectors.kernel_log.enabled else None,
            plugins=config.plugins,
            slurm=config.slurm,
            slurm_client=slurm,
            gpus_alone=simulation is not None,
            run_dir=config.run.dir,
            watched_containers=config.jobs.docker if config.jobs.stalled_containers else None,
            of_features=[partial(feature.source, config) for feature in parts("sources").values()],
        )
        dcgm = config.collectors.dcgm
        rules = Rules(
            expected_gpus=config.inventory.expected_gpus,
            expected=config.expected,
            contained=config.paths.host is not None or contained(config.paths.proc),
            machine_type="" if simulation else machine_type(config.paths.sysfs),
            nvml_fresh_for=fresh_for(nvml.interval, nvml.deadline),
            pci_fresh_for=fresh_for(pci.interval, pci.deadline),
            dcgm_fresh_for=fresh_for(dcgm.interval, dcgm.deadline) if dcgm.enabled else 0.0,
            host_fresh_for=max(
                fresh_for(source.interval, source.deadline) for source in map(config.collectors.of, HOST_COLLECTORS)
            ),
            off=config.collectors.off,
            stalled_after=config.jobs.stalled_after,
            checks=config.checks,
            xids=config.xids,
            sxids=config.sxids,
            limits=config.limits,
        )
        return cls(
            config=config,
            boot_id=boot_id(config.paths.proc),
            machine=machine,
            sources=sources,
            rules=rules,
            simulation=simulation,
            slurm=slurm,
        )

    @property
    def ledger(self) -> Path:
        return self.config.state.dir / LEDGER

    def actuators(self, clock: Clock, detail: Detail = str) -> tuple[Actuator, ...]:
        """The configured actuators. Empty with simulated GPUs: no simulated fault reaches a scheduler."""
        return () if self.simulation is not None else actuators(self.config, self.slurm, clock, detail)

    def notifications(self) -> Notifications:
        """The configured notifications. Without receivers if GPUs are simulated, so that simulated faults are not
        reported.
        """
        options = self.config.notify if self.simulation is None else NotifyOptions()
        origin = Origin(
            node=self.config.node, mode=self.config.mode, boot_id=self.boot_id, runbooks=self.config.publish.runbooks
        )
        return Notifications(options, origin, self.config.run.dir, names=self.config.publish.publish_jobs)

    def notice_sources(self, clock: Clock) -> tuple[CloudSource, ...]:
        """The configured notice sources. Empty with simulated GPUs, which send no requests to a cloud."""
        if self.simulation is not None:
            return ()
        return chosen(self.config.termination, self.config.paths.sysfs, clock)

    async def close(self) -> None:
        """Close the client of Slurm."""
        if self.slurm is not None:
            await self.slurm.close()

    @property
    def enforcement(self) -> EnforcementOptions:
        policy, breaker = self.config.policy, self.config.breaker
        horizon = self.config.termination.horizon
        return EnforcementOptions(
            settings=replace(policy, enforce=self.config.mode == "enforce", horizon=horizon),
            limits=Limits(budget=breaker, recount_after=breaker.recount_after),
            first_read=min(FIRST_READ, policy.look_often / 12.0),
        )

    @property
    def instance(self) -> str:
        """The identifier that tells this machine from one that replaces it."""
        return self.machine.instance or self.machine.dmi or self.machine.machine_id

    def service(self, started: Stamp) -> Service:
        return Service(
            node=self.config.node,
            boot_id=self.boot_id,
            started=started,
            version=__version__,
            mode=self.config.mode,
            simulated=self.simulation is not None,
            interval=self.sources.nvml.interval,
            fresh_for=self.rules.nvml_fresh_for,
            publish_jobs=self.config.publish.publish_jobs,
            runbooks=self.config.publish.runbooks,
        )

    def holder(self, snapshot: Snapshot, clock: Clock) -> Holder:
        publish = self.config.publish
        folder = publish.hpc_job_mapping_dir
        jobs = None if folder is None else HpcJobs(folder, lambda: clock().boottime)
        renderer = Renderer(
            hostname_label=publish.hostname_label, mig=publish.mig_series, series=chosen_series(publish.series)
        )
        return Holder(renderer, snapshot, jobs)

    def about(self) -> Mapping[str, str | bool]:
        simulated = self.simulation is not None
        return {"node": self.config.node, "mode": self.config.mode, "simulated": simulated, "version": __version__}


def _slurm_client(options: SlurmOptions) -> SlurmClient | None:
    if not options.enabled:
        return None
    return SlurmClient(conf=options.conf, folder=options.folder, timeout=options.timeout, node=options.node)


def fresh_for(interval: float, deadline: float) -> float:
    """Seconds that an observation counts as fresh: two passes may fail, or one may take all of its deadline."""
    return max(3 * interval, deadline + interval)
