"""Decides whether the announced end of this machine may be approved early, if its cloud allows that. Pure.

An approval cannot be undone: the machine is gone within seconds. So nothing may be left to wait for, the end must be of
this machine alone, and the site must have enabled it.
"""

from __future__ import annotations

from gpuwarden.features.evacuation.policy.budget import MARGIN, Budget
from gpuwarden.features.evacuation.policy.model import Approved, Evacuation, EvacuationState
from gpuwarden.policy.model import Result
from gpuwarden_collectors.backoff import grown
from gpuwarden_collectors.cloud.facts import Approval
from gpuwarden_collectors.facts import Stamp

TRIES_MOST = 5
"""Most attempts to approve an end that the service does not accept; each pause is twice the one before."""
PAUSE_FIRST, PAUSE_MOST = 2.0, 32.0  # seconds
RESTS = MARGIN
"""Seconds without any action before an approval: file systems are flushed, and what has just begun becomes visible."""
TAKES = 5.0
"""Seconds before the announced end from which an approval gains nothing."""


def refusal(state: EvacuationState, evacuation: Evacuation, approval: Approval, times: Budget, now: Stamp) -> str:
    """Return why this end is never approved, or not any more; empty if it may be once nothing is waited for."""
    approved = evacuation.approved
    if approved is not None and (approved.result is not Result.RETRY or approved.tries >= TRIES_MOST):
        return f"{approved.text}, after {approved.tries} attempts" if approved.result is Result.RETRY else approved.text
    if approval is Approval.SHARED:
        return "other machines would end with this one"
    if approval is not Approval.ALONE:
        return "it has begun"
    if times.assumed or now.boottime >= times.end - TAKES:
        return "it is about to happen by itself"
    if any(_name(other) == _name(evacuation) and _is_done(other) for other in state.evacuations.values()):
        return "it was approved before"
    return ""


def is_approved(evacuation: Evacuation) -> bool:
    return evacuation.approved is not None and evacuation.approved.result in (Result.DONE, Result.ALREADY)


def pauses(approved: Approved | None, now: Stamp) -> bool:
    """True if an attempt has failed, and the next one is not due."""
    if approved is None or approved.tries == 0:
        return False
    return now.boottime - approved.at.boottime < grown(PAUSE_FIRST, PAUSE_MOST, approved.tries - 1)


def rests_until(evacuation: Evacuation) -> float:
    """Return the time before which nothing is approved: RESTS after the last known action. CLOCK_BOOTTIME, seconds."""
    happened = [evacuation.at]
    for job in evacuation.jobs.values():
        happened += [at for at in (job.signalled_at, job.acknowledged.at, job.requeued_at) if at is not None]
    return max(at.boottime for at in happened) + RESTS


def _name(evacuation: Evacuation) -> str:
    """Return the name of the notice, which its source uses for no other end."""
    return evacuation.id.rpartition("@")[0]


def _is_done(evacuation: Evacuation) -> bool:
    return evacuation.approved is not None and evacuation.approved.result is Result.DONE
