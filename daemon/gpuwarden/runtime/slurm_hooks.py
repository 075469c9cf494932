"""What the daemon does for Slurm's scripts and jobs beside draining: the mark for the prolog, the job mapping, the hook's gate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gpuwarden.actuators.base import Actuator
from gpuwarden.actuators.hook_gate import HookGate
from gpuwarden.base.threads import detached
from gpuwarden.publish.files.job_mapping import JobMapping
from gpuwarden.publish.files.refuse_mark import RefuseMark
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.runtime.wiring import Site
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp


class SlurmHooks:
    """Files and answers for Slurm's prolog and health check. With simulated GPUs it does nothing."""

    def __init__(self, site: Site, actuators: Iterable[Actuator], clock: Clock) -> None:
        options, real = site.config.slurm, site.simulation is None
        self._gates = [actuator for actuator in actuators if isinstance(actuator, HookGate)]
        refuses = options.enabled and options.on_stale == "refuse" and site.config.mode == "enforce"
        self._mark = RefuseMark(site.config.state.dir, clock, wanted=refuses) if real else None
        folder = options.job_mapping_dir if real and options.enabled and options.jobs else None
        self._mapping = None if folder is None else JobMapping(folder, clock)

    def publish(self, snapshot: Snapshot) -> None:
        if self._mark is not None:
            self._mark.tend()
        if self._mapping is not None:
            self._mapping.publish(snapshot)

    def hook_asked(self) -> bool:
        """Return True if anything waits for the health check."""
        for gate in self._gates:
            gate.hook_ran()
        return bool(self._gates)

    def error(self, now: Stamp) -> str:
        """Faults of the mark and of the job mapping; empty if there is none."""
        return "; ".join(filter(None, (kept.error(now) for kept in (self._mark, self._mapping) if kept is not None)))

    async def stop(self) -> None:
        await asyncio.wait((detached("slurm files", self._close),), timeout=2.0)

    def _close(self) -> None:
        if self._mark is not None:
            self._mark.close(0.5)
        if self._mapping is not None:
            self._mapping.close(1.0)
