"""The verb `record`: streams the daemon's readings to `gpuwarden record`, so that GPUs are not read twice.

    {"verb": "record"}                                  ->  {"session": "…", "trace": "…lines…", "more": false, …}
    {"verb": "record", "session": "…"}                  ->  the same, with what came since
    {"verb": "record", "session": "…", "end": true}     ->  the last of it; ask on while `more`

A separate thread renders the lines, of which at most `BYTES_MOST` wait in memory. A client that does not fetch for
`FORGOTTEN` seconds counts as gone. The daemon writes no file, so neither a full disk nor a path chosen by a client
affects it.
"""

from __future__ import annotations

import io
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from gpuwarden.base.peer import Peer
from gpuwarden.engine.engine import Engine
from gpuwarden.health.checkpoint import checkpoint
from gpuwarden.publish.sockets.control import TRY_AGAIN, Verb, VerbError
from gpuwarden.trace.recorder import Recording
from gpuwarden.trace.records import Began, ErrorsChanged, Record
from gpuwarden_collectors.base import Clock

SESSIONS_MOST = 2
BYTES_MOST = 8 << 20
PIECE = 256 << 10
"""Least bytes of one answer, if available; many more would block the loop for milliseconds."""
FORGOTTEN = 20.0
WRITTEN_WITHIN = 1.0


class Service(Protocol):
    engine: Engine


class Spool(io.BufferedIOBase):
    """A buffer of lines for a client. `write` raises OSError if too many wait."""

    def __init__(self, most: int = BYTES_MOST) -> None:
        self._most = most
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._lock = threading.Lock()

    def writable(self) -> bool:
        return True

    def write(self, line: Any) -> int:
        with self._lock:
            if self._waiting + len(line) > self._most:
                raise OSError(f"it was not fetched fast enough: more than {self._most} bytes wait")
            self._lines.append(bytes(line))
            self._waiting += len(line)
        return len(line)

    def take(self, least: int) -> bytes:
        """Return complete lines, at least `least` bytes if available."""
        taken: list[bytes] = []
        size = 0
        with self._lock:
            while self._lines and size < least:
                taken.append(self._lines.popleft())
                size += len(taken[-1])
            self._waiting -= size
        return b"".join(taken)

    @property
    def empty(self) -> bool:
        return not self._lines


class _Session(Recording):
    """Records until it is abandoned; then it stops and its thread ends."""

    def __init__(self, now: float, gone: Callable[[], None]) -> None:
        self.spool = Spool()
        self.asked = now
        self._gone = gone
        super().__init__(self.spool)

    def take(self, record: Record) -> None:
        if record.at.boottime - self.asked > FORGOTTEN:
            self._gone()
        else:
            super().take(record)


class _Sessions:
    def __init__(self, service: Service, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._open: dict[str, _Session] = {}

    def begin(self) -> str:
        if len(self._open) >= SESSIONS_MOST:
            raise VerbError(f"{len(self._open)} recordings are already in progress; try again", TRY_AGAIN)
        engine, now, name = self._service.engine, self._clock(), secrets.token_hex(8)
        session = _Session(now.boottime, partial(self.give_up, name))
        memory = tuple(checkpoint(engine.state, now))
        session.take(Began(at=now, boot_id=engine.view.boot_id, rules=engine.rules, memory=memory))
        if engine.view.errors:
            session.take(ErrorsChanged(at=now, errors=dict(engine.view.errors)))
        engine.listeners.append(session.take)
        self._open[name] = session
        return name

    def asked(self, name: str) -> _Session:
        if name not in self._open:
            raise VerbError(f"there is no recording {name[:40]!r}: it was not fetched for {FORGOTTEN:g} s", TRY_AGAIN)
        session = self._open[name]
        session.asked = self._clock().boottime
        return session

    def silence(self, session: _Session) -> None:
        if session.take in self._service.engine.listeners:
            self._service.engine.listeners.remove(session.take)

    def give_up(self, name: str) -> None:
        if (session := self._open.pop(name, None)) is not None:
            self.silence(session)
            session.close(0.0)


def record_verbs(service: Service, clock: Clock) -> Mapping[str, Verb]:
    sessions = _Sessions(service, clock)

    async def record(arguments: dict[str, Any], _: Peer) -> Any:
        name, ends = arguments.get("session"), arguments.get("end", False)
        if not isinstance(name, str | None) or not isinstance(ends, bool):
            raise VerbError("record needs the session that a response gave, or none")
        name = sessions.begin() if name is None else name
        session = sessions.asked(name)
        if ends:
            sessions.silence(session)
        await session.flush(WRITTEN_WITHIN)
        piece, error = session.spool.take(PIECE), session.error
        more = not session.spool.empty
        if not more and (ends or error):
            sessions.give_up(name)
        return {"session": name, "trace": piece.decode(), "more": more, "error": error, "dropped": session.dropped}

    return {"record": record}
