"""The evacuation as a part of the daemon."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import translate
from typing import Any

from gpuwarden.config.model import Config
from gpuwarden.engine.journal import Step
from gpuwarden.features.evacuation.acknowledge import Acknowledge
from gpuwarden.features.evacuation.acknowledgements import Acknowledgements
from gpuwarden.features.evacuation.active_notices import ActiveNotices, active_notices
from gpuwarden.features.evacuation.azure_approval import AzureApproval
from gpuwarden.features.evacuation.driver import Evacuation
from gpuwarden.features.evacuation.job_scan import JobScan
from gpuwarden.features.evacuation.policy.delivery import DeliveryRules, SiteRule
from gpuwarden.features.evacuation.policy.plan import EvacuationSettings
from gpuwarden.features.evacuation.shown import NAME
from gpuwarden.features.evacuation.slurm.job_scan import SlurmJobScan
from gpuwarden.health.model import Event
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.jobs import Caller, JobVerb
from gpuwarden.publish.sockets.unix_socket import VerbError
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.metadata import Metadata
from gpuwarden_collectors.cloud.registry import AZURE
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts, Stamp
from gpuwarden_collectors.process_stat import is_there
from gpuwarden_collectors.receivers.labels import Labels
from gpuwarden_collectors.receivers.reader import ReceiversReader
from gpuwarden_collectors.slurm.options import conf_path


def part(site: Site, service: Service, clock: Clock) -> Part:
    """Return the evacuation. With simulated GPUs no job is signalled."""
    return NoEvacuation() if site.simulation is not None else EvacuationPart(site, service, clock)


class NoEvacuation(Part):
    """The part with simulated GPUs: it refuses acknowledgements."""

    def job_verbs(self) -> Mapping[str, JobVerb]:
        async def acknowledge(_: dict[str, Any], __: Caller) -> Any:
            raise VerbError("with simulated GPUs there is nothing to acknowledge")

        return {"acknowledge": acknowledge}


class EvacuationPart(Part):
    """The evacuation, connected to the daemon's engine, journal and ledger."""

    def __init__(self, site: Site, service: Service, clock: Clock) -> None:
        config = site.config
        self._site = site
        self._service = service
        self._gpu_processes: GpuProcesses = {}
        reader = ReceiversReader(config.paths.proc, containers=Labels(config.jobs.docker), clock=clock)
        slurm = None
        if site.slurm is not None:
            slurm = SlurmJobScan(site.slurm, config.run.dir / "signals", conf_path(config.slurm, os.environ))
        self._evacuation = Evacuation(
            settings(config),
            JobScan(reader, slurm, lambda: frozenset().union(*self._gpu_processes.values())),
            Acknowledgements(config.run.dir, config.paths.proc, boot_id=site.boot_id, clock=clock),
            approval(config),
            active=self._active,
            enforce=config.mode == "enforce",
            append=self._append,
            write=self._write,
            committed=self._committed,
            names=config.publish.publish_jobs,
            boot_id=site.boot_id,
            clock=clock,
        )
        self.projections = (self._evacuation,)
        self.outputs = (self._evacuation.appended,)

    def _append(self, events: Sequence[Event]) -> None:
        self._service.journal.append(events, step=Step.SOON)

    def _write(self, events: Sequence[Event]) -> None:
        self._service.journal.append(events)

    async def _committed(self) -> bool:
        return await self._service.ledger.commit()

    def job_verbs(self) -> Mapping[str, JobVerb]:
        evacuation = self._evacuation
        return {"acknowledge": Acknowledge(evacuation.current, evacuation.membership_of, evacuation.acknowledged).verb}

    def run(self) -> None:
        self._evacuation.run()

    async def stop(self) -> None:
        await self._evacuation.stop()

    def settled(self) -> bool:
        return self._evacuation.settled()

    async def announced(self) -> str:
        return await self._evacuation.signalled()

    def step(self) -> None:
        facts = self._service.engine.view.nvml.facts
        self._gpu_processes = gpu_processes(self._gpu_processes, () if facts is None else facts.gpus)
        self._evacuation.follow()

    def shown(self, snapshot: Snapshot, now: Stamp) -> Snapshot:  # noqa: ARG002 - it has no age
        return replace(snapshot, features={**snapshot.features, NAME: self._evacuation.shown()})

    def _active(self, now: Stamp) -> ActiveNotices:
        enforcement, config = self._service.enforcement, self._site.config
        return active_notices(
            enforcement.state,
            self._service.verdict,
            enforcement.node_states,
            self._gpu_processes,
            going_on=self._evacuation.current(),
            slurm=config.slurm.enabled,
            excludes=config.excludes,
            ignore_gpus=config.jobs.failing_gpu == "ignore",
            horizon=config.termination.horizon,
            instance=self._site.instance,
            now=now,
        )


GpuProcesses = Mapping[str, frozenset[int]]
"""PIDs by the slot of their GPU."""
_CALL = "nvmlDeviceGetComputeRunningProcesses"


def gpu_processes(before: GpuProcesses, gpus: Iterable[GpuFacts]) -> GpuProcesses:
    """Return the PIDs on each GPU, by slot. A GPU without an answer keeps those that still exist: PIDs are reused."""
    listed = {gpu.slot: frozenset(process.pid for process in gpu.processes) for gpu in gpus if _says(gpu)}
    return listed | {slot: frozenset(filter(is_there, pids)) for slot, pids in before.items() if slot not in listed}


def _says(gpu: GpuFacts) -> bool:
    return gpu.answer is GpuAnswer.OK and not any(error.call.startswith(_CALL) for error in gpu.errors)


def settings(config: Config) -> EvacuationSettings:
    """Return how jobs are signalled and requeued by `[jobs]`, and whether an end may be approved early."""
    jobs, azure = config.jobs, config.termination.of(AZURE)
    rules = tuple(
        SiteRule(signal=rule.signal.upper(), partition=rule.partition, name=translate(rule.name) if rule.name else "")
        for rule in jobs.rules.values()
    )
    return EvacuationSettings(
        delivery=DeliveryRules(default=jobs.signal.upper(), rules=rules),
        requeue=jobs.requeue,
        final_node_state=jobs.final_node_state,
        requeue_for_gpu=jobs.failing_gpu == "requeue",
        slurm=config.slurm.enabled,
        approve=azure.approve,
        signal_again=jobs.signal_again,
    )


def approval(config: Config) -> AzureApproval | None:
    """Return the client for early approval (Azure scheduled events); None unless it is enabled."""
    azure = config.termination.of(AZURE)
    if not azure.approve:
        return None
    return AzureApproval(Metadata(azure.endpoint or AZURE.endpoint, azure.timeout))
