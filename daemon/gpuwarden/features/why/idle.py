"""Jobs of Slurm that hold GPUs and have no process on them."""

from __future__ import annotations

from gpuwarden.features.why.following import following_of
from gpuwarden.features.why.model import JobKind
from gpuwarden.health.detection import NOTHING, Detection
from gpuwarden.health.model import Key, Sighting, Subject
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight

JOB_IDLE = "job_idle"
IDLE_AFTER = 1_800.0
"""Seconds. Loading data, compiling on the CPU, or a queue of work within the job rarely takes as long."""


def job_idle(state: State, sight: Sight) -> Detection:
    """Return the jobs that have held GPUs for `IDLE_AFTER` with no process on any of them.

    An existing finding stays while its job is idle for less: the daemon may have started since, or the job had a
    process for a moment.
    """
    tracked = {track.key.subject for track in state.tracks_of(JOB_IDLE)}
    live = following_of(state).live
    if sight.nvml is None or sight.jobs is None or not (live or tracked):
        return NOTHING
    sightings, held = [], set[Subject]()
    for name, job in live.items():
        subject, since = Subject("job", part=name.partition("/")[2]), job.meter.idle_since
        if job.end is not None or job.epoch.kind != JobKind.SLURM:
            continue
        if since is None and job.seen:
            continue  # in use, or not all its GPUs could be read
        if since is None or (seconds := sight.now.boottime - since) < IDLE_AFTER:
            held.add(subject)
            continue
        evidence: dict[str, str | int] = {"job": job.epoch.id, "gpus": len(job.epoch.slots), "seconds": round(seconds)}
        if job.epoch.uid is not None:
            evidence["uid"] = str(job.epoch.uid)
        sightings.append(Sighting(Key(JOB_IDLE, subject), evidence))
    return Detection(tuple(sightings), frozenset(tracked - held))
