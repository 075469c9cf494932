"""Begins the epoch of a job from what its source reports, and extends it by what the source reports later. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.features.why.following import Live
from gpuwarden.features.why.members import Member, stamp
from gpuwarden.features.why.model import PIDS_MOST, Epoch
from gpuwarden.features.why.stored import ALSO_MOST
from gpuwarden_collectors.facts import Stamp

ANOTHER_AFTER = 5.0
"""Seconds by which a job must begin later than the known one of its name to count as another."""
NOTED_AFTER = 0.5
"""The same if the scheduler records the begin, in whole seconds: a job may be requeued and begin again within 5 s."""


def begun(member: Member, now: Stamp, boot_id: str) -> Live:
    """Return a job that a source reports for the first time."""
    began = now.boottime if member.began is None else member.began
    if not member.is_noted:  # a note is later compared with itself, and may be newer than the pass
        began = min(began, now.boottime)
    epoch = Epoch(
        name=member.name,
        began=stamp(began, now),
        boot_id=boot_id,
        uid=member.uid,
        user=member.user,
        job_name=member.job_name,
        slots=member.slots,
        also=member.also,
        pids=_pids((), member),
    )
    return Live(
        epoch=epoch,
        by_slot=member.by_slot,
        oom_kills=member.oom_kills,
        seen=True,
        end=member.end,
        is_asked=member.is_asked,
    )


def is_later(began: float, member: Member) -> bool:
    """Return True if it began later than a job of its name that began at `began`, seconds of CLOCK_BOOTTIME."""
    return member.began is not None and member.began > began + (NOTED_AFTER if member.is_noted else ANOTHER_AFTER)


def is_another(epoch: Epoch, member: Member, *, has_ended: bool) -> bool:
    """Return True if it is another job than the known one of its name, which began earlier.

    A restarted reader may miss the first processes of a job, and a prolog may run twice: while a process of the known
    job is there, it continues. A process that is found after its end belongs to its next run.
    """
    if not is_later(epoch.began.boottime, member):
        return False
    if has_ended and member.is_noted:
        return True
    return not any(pid in epoch.pids for pids in member.by_slot.values() for pid in pids)


def grown(epoch: Epoch, member: Member) -> Epoch:
    """Return the job extended by what its source has reported since. GPUs are only added."""
    slots = epoch.slots if set(member.slots) <= set(epoch.slots) else tuple(sorted({*epoch.slots, *member.slots}))
    uid = member.uid if epoch.uid is None else epoch.uid
    user, job_name, pids = epoch.user or member.user, epoch.job_name or member.job_name, _pids(epoch.pids, member)
    also = (
        epoch.also
        if set(member.also) <= set(epoch.also)
        else tuple(dict.fromkeys((*epoch.also, *member.also)))[:ALSO_MOST]
    )
    before = (epoch.slots, epoch.uid, epoch.user, epoch.job_name, epoch.pids, epoch.also)
    if (slots, uid, user, job_name, pids, also) == before:
        return epoch
    return replace(epoch, slots=slots, uid=uid, user=user, job_name=job_name, pids=pids, also=also)


def _pids(old_pids: tuple[int, ...], member: Member) -> tuple[int, ...]:
    new = {pid for pids in member.by_slot.values() for pid in pids} - set(old_pids)
    return (*old_pids, *sorted(new))[-PIDS_MOST:] if new else old_pids
