"""Measures what a job uses of its GPUs, from the regular passes. Pure.

Energy is the growth of the driver's counter, which continues while the daemon does not run. The counter is read once a
minute. Until it is read again, and if it was reset or does not exist, energy is power over the time between two passes.
Time without a reading is not counted: `energy_covers` and `observed_gpu_seconds` show what was measured. The energy of
a GPU that several jobs share counts for each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import NamedTuple

from gpuwarden.features.why.model import Epoch, Use
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts, Stamp
from gpuwarden_collectors.gpu_readings import GpuReadings

GAP = 45.0
"""Seconds between two passes beyond which readings do not cover the time between: 1.5 times the longest interval."""
POWER_MOST_MW = 3_000_000.0
"""More than any board draws: a counter that grew faster is wrong."""
COUNTED_EVERY = 60.0
"""Seconds within which the counter is read again (`nvml/readings.py`): it may have grown this long before a pass."""
THROTTLED = 0x20 | 0x40 | 0x80
"""Clock event reasons: software and hardware thermal slowdown, power brake (nvml.h, nvmlClocksEventReasons)."""
_PERCENT = 100.0


class Last(NamedTuple):
    """The newest pass over one GPU of the job."""

    at: float
    """Seconds of CLOCK_BOOTTIME."""
    energy_mj: int | None
    """The counter, if it was read since the job began."""
    since_mj: float = 0.0
    """Energy computed from power since the counter was read."""


class Sums(NamedTuple):
    """Sums over all GPUs of the job, since it began."""

    energy_mj: float = 0.0
    covered: float = 0.0
    """GPU-seconds that the energy covers."""
    observed: float = 0.0
    """GPU-seconds between passes that are close enough."""
    busy: float = 0.0
    busy_of: float = 0.0
    """GPU-seconds that `busy` covers; `tensor_of` likewise."""
    tensor: float = 0.0
    tensor_of: float = 0.0
    idle: float = 0.0
    throttled: float = 0.0


NO_SUMS = Sums()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """What one job used until the newest pass."""

    sums: Sums = NO_SUMS
    peak: int | None = None
    """Bytes."""
    last: Mapping[str, Last] = field(default_factory=dict)
    """By slot."""
    idle_since: float | None = None
    """Since when none of its GPUs has a process of it, seconds of CLOCK_BOOTTIME."""


NOT_READ = Meter()


def meter_of(epoch: Epoch) -> Meter:
    """Return the meter of a continuing job, as it was stored."""
    if epoch.used_at is None:
        return NOT_READ
    use, at = epoch.use, epoch.used_at.boottime
    seconds = use.observed_gpu_seconds
    sums = Sums(
        energy_mj=(use.energy_j or 0.0) * 1_000.0,
        covered=(use.energy_covers or 0.0) * _held(epoch, at),
        observed=seconds,
        busy=(use.busy or 0.0) * seconds,
        busy_of=0.0 if use.busy is None else seconds,
        tensor=(use.tensor or 0.0) * seconds,
        tensor_of=0.0 if use.tensor is None else seconds,
        idle=use.idle_gpu_seconds,
        throttled=use.throttled_gpu_seconds,
    )
    last = {slot: Last(at, count) for slot, count in epoch.energy_at.items()}
    return Meter(sums=sums, peak=use.memory_peak_bytes, last=last)


def _held(epoch: Epoch, at: float) -> float:
    return max(0.0, at - epoch.began.boottime) * max(1, len(epoch.slots))


class Pass(NamedTuple):
    """What one pass over the GPUs shows."""

    at: float
    """When it ended, seconds of CLOCK_BOOTTIME."""
    gpus: Mapping[str, GpuFacts]
    """By slot, those that answered."""
    tensor: Mapping[str, float]
    """By slot, per cent of the time, by DCGM."""


def metered(meter: Meter, epoch: Epoch, read: Pass, with_process: Collection[str]) -> Meter:
    """Return the meter after a pass. `with_process`: the slots on which the job has a process."""
    sums, peak, last = meter.sums, meter.peak, dict(meter.last)
    is_used = False
    for slot in epoch.slots:
        if (facts := read.gpus.get(slot)) is None:
            continue
        r, before, has_process = facts.readings, last.get(slot), slot in with_process
        is_used = is_used or has_process or bool(r.utilization_gpu)
        if before is None or read.at > before.at:
            is_of_job = facts.read_at.get("energy_mj", read.at) >= epoch.began.boottime
            now = Last(read.at, r.energy_mj if is_of_job else None)
            if before is not None:
                sums, now = _added(sums, r, before, now, read.tensor.get(slot))
                if not has_process and read.at - before.at <= GAP:
                    sums = sums._replace(idle=sums.idle + read.at - before.at)
            last[slot] = now
        if r.memory_used_bytes is not None and (peak is None or r.memory_used_bytes > peak):
            peak = r.memory_used_bytes
    idle_since = meter.idle_since
    if idle_since is None and all(slot in read.gpus for slot in epoch.slots):
        idle_since = read.at  # not known if a GPU does not answer
    return Meter(sums=sums, peak=peak, last=last, idle_since=None if is_used else idle_since)


def _added(sums: Sums, r: GpuReadings, before: Last, now: Last, by_dcgm: float | None) -> tuple[Sums, Last]:
    seconds = now.at - before.at
    energy, covered, now = _energy(r.power_usage_mw, before, now)
    if seconds > GAP:
        return sums._replace(energy_mj=sums.energy_mj + energy, covered=sums.covered + covered), now
    busy = r.gpm_graphics_active if r.utilization_gpu is None else r.utilization_gpu
    tensor = by_dcgm if r.gpm_tensor_active is None else r.gpm_tensor_active
    added = Sums(
        sums.energy_mj + energy,
        sums.covered + covered,
        sums.observed + seconds,
        sums.busy + (busy or 0.0) / _PERCENT * seconds,
        sums.busy_of + (0.0 if busy is None else seconds),
        sums.tensor + (tensor or 0.0) / _PERCENT * seconds,
        sums.tensor_of + (0.0 if tensor is None else seconds),
        sums.idle,
        sums.throttled + (seconds if (r.clock_event_reasons or 0) & THROTTLED else 0.0),
    )
    return added, now


def _energy(power_mw: int | None, before: Last, now: Last) -> tuple[float, float, Last]:
    """Return the energy since the previous pass in millijoules, the seconds that it covers, and this pass."""
    seconds, grown = now.at - before.at, None
    if now.energy_mj is not None and before.energy_mj is not None:
        grown = now.energy_mj - before.energy_mj
        if 0 < grown <= POWER_MOST_MW * (seconds + COUNTED_EVERY):
            return grown - before.since_mj, seconds, now
    if power_mw is None or seconds > GAP:
        energy, covered = 0.0, 0.0
    else:
        energy, covered = power_mw * seconds, seconds
    return energy, covered, now._replace(since_mj=before.since_mj + energy) if grown == 0 else now


def use_of(meter: Meter, epoch: Epoch, at: float) -> Use:
    """Return what the job used until `at`, seconds of CLOCK_BOOTTIME."""
    sums, held = meter.sums, _held(epoch, at)
    return Use(
        energy_j=round(sums.energy_mj / 1_000.0, 1) if sums.covered else None,
        energy_covers=round(min(1.0, sums.covered / held), 4) if sums.covered and held else None,
        busy=round(sums.busy / sums.busy_of, 4) if sums.busy_of else None,
        tensor=round(sums.tensor / sums.tensor_of, 4) if sums.tensor_of else None,
        memory_peak_bytes=meter.peak,
        idle_gpu_seconds=round(sums.idle, 1),
        throttled_gpu_seconds=round(sums.throttled, 1),
        observed_gpu_seconds=round(sums.observed, 1),
    )


def written(epoch: Epoch, meter: Meter, now: Stamp) -> Epoch:
    """Return the job with its use until its newest pass, as it is stored, and continued after a restart."""
    read = [reading.at for reading in meter.last.values()]
    at = max(read, default=now.boottime)
    return replace(
        epoch,
        use=use_of(meter, epoch, at),
        energy_at={
            slot: reading.energy_mj + round(reading.since_mj)
            for slot, reading in meter.last.items()
            if reading.energy_mj is not None and reading.at == at
        },
        used_at=Stamp(at, now.wall - (now.boottime - at)),
    )
