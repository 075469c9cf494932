"""Slurm as a part of the daemon, apart from drains: the mark for the prolog, the job mapping, the hook's gate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from gpuwarden.actuators.hook_gate import HookGate
from gpuwarden.base.threads import detached
from gpuwarden.features.slurm.control import slurm_verbs
from gpuwarden.features.slurm.job_mapping import JobMapping
from gpuwarden.features.slurm.refuse_mark import RefuseMark
from gpuwarden.health.components import Component, Source
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.control import Verb
from gpuwarden.runtime.part import Part, Service
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp


class SlurmHooks(Part):
    """Files and answers for Slurm's prolog and health check. With simulated GPUs it writes no file."""

    def __init__(self, site: Site, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        options, real = site.config.slurm, site.simulation is None
        self._gates = [actuator for actuator in service.actuators if isinstance(actuator, HookGate)]
        refuses = options.enabled and options.on_stale == "refuse" and site.config.mode == "enforce"
        self._mark = RefuseMark(site.config.state.dir, clock, wanted=refuses) if real else None
        folder = options.job_mapping_dir if real and options.enabled and options.jobs else None
        self._mapping = None if folder is None else JobMapping(folder, clock)

    def publish(self, snapshot: Snapshot) -> None:
        if self._mark is not None:
            self._mark.tend()
        if self._mapping is not None:
            self._mapping.publish(snapshot)

    def verbs(self) -> Mapping[str, Verb]:
        service = self._service
        return slurm_verbs(service.holder, service.readers.read_everything, self._hook_asked, self._clock)

    def _hook_asked(self) -> None:
        """Record that the health check has run, which releases a drain that waits for it."""
        for gate in self._gates:
            gate.hook_ran()
        if self._gates:
            self._service.enforcement.hurry()

    def errors(self) -> Mapping[Component, Source]:
        return {Component.SLURM: self._error}

    def _error(self, now: Stamp) -> str:
        """Return faults of the mark and of the job mapping; empty if there are none."""
        return "; ".join(filter(None, (kept.error(now) for kept in (self._mark, self._mapping) if kept is not None)))

    async def close(self) -> None:
        await asyncio.wait((detached("slurm files", self._close),), timeout=2.0)

    def _close(self) -> None:
        if self._mark is not None:
            self._mark.close(0.5)
        if self._mapping is not None:
            self._mapping.close(1.0)


part = SlurmHooks
