"""The verb by which jobs acknowledge that they have saved.

    {"verb": "acknowledge", "notice": ID, "rank": N, "saved": true, "step": N or null, "all_ranks": true}
                                              ->  {"ok": true, "result": {"job": "slurm/71"}}

A process of the job sends it, as the job's user or root. It counts for the sender's rank or, with `all_ranks`, for all
ranks on all nodes of the job; then the sender must be a rank. If it names a `job`, that must be the sender's own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from gpuwarden.base.log import get_logger
from gpuwarden.publish.sockets.jobs import Caller
from gpuwarden.publish.sockets.unix_socket import NOT_ALLOWED, TRY_AGAIN, VerbError
from gpuwarden_collectors.acknowledgements.message import parse_acknowledgement
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.process_stat import process_stat

_JOB_OF = 2.0  # seconds
_REFUSALS_EVERY = 60.0

log = get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The acknowledgement of a rank of `job`, from process `pid` of user `uid`. `started`: ticks since boot, 0 if the
    process had ended. `all_ranks`: it counts for all ranks of the job.
    """

    job: str
    pid: int
    started: int
    uid: int
    notice: str
    rank: int
    saved: bool
    step: int | None
    all_ranks: bool = False


@dataclass(frozen=True, slots=True)
class Membership:
    """The relation of a process to a job on this node. `job`: key (`slurm/71`); `user`: the job's, None if unknown."""

    job: str
    user: int | None
    is_rank: bool


MembershipOf = Callable[[Caller], Awaitable[Membership | None]]
"""Returns the job on this node that the caller belongs to; None if it belongs to none that is known.

It should answer from memory, and read anything else in a thread. After 2 s the caller is asked to try again."""


class Acknowledge:
    """Takes acknowledgements. `current`: the ids of the notices that may be acknowledged now. `acknowledged` is called
    in the event loop for each accepted acknowledgement, including repeated ones; it may raise VerbError to refuse it.
    """

    def __init__(
        self,
        current: Callable[[], Collection[str]],
        membership_of: MembershipOf,
        acknowledged: Callable[[Acknowledged], None],
    ) -> None:
        self._current = current
        self._membership_of = membership_of
        self._acknowledged = acknowledged
        self._refusals = _Refusals()

    async def verb(self, arguments: dict[str, Any], caller: Caller) -> dict[str, Any]:
        try:
            message = parse_acknowledgement(arguments)
        except ValueError as error:
            raise VerbError(str(error)) from None
        if message.notice not in self._current():
            raise VerbError(f"there is no notice {message.notice[:60]!r} to acknowledge")
        membership = await self._membership(caller)
        if membership is None:
            raise self._refusals.refused(f"{_name(caller)} belongs to no job that is known on this node", caller)
        job = membership.job
        self._may_acknowledge(caller, membership, all_ranks=message.all_ranks)
        named = arguments.get("job")
        if named is not None and named not in (job, job.partition("/")[2]):
            raise self._refusals.refused(
                f"{_name(caller)} belongs to {job}, and may not acknowledge for another job", caller
            )
        self._acknowledged(
            Acknowledged(
                job=job,
                pid=caller.pid,
                started=caller.started or 0,
                uid=caller.uid,
                notice=message.notice,
                rank=message.rank,
                saved=message.saved,
                step=message.step,
                all_ranks=message.all_ranks,
            )
        )
        return {"job": job}

    def _may_acknowledge(self, caller: Caller, membership: Membership, *, all_ranks: bool) -> None:
        """Raise VerbError unless the caller is the job's user or root, and a rank if it answers for all ranks."""
        if caller.uid not in (0, membership.user):
            if membership.user is None:
                raise VerbError(
                    f"the owner of {membership.job} is unknown: its processes are of several users, and Slurm has not answered; try again",
                    TRY_AGAIN,
                )
            raise self._refusals.refused(
                f"{_name(caller)} may not acknowledge for {membership.job}, which is user {membership.user}'s", caller
            )
        if all_ranks and not membership.is_rank:
            raise VerbError(
                f"{_name(caller)} is no rank of {membership.job} as of the last scan, and may not answer for all ranks; try again",
                TRY_AGAIN,
            )

    async def _membership(self, caller: Caller) -> Membership | None:
        """Return the caller's job, None if it has none. Raises VerbError if that is not known in time."""
        try:
            async with asyncio.timeout(_JOB_OF):
                membership = await self._membership_of(caller)
        except TimeoutError:
            raise VerbError(f"the job of process {caller.pid} was not found in time; try again", TRY_AGAIN) from None
        if caller.pid > 0:  # the PID may have been reused meanwhile; a process that has just ended is accepted
            stat = process_stat("/proc", caller.pid)
            if caller.started is None or (stat is not None and stat.started != caller.started):
                return None
        return membership


class _Refusals:
    """Refusals: each goes to its client, but one a minute is logged, since any user can cause any number."""

    def __init__(self) -> None:
        self._next = -math.inf
        self._not_logged = 0

    def refused(self, error: str, caller: Caller) -> VerbError:
        now = asyncio.get_running_loop().time()
        if now < self._next:
            self._not_logged += 1
        else:
            log.warning("acknowledgement refused", error=error, uid=caller.uid, not_logged=self._not_logged)
            self._next, self._not_logged = now + _REFUSALS_EVERY, 0
        return VerbError(error, NOT_ALLOWED)


def _name(caller: Caller) -> str:
    if caller.pid <= 0:
        return f"a process of user {caller.uid} in a PID namespace that is not visible from here"
    return f"process {caller.pid} of user {caller.uid}"
