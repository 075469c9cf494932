"""The Unix socket for jobs: they read whether this node may take work and when it ends, and acknowledge that they have saved.

    {"verb": "status"}                        ->  {"ok": true, "result": {the public part of status}}
    {"verb": "notice", "wait": S, "tag": T}   ->  {"ok": true, "result": {"tag": T, "notice": {as notice.json}}}
    {"verb": "acknowledge", "notice": ID, "rank": N, "saved": true, "step": N or null, "all_ranks": true}
                                              ->  {"ok": true, "result": {"job": "slurm/71"}}

With `wait` the response is sent once an end is imminent, or, with the tag of the last response, once it has changed; after S
seconds in any case. An acknowledgement comes from a process of the job, under the job's user or root. It holds for its own rank, unless
`all_ranks` is true: then for all of the job, on all its nodes, and it must come from a rank. It may name a `job`, which must then be the
caller's own. Errors are those of the control socket.

Every user of the host may connect, so that everything is bounded: a line (4 KiB), the time until it is there (4 s), clients (128,
and 16 of one user), how many of them wait. Idle clients give way: one client more of a user ends the one of the
same user that has been idle longest, and where there are too many altogether, of the user who has most. Clients are accepted
one at a time, a millisecond apart: of a whole node's ranks that acknowledge at once few are served at a time.
"""

from __future__ import annotations

import asyncio
import json
import math
import select
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuwarden.base.log import get_logger
from gpuwarden.publish.notices import WAIT_MOST, Notices
from gpuwarden.publish.sockets.listener import PACE, SocketListener
from gpuwarden.publish.sockets.unix_socket import (
    NOT_ALLOWED,
    TRY_AGAIN,
    LineConnection,
    SocketFile,
    VerbError,
    Verbs,
    failed,
    peer_of,
)
from gpuwarden_collectors.acknowledgements.message import parse_acknowledgement
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.process_stat import process_stat

log = get_logger()

NAME = "job.sock"
NEW_NAME = "job.new"
LINE_LIMIT = 4096
BACKLOG = 512
"""Clients that wait in the kernel: one that finds the queue full is refused at once, and leaves a file instead."""
_JOB_OF = 2.0  # seconds
_WAITERS_OF_USER = 8
_CHECK = 1.0  # seconds between two checks whether a waiting client is still connected
_REFUSALS_EVERY = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The process that connected. `pid` 0: it is in a PID namespace that is not visible from here.

    `started`: ticks since boot; None if it was gone already when it was read.
    """

    pid: int
    started: int | None
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """The acknowledgement of a rank of `job`, from process `pid` of user `uid`; `started`: ticks since boot, 0 if it was gone by then.

    `all_ranks`: for all ranks of the job.
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
    """The relation of a process to a job on this node. `job`: its key (`slurm/71`); `user`: whose the job is, None if that is not known."""

    job: str
    user: int | None
    is_rank: bool


MembershipOf = Callable[[Caller], Awaitable[Membership | None]]
"""The job on this node that the caller belongs to; None if it belongs to none that is known.

Better from memory; what must be read for it is read in a thread. Given up after 2 s, and the caller gets "try again".
"""


@dataclass(slots=True, eq=False)
class _Client:
    """A connected client. `idle_since`: loop time; None while a request of it is handled."""

    caller: Caller
    socket: socket.socket
    idle_since: float | None
    waits: bool = False
    connection: LineConnection | None = None
    task: asyncio.Task[None] | None = None


