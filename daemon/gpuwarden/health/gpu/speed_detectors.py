"""Detects GPUs that are slower under load than their siblings, or than their own maximum, without a valid reason.

Valid reasons for a low clock are: configured clocks (reason bit 0x2), hardware slowdown for heat and by the power brake
(0x40, 0x80), which have other conditions, and power capping (0x4) at the GPU's own limit. Software thermal slowdown
(0x20) explains a small loss of speed only. Hardware slowdown (0x8) without 0x40 and 0x80 is no valid reason: it protects
against a power draw that is too high, for which there is no other condition (nvml.h, nvmlClocksThrottleReasonHwSlowdown).
It can slow down all GPUs of a chassis, so that a GPU with it is compared with its own maximum.
Nor are limits of the board (0x200, 0x400): they are its own, so that siblings under the same load have them too.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from gpuwarden.health.detection import Detection, Detector, gpu_detection, per_gpu
from gpuwarden.health.gpu.detectors import SLOWED_WINDOW, slowed_now
from gpuwarden.health.gpu.jobs import job_numbers
from gpuwarden.health.model import Evidence, Key, Severity, Sighting, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden.health.windows import Series, Windows
from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.facts import GpuFacts
from gpuwarden_collectors.gpu_readings import GpuReadings

IDLE, CLOCKS_SET, POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x1, 0x2, 0x4, 0x8, 0x20, 0x40, 0x80
"""nvmlClocksEventReasons."""
LIMITS = {
    HW_SLOWDOWN: "hardware slowdown, neither for heat nor by the power brake",
    0x10: "sync boost: another GPU of its group is slow",
    0x200: "the limit of the board",
    0x400: "the reliability limit of the board",
}
"""Reasons that the driver gives for a low clock, and that do not explain it."""
NAMED = IDLE | CLOCKS_SET | POWER_CAP | SW_THERMAL | HW_THERMAL | POWER_BRAKE | 0x100 | sum(LIMITS)
BUSY = 94
"""Per cent. 94 instead of 95 for a GPU whose reading varies between 94 and 96 (report of GB10 at 650 of 3003 MHz)."""
SIBLINGS = 2
"""Minimum number of busy GPUs of the same name for a comparison. With fewer, the GPU's own maximum is used."""
HALF = 0.5
"""Share of the (upper) median of the siblings, or of the maximum. Training on power-capped GPUs stays above it."""
HOT_OF_SIBLINGS, HOT_OF_MAXIMUM = 0.8, 0.6
"""The same shares under software thermal slowdown. A hot day changes throughput by 1 to 2 % (Llama 3)."""
HOT_SHARE, HOT_WINDOW = 0.5, 60.0
"""Half of the last minute, by the driver's time counter of that slowdown."""
AT_LIMIT, BELOW_LIMIT = 0.9, 0.7
"""Shares of the enforced power limit. From the first on it explains power capping; below the second it does not."""
AS_FAST = 0.95
MAXIMUM_PERFORMANCE = 2
"""Highest number of a performance state at full speed."""
EMPTY = 0.02
"""Share of memory. With less in use and no process, the utilisation is a stale counter."""
SUPERCHIP = re.compile(r"\bG[BH]\d")
"""GH200, GB200, GB10: the CPU shares the module's power, so the GPU is capped below its own limit."""


def gpu_slow(state: State, sight: Sight) -> Detection:
    measured = [f for f in sight.answering if f.readings.clock_sm_mhz is not None and f.readings.mig_mode != 1]
    busy = [facts for facts in measured if _busy(facts)]
    sightings = []
    for facts in busy:
        if _may_be_slow(facts.readings):
            evidence = _slow(state, facts, _siblings(state, sight, facts, busy))
            if evidence:
                sightings.append(Sighting(Key("gpu_slow", gpu(facts.slot)), evidence))
    # Only load shows whether a GPU is slow, so rest does not end a raised finding. It ends one that is not raised yet.
    raised = {track.key.subject.slot for track in state.tracks_of("gpu_slow") if track.raised}
    examined = [facts for facts in measured if facts.slot not in raised or _busy(facts)] if raised else measured
    return gpu_detection(sightings, examined)


