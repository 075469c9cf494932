"""The Unix socket for jobs: they are told whether this node may take work and when it ends, and can say that they have saved.

    {"verb": "status"}                        ->  {"ok": true, "result": {what the daemon shows to everybody}}
    {"verb": "notice", "wait": S, "tag": T}   ->  {"ok": true, "result": {"tag": T, "notice": {as notice.json}}}
    {"verb": "acknowledge", "notice": ID, "rank": N, "saved": true, "step": N or null, "all_ranks": true}
                                              ->  {"ok": true, "result": {"job": "slurm/71"}}

With `wait` the answer comes once an end is imminent, or, with the tag of the last answer, once it is another; after S
seconds in any case. An acknowledgement holds for its own rank, unless `all_ranks` is true: then for all of the job, on all its
nodes. It may name a `job`, which must then be the caller's own. Errors are those of the control socket.

Anybody on the host may connect, so that everything is bounded: a line (4 KiB), the time until it is there (4 s), clients (128,
and 16 of one user), how many of them wait. Who is silent gives way: one client more of a user ends the silent one of the
same user that has been so for longest, and where there are too many altogether, of the user who has most. Clients are let
in one at a time, and each has a millisecond: a whole node's ranks that acknowledge at once stay few at a time.
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
from typing import TYPE_CHECKING, Any

from gpuwarden.publish.notices import WAIT_MOST, Notices
from gpuwarden.publish.sockets.listener import PACE, Door
from gpuwarden.publish.sockets.unix_socket import (
    NOT_ALLOWED,
    TRY_AGAIN,
    SocketFile,
    Talk,
    VerbError,
    Verbs,
    failed,
    peer_of,
)
from gpuwarden_collectors.acknowledgements.message import parse_acknowledgement
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.process_stat import process_stat

if TYPE_CHECKING:  # structlog is for gpuwarden.base.log to import, which keeps it small
    from structlog.typing import FilteringBoundLogger

NAME = "job.sock"
NEW_NAME = "job.new"
LINE_LIMIT = 4096
BACKLOG = 512
"""Of the kernel: a client that finds it full is turned away at once, and leaves a file instead."""
_JOB_OF = 2.0  # seconds
_WAITERS_OF_USER = 8
_LOOK = 1.0  # seconds between two looks whether somebody who waits is still there
_REFUSALS_EVERY = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who connected. `pid` 0: it is in a PID namespace that cannot be seen from here.

    `started`: ticks since boot; None if it was gone already when it was looked at.
    """

    pid: int
    started: int | None
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    """A rank of `job` has said so, from process `pid` of user `uid`; `started`: ticks since boot, 0 if it was gone by then.

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


JobOf = Callable[[Caller], Awaitable[str | None]]
"""The key of the job on this node that the caller belongs to (`slurm/71`), None if it belongs to none that is known.

