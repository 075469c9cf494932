"""Which jobs are observed, pass by pass, and the events by which their past is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuwarden.health.host.memory import forgotten, job_learned, job_subject
from gpuwarden.health.jobs.activity import jobs_here, work
from gpuwarden.health.jobs.past import JobPast, learned
from gpuwarden.health.jobs.watch import Watch, after, begun, compared, is_due, is_mixed, unread
from gpuwarden.health.model import Event
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.jobs_facts import JobsFacts

JOB_STALLED = "job_stalled"
PATIENCE = 30.0
"""Seconds at least for which a fall goes on without a pass that shows it."""


def past_of(state: State, number: int, watch: Watch) -> JobPast | None:
    """What is known of the job on these GPUs."""
    past = state.host.jobs.get(str(number))
    return past if past is not None and past.slots == watch.slots else None


def tracked(state: State, sight: Sight) -> tuple[State, tuple[Event, ...]]:
    """The state with what a new pass of NVML shows of each job, and the events for pasts that are new, have changed or are over.

    While it is not known which jobs are here, nothing changes.
    """
    rule, jobs, at = sight.rules.checks.get(JOB_STALLED), sight.jobs, sight.view.nvml.at
    if rule is not None and not rule.enabled:
        return (replace(state, job_watches={}) if state.job_watches else state), ()
    if jobs is None or sight.nvml is None or at is None:
        return state, ()
    watches = dict(_watches(state, sight, jobs, at))
    if not watches and not state.job_watches and not state.host.jobs:
        return state, ()
    events = [forgotten(job_subject(name), sight.now, sight.view.boot_id) for name in _over(state, jobs)]
    for number, watch in watches.items():
        past = past_of(state, number, watch)
        if is_due(watch, past):
            new = learned(past, watch.slots, watch.minutes, watch.pause)
            mixed = new is not None and past is None and is_mixed(new, watch.minutes)
            watches[number] = compared(watch, again=mixed)
            if new is not None and not mixed:
                events.append(job_learned(str(number), new, sight.now, sight.view.boot_id))
    return replace(state, job_watches=watches), tuple(events)


def _watches(state: State, sight: Sight, jobs: JobsFacts, at: Stamp) -> Iterator[tuple[int, Watch]]:
    patience = max(PATIENCE, sight.rules.nvml_fresh_for)
    for number, here in jobs_here(state.pins, sight).items():
        watch = state.job_watches.get(number)
        if watch is None or watch.here.pids.keys() != here.pids.keys() or at.boottime < watch.at:
            watch = begun(here, at)
        elif at.boottime == watch.at:
            yield number, watch
            continue
        gpus, past = work(here, sight), past_of(state, number, watch)
        if gpus is None:
            yield number, unread(watch, here, at, patience)
        else:
            yield number, after(watch, here, gpus, at, past=past, cpu=cpu_times(jobs), patience=patience)


def _over(state: State, facts: JobsFacts) -> Iterator[str]:
    """Jobs that have ended, and those that were observed and are here no longer. A reader that has only begun may not know all."""
    ended = {job.id: job.ended is not None for job in facts.jobs}
    for name in state.host.jobs:
        number = int(name) if name.isdecimal() else -1
        if ended.get(number, number in state.job_watches):
            yield name


def cpu_times(facts: JobsFacts) -> Mapping[int, tuple[float, float]]:
    """By process, when its CPU time was read, and that time, seconds."""
    if facts.cpu_at is None:
        return {}
    return {one.pid: (facts.cpu_at, one.cpu_seconds) for one in facts.processes if one.cpu_seconds is not None}