def _busy(facts: GpuFacts) -> bool:
    r = facts.readings
    if (r.utilization_gpu or 0) < BUSY or (r.performance_state or 0) > MAXIMUM_PERFORMANCE:
        return False
    unused = not facts.processes and r.memory_used_bytes is not None and r.memory_total_bytes is not None
    left_standing = unused and (r.memory_used_bytes or 0) < EMPTY * (r.memory_total_bytes or 0)
    return not left_standing and not (r.clock_event_reasons or 0) & IDLE


def _may_be_slow(r: GpuReadings) -> bool:
    """Check cheaply whether the GPU can be slow at all; False for most GPUs."""
    below = r.clock_sm_max_mhz is None or (r.clock_sm_mhz or 0) < HOT_OF_SIBLINGS * r.clock_sm_max_mhz
    return below or bool((r.clock_event_reasons or 0) & POWER_CAP)


def _siblings(state: State, sight: Sight, facts: GpuFacts, busy: Sequence[GpuFacts]) -> list[GpuFacts]:
    """Return the other busy GPUs of the same name, and of the same job if the GPU's job is known."""
    alike = [other for other in busy if other is not facts and other.name == facts.name]
    jobs = job_numbers(state.pins, sight)
    mine = jobs.get(facts.slot)
    return [other for other in alike if jobs.get(other.slot, frozenset()) & mine] if mine else alike


