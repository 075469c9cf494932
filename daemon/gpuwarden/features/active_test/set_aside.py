"""What a test does to its GPUs itself, and is no finding: Xids of its own processes, and warnings about load, heat and power."""

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
"""Seconds after the end in which lines about the test's processes may still be read."""
WARNINGS_THAT_WAIT = frozenset({"gpu_slow", "thermal_limit", "thermal_slowdown", "power_brake", "gpu_held_after_job"})
"""Conditions that a test's load, heat, power and processes could look like. The others do not come of these, or need longer than a
test: a job that stalls has ten busy minutes before; power capping at the GPU's own limit, and memory in use, are no findings."""


def is_own(state: State, event: XidEvent) -> bool:
    """True if the Xid was caused by the test's own processes: the event names the PID of one, or is a bare number about a GPU of
    the test, on which nothing else runs.
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
    """Detection without the warnings that wait while a test runs on the GPU: they neither rise nor end. Failures are kept."""
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
