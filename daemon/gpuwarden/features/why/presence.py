"""Updates a job by what a source reports of it now, or if no source reports it any more. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.features.why.epochs import grown
from gpuwarden.features.why.following import Live
from gpuwarden.features.why.members import Member, Members, stamp
from gpuwarden.features.why.model import End
from gpuwarden_collectors.facts import Stamp

GONE_AFTER = 20.0
"""Seconds without a report of any source after which a job has ended: a reader that just started may not list all."""
FORGOTTEN_AFTER = 86_400.0
"""Seconds after which a job ends if no source can tell any more whether it runs."""


def seen(job: Live, member: Member) -> Live:
    """Return a job updated by its source; the same object if nothing is new."""
    epoch = grown(job.epoch, member)
    end = member.end or (None if job.end is not None and job.missing is not None else job.end)
    if (
        epoch is job.epoch
        and end == job.end
        and (job.missing, job.unknown) == (None, None)
        and job.seen
        and job.by_slot is member.by_slot
        and (job.oom_kills, job.is_asked) == (member.oom_kills, member.is_asked)
    ):
        return job
    return replace(
        job,
        epoch=epoch,
        end=end,
        missing=None,
        unknown=None,
        seen=True,
        by_slot=member.by_slot,
        oom_kills=member.oom_kills,
        is_asked=member.is_asked,
    )


def missing(job: Live, there: Members, now: Stamp) -> Live:
    """Return a job that is not `there`: it has ended after `GONE_AFTER`, unless its kind cannot be read."""
    if job.end is not None and job.missing is None:
        return job  # its source reported the end, and no longer lists it
    if job.epoch.kind not in there.known:
        since = now.boottime if job.unknown is None else job.unknown
        is_forgotten = now.boottime - since >= FORGOTTEN_AFTER
        end = End(at=stamp(since, now), known_from="restart") if is_forgotten else job.end
        return replace(job, unknown=since, end=end) if job.unknown is None or end is not job.end else job
    since = now.boottime if job.missing is None else job.missing
    is_gone = job.end is None and now.boottime - since >= GONE_AFTER
    source = "cgroup" if job.seen and job.unknown is None else "restart"
    end = End(at=stamp(since, now), known_from=source) if is_gone else job.end
    return replace(job, missing=since, end=end) if job.missing is None or end is not job.end else job
