"""Detects jobs whose GPUs are all busy but do nothing: their ranks wait for each other, or for a lost message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gpuwarden.features.job_stall import tracking
from gpuwarden.features.job_stall.memory import job_subject
from gpuwarden.features.job_stall.past import JobPast, Means
from gpuwarden.features.job_stall.tracking import JOB_HUNG, JOB_STALLED, is_known, past_of, watches_of
from gpuwarden.features.job_stall.watch import Watch
from gpuwarden.health.detection import NOTHING, Detection
from gpuwarden.health.model import Evidence, Key, Sighting
from gpuwarden.health.state import State
from gpuwarden.health.statistics import median
from gpuwarden.health.view import Sight
from gpuwarden_collectors.slurm.jobs_facts import JobProcess

PAUSES = 1.5
"""A fall must last this many times the longest one that the job recovered from to count as a stall."""
ODD_POWER, ODD_CORES = 0.25, 0.5
"""Share of the others' median by which a GPU's power must differ, and cores of CPU by which a process must differ."""
CORES_AFTER = 30.0
"""Least seconds between two readings of CPU time to compute the cores in use."""
HUNG_AFTER = 1800.0
"""Seconds. No barrier, checkpoint or compilation of a job with a whole node takes this long at full utilisation without
any access to memory; NCCL's watchdog, if it is on, has ended the job after ten minutes."""
_SHOWN = 3
"""Most GPUs or ranks that count as different; if there are more, none does."""


def job_stalled(state: State, sight: Sight) -> Detection:
    """Detect stalled jobs. A finding stays while its job's GPUs do not answer, or it has fallen too briefly."""
    if sight.nvml is None:
        return NOTHING
    sightings, subjects = [], (track.key.subject for track in state.tracks_of(JOB_STALLED))
    examined = {subject for subject in subjects if is_known(subject.part, sight)}
    for name, watch in watches_of(state).items():
        past = past_of(state, name, watch)
        if watch.fallen is False or past is None or not is_known(name, sight):
            continue
        if watch.fell is not None and watch.fallen_for >= max(sight.rules.stalled_after, PAUSES * past.pause):
            key = Key(JOB_STALLED, job_subject(name))
            sightings.append(Sighting(key, _evidence(name, watch, past), since=watch.fell))
        else:
            examined.discard(job_subject(name))
    return Detection(tuple(sightings), frozenset(examined)) if sightings or examined else NOTHING


def job_hung(state: State, sight: Sight) -> Detection:
    """Detect jobs that have the whole node and have fallen, while all their GPUs only wait."""
    if sight.nvml is None:
        return NOTHING
    sightings, subjects = [], (track.key.subject for track in state.tracks_of(JOB_HUNG))
    examined = {subject for subject in subjects if is_known(subject.part, sight)}
    for name, watch in watches_of(state).items():
        if watch.spun is None or not is_known(name, sight):
            continue
        if watch.spun_for < HUNG_AFTER:
            examined.discard(job_subject(name))  # after a restart of the daemon this takes as long again
            continue
        power = sum(gpu.power_w for gpu in watch.gpus) / len(watch.gpus)
        evidence: dict[str, str | float] = {"job": name, "seconds": round(watch.spun_for), "power_w": round(power, 1)}
        if watch.here.uid is not None:
            evidence["uid"] = str(watch.here.uid)
        sightings.append(Sighting(Key(JOB_HUNG, job_subject(name)), evidence, since=watch.spun))
    return Detection(tuple(sightings), frozenset(examined)) if sightings or examined else NOTHING


def _evidence(name: str, watch: Watch, past: JobPast) -> Evidence:
    evidence: dict[str, str | float] = {"job": name}
    if watch.here.uid is not None:
        evidence["uid"] = str(watch.here.uid)
    evidence |= {"gpus": " ".join(str(gpu.index) for gpu in watch.gpus), "seconds": round(watch.fallen_for)}
    for value in Means._fields:
        now, before = getattr(watch.values, value), getattr(past, value)
        if now is not None and before is not None and value != "clock_mhz":
            evidence |= {value: round(now, 1), f"{value}_before": round(before, 1)}
    odd = (*_odd_gpus(watch), *_odd_ranks(watch))
    return {**evidence, "differs": "; ".join(odd) or "no GPU and no rank here"}


def _odd_gpus(watch: Watch) -> Iterator[str]:
    powers = {gpu.index: gpu.power_w for gpu in watch.gpus}
    for index, usual in _odd(powers, lambda usual: ODD_POWER * usual):
        yield f"GPU {index} draws {powers[index]:.0f} W, the others {usual:.0f}"


def _odd_ranks(watch: Watch) -> Iterator[str]:
    """Yield the ranks whose CPU time since the job fell is unusual: they still compute, or wait otherwise
    (marin-community/marin#8870: 4.04 cores instead of 7.85).
    """
    processes = {process.pid: process for process in watch.here.processes}
    cores = _cores(watch)
    for pid, usual in _odd(cores, lambda usual: max(ODD_CORES, usual / 2)):
        yield f"{_name(processes[pid])} uses {cores[pid]:.1f} cores, the others {usual:.1f}"


def _name(process: JobProcess) -> str:
    return f"process {process.pid}" if process.rank is None else f"rank {process.rank} (process {process.pid})"


def _cores(watch: Watch) -> Mapping[int, float]:
    now = watch.here.cpu_times
    pids = now.keys() & watch.cpu.keys()
    pairs = {pid: (now[pid][0] - watch.cpu[pid][0], now[pid][1] - watch.cpu[pid][1]) for pid in pids}
    return {pid: used / seconds for pid, (seconds, used) in pairs.items() if seconds >= CORES_AFTER}


def _odd(values: Mapping[int, float], tolerance: Callable[[float], float]) -> Sequence[tuple[int, float]]:
    """Return the names whose value differs from the median by more than `tolerance`, with it; empty if many do."""
    if len(values) <= 1:
        return ()
    usual = median(values.values())
    odd = [name for name, value in sorted(values.items()) if abs(value - usual) > tolerance(usual)]
    return [(name, usual) for name in odd] if 2 * len(odd) < len(values) and len(odd) <= _SHOWN else ()


DETECTORS = {JOB_HUNG: job_hung, JOB_STALLED: job_stalled}
follow = tracking.follow
