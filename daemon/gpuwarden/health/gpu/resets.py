"""GPU resets without a line in the kernel log.

The driver prints no line for a reset, and Linux one only for a slow reset or one that the driver did not ask for. What
else shows it for one GPU, safely enough to end a latch that a later pass must confirm:

- the driver asked for a reset, in NVML's answer or as its recovery action, and asks no more;
- the GPU was away while the driver went on with the others, and when it answers again all its counters since driver load
  that had counted when the latched fault was raised have begun again.

Counters alone are not enough: without persistence mode they begin again whenever no process has the GPU open. Nor is a driver
reload: then all GPUs are away together, and what a reset would have mended may still be broken.
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
"""Counters that the driver begins again when it initialises a GPU (nvml.h: "since the driver was last loaded")."""
ENOUGH = 2
"""Counters that must have begun again: one could be read wrong."""
ASKS_FOR_RESET = (1, 4)
"""The recovery actions that a reset answers: reset, drain and reset (nvmlDeviceGpuRecoveryAction_t)."""


def counters(sight: Sight, slot: str) -> str:
    """Counters since driver load of the GPU in `slot`, as a text for an event; empty if the GPU does not answer."""
    facts = sight.gpus.get(slot)
    if facts is None or facts.answer is not GpuAnswer.OK:
        return ""
    values = ((name, getattr(facts.readings, name)) for name in SINCE_LOAD)
    return " ".join(f"{name}={value}" for name, value in values if value)


def _began_again(before: str, readings: GpuReadings) -> bool:
    """True if every counter that had counted `before` is lower now."""
    pairs = [item.partition("=") for item in before.split()]
    now = [(getattr(readings, name, None), int(value)) for name, _, value in pairs if value.isdecimal()]
    return len(now) >= ENOUGH and all(value is not None and value < old for value, old in now)


def recognised(state: State, sight: Sight) -> Iterator[Event]:
    """A reset of each GPU that was away and is back with its counters begun again.

    Dated to when it went away: a line that came later may be of a fault that the reset did not mend.
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
    """The reset that the driver had asked for, if this is the first pass in which it no longer asks.

    Dated to this pass: the driver has judged everything before it. The request must have come from NVML itself: if only a line of
    the kernel log made it (Xid 154), NVML never asked, and its answer withdraws nothing.
    """
    by_action = track.evidence.get("value") in ASKS_FOR_RESET and "reported_by" not in track.evidence
    asked = track.key.code == "gpu_reset_required" or (track.key.code == "gpu_recovery_action" and by_action)
    if not asked or not track.raised or track.clean_since is not None or not _is_news(state, track, sight.now, sight):
        return None
    return _reset(track, sight.now, sight, "the driver asks for a reset no more")


def _is_news(state: State, track: Track, at: Stamp, sight: Sight) -> bool:
    """Return True if, since `track` began in this boot, no reset was recorded that would be the same one. All of this
    outlives a restart.

    If the clock was set forward since, the computed begin of the boot is later than its first judgement, which counts
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