class JobSocket:
    """The socket for jobs.

    `status` gives the document for the verb of that name, which may name no user and no job; the loop calls it. `current`: the ids of the
    notices that may be acknowledged now. The loop calls `acknowledged` for each acknowledgement that is accepted, repeated ones included;
    it may raise VerbError to refuse it after all. `notices`: the document for jobs and the clients that wait for it. `check_every`: seconds
    between two checks that the socket is there. `passed`: the socket, if systemd listens on it already.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        status: Callable[[], dict[str, Any]],
        notices: Notices,
        current: Callable[[], Collection[str]],
        membership_of: MembershipOf,
        acknowledged: Callable[[Acknowledged], None],
        clock: Clock = host_clock,
        clients: int = 128,
        clients_of_user: int = 16,
        deadline: float = 4.0,
        check_every: float = 5.0,
        passed: socket.socket | None = None,
    ) -> None:
        verbs = {"status": self._status, "notice": self._notice, "acknowledge": self._acknowledge}
        self._verbs = Verbs(verbs, log, deadline, {"notice": WAIT_MOST + deadline})
        self._status_document = status
        self._notices = notices
        self._current = current
        self._membership_of = membership_of
        self._acknowledged = acknowledged
        self._clients_most, self._clients_of_user = clients, clients_of_user
        self._deadline = deadline
        self._clients: set[_Client] = set()
        self._refusals = _Refusals()
        file = SocketFile(run_dir / NAME, NEW_NAME, 0o666, passed)
        self._listener = SocketListener(
            file, self._accepted, clock=clock, backlog=BACKLOG, check_every=check_every, deadline=deadline
        )
        self.path = file.path

    # --- life

    async def start(self) -> None:
        """Listen, if that can be done by now; else `error` has the reason. Raises nothing, and takes 4 s at most."""
        await self._listener.check()

    async def run(self) -> None:
        """Keep the socket in place until cancelled: check that it is there, and make it again if it was removed."""
        await self._listener.run()

    def error(self, now: Stamp) -> str:
        """Why jobs cannot reach it; empty if they can."""
        return self._listener.error(now)

    async def stop(self) -> None:
        """End every connection and remove the socket, if it is still this daemon's. Takes a few seconds at most."""
        await self._listener.close()
        tasks = [client.task for client in self._clients if client.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- clients

    def _accepted(self, sock: socket.socket) -> None:
        """An accepted client. Raises OSError if it is gone."""
        peer = peer_of(sock)
        stat = process_stat("/proc", peer.pid) if peer.pid > 0 else None
        caller = Caller(pid=peer.pid, started=None if stat is None else stat.started, uid=peer.uid)
        if not self._room(caller.uid):
            crowded = f"too many clients at once, at most {self._clients_of_user} of one user; try again"
            sock.send(json.dumps(failed(crowded, TRY_AGAIN)).encode() + b"\n")
            sock.close()
            return
        loop = asyncio.get_running_loop()
        client = _Client(caller, sock, loop.time())
        self._clients.add(client)
        client.task = loop.create_task(self._converse(client))
        client.task.add_done_callback(lambda _: self._left(client))

    def _room(self, uid: int) -> bool:
        """Return True if there is room for one more of this user, or has been made."""
        counts = Counter(client.caller.uid for client in self._clients)
        if counts[uid] >= self._clients_of_user:
            user = uid
        elif len(self._clients) >= self._clients_most:
            user = max(counts, key=counts.__getitem__)
        else:
            return True
        theirs = [(client.idle_since, client) for client in self._clients if client.caller.uid == user]
        idle = [(since, client) for since, client in theirs if since is not None]
        if not idle:
            return False
        _, gone = min(idle, key=lambda one: one[0])
        self._clients.discard(gone)
        if gone.task is not None:
            gone.task.cancel()
        return True

    async def _converse(self, client: _Client) -> None:
        loop = asyncio.get_running_loop()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=client.socket, limit=LINE_LIMIT)
            client.connection = connection = LineConnection(
                reader, writer, log, deadline=self._deadline, limit=LINE_LIMIT
            )
            while (line := await connection.line()) is not None:
                client.idle_since = None
                await connection.send(await self._verbs.respond(line, client))
                client.idle_since = loop.time()
                await asyncio.sleep(PACE)
        except (OSError, TimeoutError):
            pass  # the peer is gone or does not read: there is no client to answer

    def _left(self, client: _Client) -> None:
        """Its task has ended, which may have been cancelled before it began."""
        self._clients.discard(client)
        if client.connection is None:
            client.socket.close()
        else:
            client.connection.close()

    # --- verbs

    async def _status(self, _: dict[str, Any], __: _Client) -> dict[str, Any]:
        return self._status_document()

    async def _notice(self, arguments: dict[str, Any], client: _Client) -> dict[str, Any]:
        seconds, tag = _seconds(arguments.get("wait", 0)), arguments.get("tag", "")
        if not isinstance(tag, str):
            raise VerbError('"tag" must be the tag of an earlier response')
        if seconds > 0:
            await self._wait(client, seconds, tag)
        if not self._notices.body:
            raise VerbError("the daemon has only just started and has no data yet; try again", TRY_AGAIN)
        return {"tag": self._notices.tag, "notice": json.loads(self._notices.body)}

    async def _wait(self, client: _Client, seconds: float, tag: str) -> None:
        """Raises VerbError if too many do already."""
        others = [other for other in self._clients if other.waits and other.caller.uid == client.caller.uid]
        if len(others) >= _WAITERS_OF_USER:
            raise VerbError(f"{_WAITERS_OF_USER} clients of this user wait already; try again", TRY_AGAIN)
        client.waits = True
        waiting = asyncio.ensure_future(self._notices.wait(seconds, tag, server="jobs"))
        try:
            while not waiting.done() and not _hung_up(client.socket):
                await asyncio.wait((waiting,), timeout=_CHECK)
            if waiting.done() and not waiting.result():
                raise VerbError("too many clients wait already; try again", TRY_AGAIN)
        finally:
            client.waits = False
            waiting.cancel()

    async def _acknowledge(self, arguments: dict[str, Any], client: _Client) -> dict[str, Any]:
        caller = client.caller
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
        """Raises VerbError."""
        if caller.uid not in (0, membership.user):
            if membership.user is None:
                raise VerbError(
                    f"whose {membership.job} is, is not known: its processes are of several users, and Slurm has not answered; try again",
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
        """Raises VerbError."""
        try:
            async with asyncio.timeout(_JOB_OF):
                membership = await self._membership_of(caller)
        except TimeoutError:
            raise VerbError(f"the job of process {caller.pid} was not found in time; try again", TRY_AGAIN) from None
        if caller.pid > 0:  # its number may have become another's while its job was read; what has just ended is known
            stat = process_stat("/proc", caller.pid)
            if caller.started is None or (stat is not None and stat.started != caller.started):
                return None
        return membership


class _Refusals:
    """Refusals: sent to each refused client, and logged once a minute, since any user can cause as many as they like."""

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


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise VerbError('"wait" must be a number of seconds')
    return float(min(value, WAIT_MOST))


def _hung_up(sock: socket.socket) -> bool:
    """Closed at the other end, in both directions. A client that only closed its sending side has not hung up."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))
