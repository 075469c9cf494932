"""Detectors for processes that still have a GPU open after their job ended."""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.detection import NOTHING, Detection, Detector
from gpuwarden.health.gpu.jobs import GpuJob, seen_on_gpus
from gpuwarden.health.model import Key, Sighting, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight


def gpu_held_after_job(state: State, sight: Sight) -> Detection:
    if sight.jobs is None or sight.nvml is None:
        return NOTHING
    jobs = seen_on_gpus(state.pins, sight)
    examined = frozenset(gpu(facts.slot) for facts in sight.answering)
    return Detection(tuple(s for slot in jobs for s in _sightings(jobs[slot]) if gpu(slot) in examined), examined)


def _sightings(jobs: tuple[GpuJob, ...]) -> Iterator[Sighting]:
    ended = [job for job in jobs if job.ended]
    if ended:
        pids = [str(pid) for job in ended for pid in job.pids]
        uids = dict.fromkeys(str(job.uid) for job in ended if job.uid is not None)
        evidence = {"job": " ".join(str(job.job) for job in ended[:8]), "uid": " ".join(list(uids)[:8])}
        yield Sighting(
            Key("gpu_held_after_job", gpu(ended[0].slot)),
            {**evidence, "pids": " ".join(pids[:16]), "processes": len(pids)},
        )


DETECTORS: dict[str, Detector] = {"gpu_held_after_job": gpu_held_after_job}
