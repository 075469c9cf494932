"""Jobs whose GPUs are all busy and do nothing any more: they wait for each other, or for what will never come."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gpuwarden.health.detection import NOTHING, Detection
from gpuwarden.health.host.memory import job_subject
from gpuwarden.health.jobs.past import JobPast, Means, median
from gpuwarden.health.jobs.tracking import JOB_STALLED, cpu_times, past_of
from gpuwarden.health.jobs.watch import Watch
from gpuwarden.health.model import Evidence, Key, Sighting
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.slurm.jobs_facts import JobProcess, JobsFacts

PAUSES = 1.5
"""So many times the longest fall that a job came back from must pass before it counts as stalled."""
ODD_POWER, ODD_CORES = 0.25, 0.5
"""By which share of the others' median the power of a GPU, and by how many cores of CPU the use of a process must differ."""
CORES_AFTER = 30.0
"""Seconds between two readings of CPU time from which its use is derived."""
_SHOWN = 3
"""GPUs or ranks that differ; with more of them nobody is the odd one."""


def job_stalled(state: State, sight: Sight) -> Detection:
    """A job whose GPUs did not answer, or that has not been fallen for long enough, is left as it is."""
    jobs = sight.jobs
    if jobs is None or sight.nvml is None:
        return NOTHING
    sightings, undecided = [], set()
    for number, watch in state.job_watches.items():
        past = past_of(state, number, watch)
        if watch.fallen is False or past is None:
            continue
        if watch.fell is not None and watch.fallen_for >= max(sight.rules.stalled_after, PAUSES * past.pause):
            key, evidence = Key(JOB_STALLED, job_subject(str(number))), _evidence(number, watch, past, jobs)
            sightings.append(Sighting(key, evidence, since=watch.fell))
        else:
            undecided.add(job_subject(str(number)))
    examined = {track.key.subject for track in state.tracks_of(JOB_STALLED)} - undecided
    return Detection(tuple(sightings), frozenset(examined)) if sightings or examined else NOTHING


def _evidence(number: int, watch: Watch, past: JobPast, jobs: JobsFacts) -> Evidence:
    evidence: dict[str, str | float] = {"job": str(number)}
    if watch.here.uid is not None:
        evidence["uid"] = str(watch.here.uid)
    evidence |= {"gpus": " ".join(str(gpu.index) for gpu in watch.gpus), "seconds": round(watch.fallen_for)}
    for name in Means._fields:
        now, before = getattr(watch.values, name), getattr(past, name)
        if now is not None and before is not None and name != "clock_mhz":
            evidence |= {name: round(now, 1), f"{name}_before": round(before, 1)}
    odd = (*_odd_gpus(watch), *_odd_ranks(watch, jobs))
    return {**evidence, "differs": "; ".join(odd) or "no GPU and no rank here"}


def _odd_gpus(watch: Watch) -> Iterator[str]:
    powers = {gpu.index: gpu.power_w for gpu in watch.gpus}
    for index, usual in _odd(powers, lambda usual: ODD_POWER * usual):
        yield f"GPU {index} draws {powers[index]:.0f} W, the others {usual:.0f}"


def _odd_ranks(watch: Watch, jobs: JobsFacts) -> Iterator[str]:
    """By the CPU time since the job fell: who still computes, or waits otherwise (marin-community/marin#8870: 4.04 cores for 7.85)."""
    processes = {process.pid: process for process in jobs.processes}
    cores = {pid: used for pid, used in _cores(watch, jobs).items() if pid in processes}
    for pid, usual in _odd(cores, lambda usual: max(ODD_CORES, usual / 2)):
        yield f"{_name(processes[pid])} uses {cores[pid]:.1f} cores, the others {usual:.1f}"


def _name(process: JobProcess) -> str:
    return f"process {process.pid}" if process.rank is None else f"rank {process.rank} (process {process.pid})"


def _cores(watch: Watch, jobs: JobsFacts) -> Mapping[int, float]:
    now = cpu_times(jobs)
    pids = {pid for pids in watch.here.pids.values() for pid in pids} & now.keys() & watch.cpu.keys()
    pairs = {pid: (now[pid][0] - watch.cpu[pid][0], now[pid][1] - watch.cpu[pid][1]) for pid in pids}
    return {pid: used / seconds for pid, (seconds, used) in pairs.items() if seconds >= CORES_AFTER}


def _odd(values: Mapping[int, float], tolerance: Callable[[float], float]) -> Sequence[tuple[int, float]]:
    """Those that differ from the median of all by more than `tolerance` of it, and that median; nothing where many do."""
    if len(values) <= 1:
        return ()
    usual = median(values.values())
    odd = [name for name, value in sorted(values.items()) if abs(value - usual) > tolerance(usual)]
    return [(name, usual) for name in odd] if 2 * len(odd) < len(values) and len(odd) <= _SHOWN else ()
