"""Follows the observed jobs from pass to pass, and makes the events that store their past."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from gpuwarden.features.job_stall import memory
from gpuwarden.features.job_stall.activity import CONTAINER, container_name, jobs_here, port_traffic, work
from gpuwarden.features.job_stall.past import JobPast, learned
from gpuwarden.features.job_stall.watch import Watch, after, begun, compared, is_due, is_mixed, unread
from gpuwarden.health.model import Event
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.watched_facts import ContainersFacts

JOB_STALLED, JOB_HUNG = "job_stalled", "job_hung"
PATIENCE = 30.0
"""Least seconds for which a fall continues without a pass that shows it."""


_NAME = "job_stall"


def watches_of(state: State) -> Mapping[str, Watch]:
    """Return the jobs under observation, by number or container."""
    watches: Mapping[str, Watch] = state.moments.features.get(_NAME, {})
    return watches


def _with(state: State, watches: Mapping[str, Watch]) -> State:
    return replace(state, moments=replace(state.moments, features={**state.moments.features, _NAME: watches}))


def pasts_of(state: State) -> memory.Pasts:
    pasts: memory.Pasts = state.features.get(_NAME, {})
    return pasts


def past_of(state: State, name: str, watch: Watch) -> JobPast | None:
    """Return the past of the job on these GPUs, or None if it is not known."""
    past = pasts_of(state).get(name)
    return past if past is not None and past.slots == watch.slots else None


def is_known(name: str, sight: Sight) -> bool:
    """Return True if the jobs, or the containers, on this host could be read."""
    return sight.fresh(ContainersFacts) is not None if name.startswith(CONTAINER) else sight.jobs is not None


def follow(state: State, sight: Sight) -> tuple[State, tuple[Event, ...]]:
    """Return the state after a new pass of NVML, and events for pasts that are new, have changed or have ended."""
    rules, at = [sight.rules.checks.get(code) for code in (JOB_STALLED, JOB_HUNG)], sight.view.nvml.at
    if all(rule is not None and not rule.enabled for rule in rules):
        return (_with(state, {}) if watches_of(state) else state), ()
    if sight.nvml is None or at is None:
        return state, ()
    watches = dict(_watches(state, sight, at))
    if not watches and not watches_of(state) and not pasts_of(state):
        return state, ()
    events = [memory.over(name, sight.now, sight.view.boot_id) for name in _over(state, sight)]
    for name, watch in watches.items():
        past = past_of(state, name, watch)
        if is_due(watch, past):
            new = learned(past, watch.slots, watch.minutes, watch.pause)
            mixed = new is not None and past is None and is_mixed(new, watch.minutes)
            watches[name] = compared(watch, again=mixed)
            if new is not None and not mixed:
                events.append(memory.learned(name, new, sight.now, sight.view.boot_id))
    return _with(state, watches), tuple(events)


def _watches(state: State, sight: Sight, at: Stamp) -> Iterator[tuple[str, Watch]]:
    patience = max(PATIENCE, sight.rules.nvml_fresh_for)
    yield from ((name, watch) for name, watch in watches_of(state).items() if not is_known(name, sight))
    for name, here in jobs_here(state.pins, sight).items():
        watch = watches_of(state).get(name)
        if watch is None or watch.here.pids.keys() != here.pids.keys() or at.boottime < watch.at:
            watch = begun(here, at)
        elif at.boottime == watch.at:
            yield name, watch
            continue
        gpus, past = work(here, sight), past_of(state, name, watch)
        ports = port_traffic(watch.ports, sight) if here.whole_node else None
        if gpus is None:
            yield name, unread(watch, here, at, patience)
        else:
            yield name, after(watch, here, gpus, at, ports=ports, past=past, patience=patience)


def _over(state: State, sight: Sight) -> Iterator[str]:
    """Yield jobs that have ended, and observed ones that are gone: a reader that just started may not list all."""
    containers = sight.fresh(ContainersFacts)
    ended = {} if sight.jobs is None else {str(job.id): job.ended is not None for job in sight.jobs.jobs}
    ended |= {} if containers is None else {container_name(container.id): False for container in containers.containers}
    for name in pasts_of(state):
        if is_known(name, sight) and ended.get(name, name in watches_of(state)):
            yield name
