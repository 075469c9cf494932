"""Detects GPU resets that leave no line in the kernel log.

The driver logs no line for a reset; Linux logs one only for a slow reset or one that the driver did not request. Two
other signs are reliable enough to end the latch of a GPU, which a later pass must confirm:

- the driver requested a reset, in NVML's answer or as its recovery action, and no longer does;
- the GPU was missing while the driver served the others, and when it answers again, all its counters since driver load
  that were not zero when the latched fault was raised have restarted.

Counters alone are not enough: without persistence mode they restart whenever no process has the GPU open. Neither is a
driver reload: all GPUs are missing together then, and a fault that needs a reset may remain.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.event_data import write
from gpuwarden.health.events import Reset
from gpuwarden.health.memory import State, Track
from gpuwarden.health.model import Event, EventKind, Key, Latch, gpu
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import GpuAnswer, Stamp
from gpuwarden_collectors.gpu_readings import GpuReadings

SINCE_LOAD = (
    "energy_mj",
    "pcie_replays",
    "ecc_corrected_volatile",
    "ecc_uncorrected_volatile",
    "violation_power_ns",
    "violation_thermal_ns",
    "violation_sync_boost_ns",
    "violation_low_utilization_ns",
    "slowdown_sw_thermal_ns",
    "slowdown_hw_thermal_ns",
    "nvlink_replay_errors",
    "nvlink_recovery_errors",
    "nvlink5_recoveries",
)
"""Counters that restart when the driver initialises a GPU (nvml.h: "since the driver was last loaded")."""
ENOUGH = 2
"""Minimum counters that must have restarted, since one could be misread."""
ASKS_FOR_RESET = (1, 4)
"""Recovery actions that a reset completes: reset, drain and reset (nvmlDeviceGpuRecoveryAction_t)."""


def counters(sight: Sight, slot: str) -> str:
    """Return the counters since driver load of the GPU in `slot` as text for an event; "" if it does not answer."""
    facts = sight.gpus.get(slot)
    if facts is None or facts.answer is not GpuAnswer.OK:
        return ""
    values = ((name, getattr(facts.readings, name)) for name in SINCE_LOAD)
    return " ".join(f"{name}={value}" for name, value in values if value)


def _began_again(before: str, readings: GpuReadings) -> bool:
    """Return True if every counter in `before` is lower now."""
    pairs = [item.partition("=") for item in before.split()]
    now = [(getattr(readings, name, None), int(value)) for name, _, value in pairs if value.isdecimal()]
    return len(now) >= ENOUGH and all(value is not None and value < old for value, old in now)


def recognised(state: State, sight: Sight) -> Iterator[Event]:
    """Yield a reset event for each GPU that was missing and is back with restarted counters.

    It is dated to the time the GPU went missing: a later line may be of a fault that the reset did not repair.
    """
    for away in state.tracks_of("gpu_missing"):
        facts, pin = sight.gpus.get(away.key.subject.slot), state.pins.get(away.key.subject.slot)
        back = facts is not None and pin is not None and facts.answer is GpuAnswer.OK and facts.uuid == pin.uuid
        if facts is None or not back or not _is_news(state, away, away.first_seen, sight):
            continue
        if any(_began_again(track.counters, facts.readings) for track in _latched(state, facts.slot)):
            yield _reset(away, away.first_seen, sight, "it was away, and its counters began again")


def _latched(state: State, slot: str) -> Iterator[Track]:
    tracks = state.tracks.values()
    return (t for t in tracks if t.key.subject.slot == slot and t.latch is Latch.RESET and t.released is None)


def answered(state: State, track: Track, sight: Sight) -> Event | None:
    """Return a reset event if this is the first pass in which the driver no longer requests a reset.

    It is dated to this pass: the driver's answer covers everything before it. The request must have come from NVML. If
    only a kernel log line made it (Xid 154), NVML never requested a reset, and its answer withdraws nothing.
    """
    by_action = track.evidence.get("value") in ASKS_FOR_RESET and "reported_by" not in track.evidence
    asked = track.key.code == "gpu_reset_required" or (track.key.code == "gpu_recovery_action" and by_action)
    if not asked or not track.raised or track.clean_since is not None or not _is_news(state, track, sight.now, sight):
        return None
    return _reset(track, sight.now, sight, "the driver no longer asks for a reset")


def _is_news(state: State, track: Track, at: Stamp, sight: Sight) -> bool:
    """Return True if `track` began in this boot, and no reset was recorded since, also by an earlier daemon.

    If the clock was set forward, the computed time of the boot is too late; the first judgement of the boot is used
    then.
    """
    last_reset, booted = state.resets.get(track.key.subject.slot), sight.now.wall - sight.now.boottime
    if state.booted is not None:
        booted = min(booted, state.booted.wall)
    recorded = last_reset is not None and (
        last_reset.boottime >= track.first_seen.boottime or last_reset.boottime >= at.boottime
    )
    return not recorded and track.first_seen.wall >= booted


def _reset(track: Track, at: Stamp, sight: Sight, text: str) -> Event:
    key = Key("gpu", gpu(track.key.subject.slot))
    return Event(
        kind=EventKind.RESET, at=at, boot_id=sight.view.boot_id, key=key, data=write(Reset(ok=True, text=text))
    )