def _slow(state: State, facts: GpuFacts, siblings: Sequence[GpuFacts]) -> Evidence:
    r, reasons = facts.readings, facts.readings.clock_event_reasons
    clocks = [clock for other in siblings if (clock := other.readings.clock_sm_mhz) is not None]
    together = len(clocks) >= SIBLINGS and not _by_hardware(r)
    usual = sorted(clocks)[len(clocks) // 2] if together else r.clock_sm_max_mhz
    if reasons is None or not usual or r.clock_sm_mhz is None or reasons & (CLOCKS_SET | HW_THERMAL | POWER_BRAKE):
        return {}
    share, why = r.clock_sm_mhz / usual, ""
    if together and _capped_by_another(facts, siblings) and share < AS_FAST:
        why = "power capping far below its own limit"
    elif reasons & POWER_CAP and _at_its_limit(facts):
        return {}
    elif _hot(state, facts) and share < (HOT_OF_SIBLINGS if together else HOT_OF_MAXIMUM):
        why = "software thermal slowdown"
    elif share < HALF:
        why = _named(reasons)
    if not why:
        return {}
    return {
        "sm_clock_mhz": r.clock_sm_mhz,
        "siblings_mhz" if together else "maximum_mhz": round(usual),
        "reasons": hex(reasons),
        "why": why,
        "power_w": None if r.power_usage_mw is None else round(r.power_usage_mw / 1000),
        "temperature": r.temperature,
    }


def _by_hardware(r: GpuReadings) -> bool:
    """Return True if the hardware holds the GPU below half of its maximum: that may be so for all GPUs of a chassis."""
    slowed = bool((r.clock_event_reasons or 0) & HW_SLOWDOWN)
    return slowed and r.clock_sm_mhz is not None and r.clock_sm_mhz < HALF * (r.clock_sm_max_mhz or 0)


def _named(reasons: int) -> str:
    """Return what the driver gives as the reason of a low clock that nothing explains."""
    limits = [text for bit, text in LIMITS.items() if reasons & bit]
    if reasons & ~NAMED:
        limits.append(f"a reason of the driver's that is not known ({reasons & ~NAMED:#x})")
    return ", ".join(limits) or "no reason of the driver's explains it"


def _of_its_limit(r: GpuReadings) -> float | None:
    if r.power_usage_mw is None or not r.power_enforced_limit_mw:
        return None
    return r.power_usage_mw / r.power_enforced_limit_mw


def _at_its_limit(facts: GpuFacts) -> bool:
    """Return True if the GPU draws power near its own limit, if that is unknown, or if it is a superchip."""
    share = _of_its_limit(facts.readings)
    return share is None or share >= AT_LIMIT or bool(SUPERCHIP.search(facts.name))


def _capped_by_another(facts: GpuFacts, siblings: Sequence[GpuFacts]) -> bool:
    """Return True if the GPU, no superchip, is power-capped far below its own limit while all siblings reach theirs."""
    share = _of_its_limit(facts.readings)
    if share is None or share >= BELOW_LIMIT or not (facts.readings.clock_event_reasons or 0) & POWER_CAP:
        return False
    others = [_of_its_limit(other.readings) for other in siblings]
    return all(other is not None and other >= AT_LIMIT for other in others) and not SUPERCHIP.search(facts.name)


def _hot(state: State, facts: GpuFacts) -> bool:
    """Return True if software thermal slowdown is active now, or was for half of the last minute by the driver."""
    if (facts.readings.clock_event_reasons or 0) & SW_THERMAL:
        return True
    series = state.moments.windows.get((facts.slot, "slowdown_sw_thermal_ns"))
    return series is not None and series.growth(HOT_WINDOW)[0] >= HOT_SHARE * HOT_WINDOW * 1e9


# --- the external power brake

BRAKED_LOW = "power_brake_low_ns"
"""Window of the nanoseconds in which passes found a GPU braked, busy and at `LOW_CLOCK` or less."""
LOW_CLOCK, LOW_SHARE = 0.3, 0.9
AT_WORK = 50
"""Per cent. At rest the clock is low regardless of the brake."""
LONGEST_PASS = 45.0
"""Seconds: 1.5 times the longest interval of NVML passes. The clock during a longer pause is unknown."""


def _at_low_clock(r: GpuReadings) -> bool:
    braked = bool((r.clock_event_reasons or 0) & POWER_BRAKE) and (r.utilization_gpu or 0) >= AT_WORK
    return braked and r.clock_sm_mhz is not None and r.clock_sm_mhz <= LOW_CLOCK * (r.clock_sm_max_mhz or 0)


def with_time_braked(windows: Windows, at: float, answering: Collection[GpuFacts]) -> Windows:
    """Return the windows with the braking time of one pass; the same object if no brake is or was recently active."""
    result: dict[tuple[str, str], Series] | None = None
    for facts in answering:
        key, low = (facts.slot, BRAKED_LOW), _at_low_clock(facts.readings)
        series = windows.get(key)
        if (series is None and not low) or (series is not None and at <= series.at):
            continue
        result = dict(windows) if result is None else result
        if series is None:
            result[key] = Series.start(at, 0)
        elif not low and not series.growth(SLOWED_WINDOW)[0]:
            del result[key]
        else:
            passed = at - series.at
            result[key] = series.add(at, series.last + round(1e9 * passed if low and passed <= LONGEST_PASS else 0))
    return windows if result is None else result


def power_brake(state: State, _: Sight, facts: GpuFacts) -> Sighting | None:
    sighting = slowed_now(state, facts, "power_brake", "slowdown_hw_power_brake_ns", POWER_BRAKE)
    if sighting is None:
        return None
    series, r = state.moments.windows.get((facts.slot, BRAKED_LOW)), facts.readings
    low = 0.0 if series is None else series.growth(SLOWED_WINDOW)[0] / 1e9
    severity = Severity.WARNING
    if low >= LOW_SHARE * SLOWED_WINDOW or _still_failing(state, facts, series):
        severity = Severity.FAILURE
    evidence = {**sighting.evidence, "sm_clock_mhz": r.clock_sm_mhz, "maximum_mhz": r.clock_sm_max_mhz}
    return replace(sighting, severity=severity, evidence={**evidence, "seconds_at_low_clock": round(low)})


def _still_failing(state: State, facts: GpuFacts, series: Series | None) -> bool:
    """Return True if `power_brake` is a failure already, and idleness or a new window hides whether it has improved."""
    track = state.tracks.get(Key("power_brake", gpu(facts.slot)))
    if track is None or not track.raised or track.severity is not Severity.FAILURE:
        return False
    young = series is not None and series.followed < SLOWED_WINDOW
    return young or (facts.readings.utilization_gpu or 0) < AT_WORK


DETECTORS: dict[str, Detector] = {
    "gpu_slow": gpu_slow,
    "power_brake": per_gpu(power_brake, "clock_event_reasons"),
}
