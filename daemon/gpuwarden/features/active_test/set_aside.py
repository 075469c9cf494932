"""Effects of a test on its GPUs that are no findings: Xids of its processes; warnings about load, heat and power."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.features.active_test.judging.lease import Lease
from gpuwarden.features.active_test.judging.thresholds import XIDS_OF_WORKERS
from gpuwarden.features.active_test.memory import memory_of
from gpuwarden.health.detection import Detection
from gpuwarden.health.memory import State
from gpuwarden.health.model import Severity, gpu
from gpuwarden_collectors.event_facts import Source, XidEvent
from gpuwarden_collectors.facts import Stamp

LATE = 30.0
"""Seconds after the end of a test in which log lines about its processes may still be read."""
WARNINGS_THAT_WAIT = frozenset({"gpu_slow", "thermal_limit", "thermal_slowdown", "power_brake", "gpu_held_after_job"})
"""Conditions that a test's load, heat, power and processes may raise. No other condition results from them, or it takes
longer than a test: a stalled job is busy for ten minutes before. Capping at the GPU's own power limit and memory in use
are no findings."""


def is_own(state: State, event: XidEvent) -> bool:
    """Return True if the test's own processes caused the Xid: the event has the PID of one, or has none, is not from
    the kernel log, and is about a GPU of the running test.
    """
    lease = memory_of(state).lease
    if lease is None or event.xid not in XIDS_OF_WORKERS or not _during(lease, event.at):
        return False
    if event.pid is not None:
        return str(event.pid) in lease.workers.split()
    over = lease.ended is not None and event.at.boottime > lease.ended.boottime  # the next job may have begun
    return not over and event.source is not Source.KERNEL_LOG and event.slot in lease.slots(state.pins)


def _during(lease: Lease, at: Stamp) -> bool:
    end = lease.ended or lease.until
    return end is not None and at.boottime <= end.boottime + LATE


def without_own(state: State, code: str, detection: Detection, now: Stamp) -> Detection:
    """Return the detection without warnings about GPUs under test: they neither rise nor end. Failures are kept."""
    lease = memory_of(state).lease
    if lease is None or code not in WARNINGS_THAT_WAIT or not lease.holds(now):
        return detection
    under = frozenset(map(gpu, lease.slots(state.pins)))
    sightings = tuple(
        sighting
        for sighting in detection.sightings
        if sighting.key.subject not in under or sighting.severity is Severity.FAILURE
    )
    return replace(detection, sightings=sightings, examined=detection.examined - under)