Better from memory; what must be read for it is read in a thread. Given up after 2 s, and the caller told to try again.
"""


@dataclass(slots=True, eq=False)
class _Client:
    """`silent_since`: loop time; None while something is being done for it."""

    caller: Caller
    socket: socket.socket
    silent_since: float | None
    waits: bool = False
    talk: Talk | None = None
    task: asyncio.Task[None] | None = None


class JobSocket:
    """`status` gives the document for the verb of that name: nothing in it may be about users or jobs. It is called in the loop.

    `current`: the ids of the notices that may be acknowledged now. `acknowledged` is called in the loop for each that is
    accepted, repeated ones included; it may raise VerbError to refuse it after all. `notices`: the document for jobs and
    who waits for it. `look_every` in seconds: how often it is made sure that the socket is still there. `passed`: the
    socket, if systemd listens on it already.
    """

    def __init__(
        self,
        run_dir: Path,
        log: FilteringBoundLogger,
        *,
        status: Callable[[], dict[str, Any]],
        notices: Notices,
        current: Callable[[], Collection[str]],
        job_of: JobOf,
        acknowledged: Callable[[Acknowledged], None],
        clock: Clock = host_clock,
        clients: int = 128,
        clients_of_user: int = 16,
        deadline: float = 4.0,
        look_every: float = 5.0,
        passed: socket.socket | None = None,
    ) -> None:
        verbs = {"status": self._status, "notice": self._notice, "acknowledge": self._acknowledge}
        self._verbs = Verbs(verbs, log, deadline, {"notice": WAIT_MOST + deadline})
        self._log = log
        self._say_status = status
        self._notices = notices
        self._current = current
        self._job_of = job_of
        self._acknowledged = acknowledged
        self._clients_most, self._clients_of_user = clients, clients_of_user
        self._deadline = deadline
        self._clients: set[_Client] = set()
        self._refusals = _Refusals(log)
        file = SocketFile(run_dir / NAME, NEW_NAME, 0o666, passed)
        self._door = Door(
            file, self._welcome, log, clock=clock, backlog=BACKLOG, look_every=look_every, deadline=deadline
        )
        self.path = file.path

    # --- life

    async def start(self) -> None:
        """Listen, if that can be done by now; `trouble` says if not. Raises nothing, and takes 4 s at most."""
        await self._door.look()

    async def run(self) -> None:
        """For ever, until cancelled: makes sure that the socket is there, and makes it anew if somebody removed it."""
        await self._door.run()

    def trouble(self, now: Stamp) -> str:
        """Why jobs cannot reach it; empty if they can."""
        return self._door.trouble(now)

    async def stop(self) -> None:
        """End every talk and remove the socket, if it is still ours. Takes a few seconds at most."""
        await self._door.close()
        tasks = [client.task for client in self._clients if client.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- who comes in

    def _welcome(self, sock: socket.socket) -> None:
        """A client that was let in. Raises OSError if it is gone."""
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
        client.task = loop.create_task(self._talk(client))
        client.task.add_done_callback(lambda _: self._left(client))

    def _room(self, uid: int) -> bool:
        """Whether there is room for one more of this user, or has been made."""
        counts = Counter(client.caller.uid for client in self._clients)
        if counts[uid] >= self._clients_of_user:
            crowd = uid
        elif len(self._clients) >= self._clients_most:
            crowd = max(counts, key=counts.__getitem__)
        else:
            return True
        theirs = [(client.silent_since, client) for client in self._clients if client.caller.uid == crowd]
        silent = [(since, client) for since, client in theirs if since is not None]
        if not silent:
            return False
        _, gone = min(silent, key=lambda one: one[0])
        self._clients.discard(gone)
        if gone.task is not None:
            gone.task.cancel()
        return True

    async def _talk(self, client: _Client) -> None:
        loop = asyncio.get_running_loop()
        try:
            reader, writer = await asyncio.open_unix_connection(sock=client.socket, limit=LINE_LIMIT)
            client.talk = talk = Talk(reader, writer, self._log, deadline=self._deadline, limit=LINE_LIMIT)
            while (line := await talk.line()) is not None:
                client.silent_since = None
                await talk.send(await self._verbs.answer(line, client))
                client.silent_since = loop.time()
                await asyncio.sleep(PACE)
        except (OSError, TimeoutError):
            pass  # the peer went away or takes nothing: there is nobody to tell

    def _left(self, client: _Client) -> None:
        """Its task is over, which may have been cancelled before it began."""
        self._clients.discard(client)
        if client.talk is None:
            client.socket.close()
        else:
            client.talk.close()

    # --- verbs

    async def _status(self, _: dict[str, Any], __: _Client) -> dict[str, Any]:
        return self._say_status()

    async def _notice(self, arguments: dict[str, Any], client: _Client) -> dict[str, Any]:
        seconds, tag = _seconds(arguments.get("wait", 0)), arguments.get("tag", "")
        if not isinstance(tag, str):
            raise VerbError('"tag" must be the tag of an earlier answer')
        if seconds > 0:
            await self._wait(client, seconds, tag)
        if not self._notices.body:
            raise VerbError("the daemon has only just started and knows nothing yet; try again", TRY_AGAIN)
        return {"tag": self._notices.tag, "notice": json.loads(self._notices.body)}

    async def _wait(self, client: _Client, seconds: float, tag: str) -> None:
        """Raises VerbError if too many do already."""
        crowd = [other for other in self._clients if other.waits and other.caller.uid == client.caller.uid]
        if len(crowd) >= _WAITERS_OF_USER:
            raise VerbError(f"{_WAITERS_OF_USER} clients of this user wait already; try again", TRY_AGAIN)
        client.waits = True
        waiting = asyncio.ensure_future(self._notices.wait(seconds, tag, door="jobs"))
        try:
            while not waiting.done() and not _hung_up(client.socket):
                await asyncio.wait((waiting,), timeout=_LOOK)
            if waiting.done() and not waiting.result():
                raise VerbError("too many wait already; try again", TRY_AGAIN)
        finally:
            client.waits = False
            waiting.cancel()

    async def _acknowledge(self, arguments: dict[str, Any], client: _Client) -> dict[str, Any]:
        caller = client.caller
        try:
            words = parse_acknowledgement(arguments)
        except ValueError as error:
            raise VerbError(str(error)) from None
        if words.notice not in self._current():
            raise VerbError(f"there is no notice {words.notice[:60]!r} now that could be acknowledged")
        job = await self._own_job(caller)
        if job is None:
            raise self._refusals.refused(f"{_name(caller)} belongs to no job that is known on this node", caller)
        named = arguments.get("job")
        if named is not None and named not in (job, job.partition("/")[2]):
            raise self._refusals.refused(f"{_name(caller)} belongs to {job}, and may not speak for another job", caller)
        self._acknowledged(
            Acknowledged(
                job=job, pid=caller.pid, started=caller.started or 0, uid=caller.uid,
                notice=words.notice, rank=words.rank, saved=words.saved, step=words.step,
                all_ranks=words.all_ranks,
            )
        )  # fmt: skip
        return {"job": job}

    async def _own_job(self, caller: Caller) -> str | None:
        """Raises VerbError."""
        try:
            async with asyncio.timeout(_JOB_OF):
                job = await self._job_of(caller)
        except TimeoutError:
            raise VerbError(f"whose process {caller.pid} is was not found out in time; try again", TRY_AGAIN) from None
        if caller.pid > 0:  # its number may have become another's while it was looked for; what has just ended is known
            stat = process_stat("/proc", caller.pid)
            if caller.started is None or (stat is not None and stat.started != caller.started):
                return None
        return job


class _Refusals:
    """Told to whoever is refused, each time, and to the log once a minute: anybody can be refused as often as they like."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._next = -math.inf
        self._unsaid = 0

    def refused(self, error: str, caller: Caller) -> VerbError:
        now = asyncio.get_running_loop().time()
        if now < self._next:
            self._unsaid += 1
        else:
            self._log.warning("acknowledgement refused", error=error, uid=caller.uid, more_since=self._unsaid)
            self._next, self._unsaid = now + _REFUSALS_EVERY, 0
        return VerbError(error, NOT_ALLOWED)


def _name(caller: Caller) -> str:
    if caller.pid <= 0:
        return f"a process of user {caller.uid} in a PID namespace that cannot be seen from here"
    return f"process {caller.pid} of user {caller.uid}"


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise VerbError('"wait" must be a number of seconds')
    return float(min(value, WAIT_MOST))


def _hung_up(sock: socket.socket) -> bool:
    """Closed at the other end, for both directions. Who only has nothing more to say has not hung up."""
    if sock.fileno() < 0:
        return True
    look = select.poll()
    look.register(sock, 0)
    return bool(look.poll(0))
