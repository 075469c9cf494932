"""What a source has of a job now, and a job that no source has any more. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.features.why.epochs import grown
from gpuwarden.features.why.following import Live
from gpuwarden.features.why.members import Member, Members, stamp
from gpuwarden.features.why.model import End
from gpuwarden_collectors.facts import Stamp

GONE_AFTER = 20.0
"""Seconds for which no source must have a job that has ended: a reader that has only begun may not know all."""
FORGOTTEN_AFTER = 86_400.0
"""Seconds after which a job ends of which nobody can say any more whether it runs."""


def seen(one: Live, member: Member) -> Live:
    """Return a job with what its source has of it now; the same object if that is nothing new."""
    epoch = grown(one.epoch, member)
    end = member.end or (None if one.end is not None and one.missing is not None else one.end)
    if (
        epoch is one.epoch
        and end == one.end
        and (one.missing, one.unknown) == (None, None)
        and one.seen
        and one.by_slot is member.by_slot
        and (one.oom_kills, one.is_asked) == (member.oom_kills, member.is_asked)
    ):
        return one
    return replace(
        one,
        epoch=epoch,
        end=end,
        missing=None,
        unknown=None,
        seen=True,
        by_slot=member.by_slot,
        oom_kills=member.oom_kills,
        is_asked=member.is_asked,
    )


def missing(one: Live, there: Members, now: Stamp) -> Live:
    """Return a job that is not `there`: it has ended after `GONE_AFTER`, or it is not known whether it has."""
    if one.end is not None and one.missing is None:
        return one  # its source said so, and has forgotten it
    if one.epoch.kind not in there.known:
        since = now.boottime if one.unknown is None else one.unknown
        is_forgotten = now.boottime - since >= FORGOTTEN_AFTER
        end = End(at=stamp(since, now), known_from="restart") if is_forgotten else one.end
        return replace(one, unknown=since, end=end) if one.unknown is None or end is not one.end else one
    since = now.boottime if one.missing is None else one.missing
    is_gone = one.end is None and now.boottime - since >= GONE_AFTER
    source = "cgroup" if one.seen and one.unknown is None else "restart"
    end = End(at=stamp(since, now), known_from=source) if is_gone else one.end
    return replace(one, missing=since, end=end) if one.missing is None or end is not one.end else one
