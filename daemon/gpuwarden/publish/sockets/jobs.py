"""The Unix socket for jobs: they read whether the node may take work, and its termination. Features add verbs such as
`acknowledge`.

    {"verb": "status"}                        ->  {"ok": true, "result": {the public part of status}}
    {"verb": "notice", "wait": S, "tag": T}   ->  {"ok": true, "result": {"tag": T, "notice": {as notice.json}}}

With `wait` the response is sent when a termination is imminent, or, with the tag of the last response, when the
document has changed; after S seconds at the latest. Errors are those of the control socket.

Every user of the host may connect, so everything is bounded: a line (4 KiB), the time until it arrives (4 s), clients
(128, and 16 per user), and the clients that wait. Idle clients are disconnected for new ones: above the limit of a
user, the longest idle client of that user; above the total limit, that of the user with the most clients. Clients are
accepted a millisecond apart, so that few are served at a time if all ranks of a node acknowledge at once.
"""

from __future__ import annotations

import asyncio
import json
import math
import select
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gpuwarden.base.log import get_logger
from gpuwarden.base.peer import peer_of
from gpuwarden.publish.notices import WAIT_MOST, Notices
from gpuwarden.publish.sockets.listener import PACE, SocketListener
from gpuwarden.publish.sockets.unix_socket import TRY_AGAIN, LineConnection, SocketFile, VerbError, Verbs, failed
from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.process_stat import process_stat

log = get_logger()

NAME = "job.sock"
NEW_NAME = "job.new"
LINE_LIMIT = 4096
BACKLOG = 512
"""Clients queued in the kernel. A client that finds the queue full is refused at once and writes a file instead."""
_WAITERS_OF_USER = 8
_CHECK = 1.0  # seconds between two checks that a waiting client is still connected


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The process that connected. `pid` 0: its namespace is hidden. `started`: ticks since boot; None if exited."""

    pid: int
    started: int | None
    uid: int


JobVerb = Callable[[dict[str, Any], Caller], Awaitable[Any]]
"""A verb of jobs: called with its arguments and the caller. Raises VerbError."""


@dataclass(slots=True, eq=False)
class _Client:
    """A connected client. `idle_since`: loop time; None while its request is handled."""

    caller: Caller
    socket: socket.socket
    idle_since: float | None
    waits: bool = False
    connection: LineConnection | None = None
    task: asyncio.Task[None] | None = None


class JobSocket:
    """The socket for jobs.

    `status` returns the document for the verb `status`, without names of users and jobs; called on the loop. `notices`:
    the document for jobs and its waiting clients. `verbs`: those other than `status` and `notice`. `check_every`:
    seconds between two checks that the socket exists. `passed`: the socket, if systemd already listens on it.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        status: Callable[[], dict[str, Any]],
        notices: Notices,
        verbs: Mapping[str, JobVerb],
        clock: Clock = host_clock,
        clients: int = 128,
        clients_of_user: int = 16,
        deadline: float = 4.0,
        check_every: float = 5.0,
        passed: socket.socket | None = None,
    ) -> None:
        own = {"status": self._status, "notice": self._notice}
        others = {name: _for_caller(verb) for name, verb in verbs.items()}
        self._verbs = Verbs({**own, **others}, log, deadline, {"notice": WAIT_MOST + deadline})
        self._status_document = status
        self._notices = notices
        self._clients_most, self._clients_of_user = clients, clients_of_user
        self._deadline = deadline
        self._clients: set[_Client] = set()
        file = SocketFile(run_dir / NAME, NEW_NAME, 0o666, passed)
        self._listener = SocketListener(
            file, self._accepted, clock=clock, backlog=BACKLOG, check_every=check_every, deadline=deadline
        )
        self.path = file.path

    # --- start and stop

    async def start(self) -> None:
        """Listen, if possible; otherwise `error` returns the reason. Raises nothing; takes at most `deadline`."""
        await self._listener.check()

    async def run(self) -> None:
        """Check periodically, until cancelled, that the socket exists, and create it again if it was removed."""
        await self._listener.run()

    def error(self, now: Stamp) -> str:
        """Return why jobs cannot use the socket; "" if they can."""
        return self._listener.error(now)

    async def stop(self) -> None:
        """End all connections, and remove the socket if it is still this daemon's. Takes at most a few seconds."""
        await self._listener.close()
        tasks = [client.task for client in self._clients if client.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- clients

    def _accepted(self, sock: socket.socket) -> None:
        """Serve an accepted client, or refuse it if there is no room. Raises OSError if it has disconnected."""
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
        """Return True if there is room for a client of this user. Disconnects an idle client if needed."""
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
        _, gone = min(idle, key=lambda pair: pair[0])
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
        """Clean up after the client's task, which may have been cancelled before it started."""
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
        """Wait for a change of the notice while the client is connected. Raises VerbError if too many clients wait."""
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


def _for_caller(verb: JobVerb) -> Callable[[dict[str, Any], _Client], Awaitable[Any]]:
    return lambda arguments, client: verb(arguments, client.caller)


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise VerbError('"wait" must be a number of seconds')
    return float(min(value, WAIT_MOST))


def _hung_up(sock: socket.socket) -> bool:
    """Return True if the client closed both directions, not only its sending side."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, 0)
    return bool(poll.poll(0))
