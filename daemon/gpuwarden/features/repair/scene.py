"""Reads the state of the running daemon for the preconditions of a step."""

from __future__ import annotations

import time
from dataclasses import replace

from gpuwarden.features.repair.memory import memory_of
from gpuwarden.features.repair.model import StepKind
from gpuwarden.features.repair.options import RepairOptions
from gpuwarden.features.repair.plan import DAY, Plan, plan
from gpuwarden.features.repair.preconditions import Scene
from gpuwarden.health.model import Finding
from gpuwarden.policy.situation import failing
from gpuwarden.runtime.part import Service
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import GpuFacts, Stamp

MIG = "MIG is on: a reset would delete its instances"


class Sight:
    """Reads the daemon's state. `bundles`: each failure gets a bundle. `alone`: nothing counts the fleet's repairs."""

    def __init__(
        self, service: Service, options: RepairOptions, *, enforce: bool, bundles: bool, alone: bool, clock: Clock
    ) -> None:
        self._service = service
        self.options = options
        self._enforce = enforce
        self._bundles = bundles
        self._alone = alone
        self._clock = clock

    def scene(self, *, ordered: bool = False) -> Scene:
        service, now = self._service, self._clock()
        seen = service.engine.view.nvml
        nvml = seen.facts
        gpus = () if nvml is None or nvml.problem is not None else nvml.gpus
        fresh = seen.fresh(now, service.engine.rules.nvml_fresh_for) is not None
        local = time.localtime(now.wall)
        return Scene(
            now=now,
            enforce=self._enforce,
            remembered=service.journal.recalled,
            verdict=service.verdict,
            policy=service.enforcement.state,
            memory=memory_of(service.engine.state),
            node_states=service.enforcement.node_states,
            breaker=service.enforcement.breaker,
            processes={gpu.slot: len(gpu.processes) for gpu in gpus} if gpus and fresh else None,
            set_up={gpu.slot: f"GPU {gpu.slot}: {why}" for gpu in gpus if (why := _not_reset(gpu))},
            bundles=self._bundles,
            quiet=self.options.quiet(local.tm_hour * 60 + local.tm_min),
            ordered=ordered,
            fleet=self._own_count(now) if self._alone else "",
        )

    def _own_count(self, now: Stamp) -> str:
        """Return why this node was repaired often enough within a day, if only it counts; "" if it was not."""
        tries = memory_of(self._service.engine.state).tries
        lately = sum(attempt.counts and attempt.at.wall > now.wall - DAY for attempt in tries)
        most = self.options.per_day
        return (
            f"{lately} repairs of this node began within 24 hours, and repair.per_day allows {most}"
            if lately >= most
            else ""
        )

    def plans(self) -> list[Plan]:
        """Return a plan for each failure to act on that follows from no other."""
        service = self._service
        findings = failing(service.enforcement.state, service.verdict)
        return [self._plan(finding) for finding in findings if finding.caused_by is None]

    def plan_for(self, name: str) -> Plan | None:
        """Return the plan for a finding by its id; None if there is no such finding."""
        verdict = self._service.verdict
        match = next((finding for finding in (*verdict.findings, *verdict.silenced) if str(finding.key) == name), None)
        return None if match is None else self._plan(match)

    def again(self, before: Plan) -> Plan | None:
        """Return the present plan for the same finding, with the step as it was fitted to the host.

        If the finding has another next step by now, the plan has none: it is planned again.
        """
        now = self.plan_for(str(before.finding.key))
        if now is None or now.step is None or before.step is None:
            return now
        if now.step != before.step and (now.step.kind, before.step.kind) != (StepKind.RESET_GPU, StepKind.RESET_ALL):
            return replace(now, step=None, why=f"its next step is now {now.step}")
        return replace(now, step=before.step)

    def _plan(self, finding: Finding) -> Plan:
        service = self._service
        return plan(finding, service.engine.state, service.verdict, self.options.steps, self._clock())


def _not_reset(gpu: GpuFacts) -> str:
    return MIG if gpu.readings.mig_mode else ""
