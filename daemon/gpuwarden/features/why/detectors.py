"""Follows jobs from step to step: when they begin and end, what they use, and why they ended."""

from __future__ import annotations

from dataclasses import replace
from operator import is_

from gpuwarden.features.why.following import following_of, with_following
from gpuwarden.features.why.idle import JOB_IDLE, job_idle
from gpuwarden.features.why.memory import memory_of
from gpuwarden.features.why.step import Step
from gpuwarden.health.detection import Detector
from gpuwarden.health.memory import State
from gpuwarden.health.model import Event
from gpuwarden.health.view import Sight
from gpuwarden_collectors.receivers.workloads_facts import WorkloadsFacts

QUIET_FOR = 5.0
"""Seconds for which a step without new readings does nothing."""


def follow(state: State, sight: Sight) -> tuple[State, tuple[Event, ...]]:
    """Return the state after this step, and the events of jobs that began, continued or ended."""
    memory, before = memory_of(state), following_of(state)
    if not (memory.epochs or before.live or before.done) and not _may_have_jobs(sight):
        return state, ()
    sources = (memory.epochs, memory.recent, sight.nvml, sight.jobs, sight.view.jobs.facts, sight.fresh(WorkloadsFacts))
    same = len(before.sources) == len(sources) and all(map(is_, before.sources, sources))
    if same and sight.now.boottime - before.at < QUIET_FOR:
        return state, ()  # a step between two passes
    step = Step(state, sight)
    began = sight.now.boottime if before.began is None else before.began
    after = replace(step.made(), sources=sources, at=sight.now.boottime, began=began)
    return with_following(step.state, after), tuple(step.writing.events)


def _may_have_jobs(sight: Sight) -> bool:
    jobs, workloads = sight.jobs, sight.fresh(WorkloadsFacts)
    return bool((jobs is not None and (jobs.jobs or jobs.processes)) or (workloads is not None and workloads.workloads))


DETECTORS: dict[str, Detector] = {JOB_IDLE: job_idle}
