"""Answers questions about a job on the daemon's sockets.

    {"verb": "why", "job": "4711"}      ->  {"ok": true, "result": {as `gpuwarden why --json`}}
    {"verb": "why", "hint": "4711"}     ->  the same for the caller's own job, else its user's newest

`hint`: the job number from Slurm in the caller's environment. A job of another user and a job that does not exist get
the same answer, after the same work. A job that is named is also looked up in the ledger; without a name only in
memory, which is cheap enough for every job to ask at its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from gpuwarden.base.peer import Peer
from gpuwarden.base.threads import detached
from gpuwarden.control.rate_limit import Pushes
from gpuwarden.features.why.asking import Asker, Folders, asker
from gpuwarden.features.why.causes import Around, answer
from gpuwarden.features.why.document import of_record, of_running
from gpuwarden.features.why.ending import pids_of_others
from gpuwarden.features.why.history import ended_of
from gpuwarden.features.why.lookup import Found, May, newest
from gpuwarden.features.why.model import Answer, Cause, End, Epoch, Record
from gpuwarden.features.why.names import NO_SUCH_JOB, names_of
from gpuwarden.features.why.sentences import Board
from gpuwarden.features.why.snapshot import of
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.jobs import Caller
from gpuwarden.publish.sockets.unix_socket import TRY_AGAIN, VerbError
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.process_stat import process_stat

CALLER_READ_WITHIN = 1.0
CALLERS_AT_ONCE = 16
"""Threads that identify callers. One that hangs keeps its slot, so that the daemon's other threads stay available."""
OWN_BURST, OWN_EVERY = 256, 0.5
"""Questions of one user in a row, and seconds until one more is allowed: all ranks of a node may ask at their end."""
LEDGER_READ_WITHIN = 2.5
"""Seconds. Together with CALLER_READ_WITHIN less than a verb may take."""


class Answering:
    """Answers `why`. `snapshot` returns the published one; `ledger` is the ledger's path, opened for each question."""

    def __init__(self, snapshot: Callable[[], Snapshot], *, ledger: Path, proc: Path, clock: Clock) -> None:
        self._snapshot = snapshot
        self._ledger, self._proc = ledger, proc
        self._clock = clock
        self._indices: dict[str, int | None] = {}
        self._asked, self._searched = Pushes(clock, OWN_BURST, OWN_EVERY), Pushes(clock)
        self._folders = Folders(proc, clock)
        self._reading: asyncio.Future[list[Record]] | None = None
        self._turn = asyncio.Lock()
        self._places = asyncio.Semaphore(CALLERS_AT_ONCE)

    def follow(self, snapshot: Snapshot) -> None:
        """Record the index of each GPU: a GPU that is lost keeps its last index."""
        for gpu in snapshot.verdict.gpus:
            if gpu.index is not None or gpu.slot not in self._indices:
                self._indices[gpu.slot] = gpu.index

    async def to_job(self, arguments: dict[str, Any], caller: Caller) -> dict[str, Any]:
        """Answer a process on the job socket, about the jobs that it may see."""
        text, hint = _asked(arguments)
        if self._asked.wait(caller.uid) or (text is not None and self._searched.wait(caller.uid)):
            raise VerbError("this user asks too often; try again in some seconds", TRY_AGAIN)
        who = await self._asker(caller)
        if text is None:
            return self._shown(self._own(who, hint, who.may), None)
        return self._shown(await self._named(text, who.may), text)

    async def to_operator(self, arguments: dict[str, Any], peer: Peer) -> dict[str, Any]:
        """Answer a process on the control socket, about all jobs."""
        text, hint = _asked(arguments)
        if text is not None:
            return self._shown(await self._named(text, _any), text)
        own = self._own(await self._asker(_caller(self._proc, peer)), hint, _any)
        shown = of(self._snapshot())
        return self._shown(own or newest(shown.running, shown.ended, _any), None)

    async def _asker(self, caller: Caller) -> Asker:
        """Identify the caller. Raises VerbError if that takes too long."""
        try:
            async with asyncio.timeout(CALLER_READ_WITHIN):
                await self._places.acquire()
                reading = detached("why: caller", lambda: asker(self._proc, caller, self._folders.now()))
                reading.add_done_callback(lambda _: self._places.release())
                return await asyncio.shield(reading)
        except (TimeoutError, RuntimeError):
            raise VerbError(f"process {caller.pid} could not be read in time; try again", TRY_AGAIN) from None

    def _own(self, who: Asker, hint: str, may: May) -> Found | None:
        """Return the job that the asker belongs to, else the newest of its user."""
        shown = of(self._snapshot())
        hinted = names_of(hint)[:1] if hint else ()
        return (
            newest(shown.running, shown.ended, who.has_own)
            or newest(shown.running, shown.ended, may, hinted)
            or newest(shown.running, shown.ended, who.may)
        )

    async def _named(self, text: str, may: May) -> Found | None:
        """Return the job of this name that the asker may see. Raises VerbError if only an unread ledger may have it."""
        try:
            names = names_of(text)
        except ValueError as error:
            raise VerbError(str(error)) from None
        past = await self._past(names)
        shown = of(self._snapshot())
        job = newest(shown.running, [*(past or ()), *shown.ended], may, names)
        if job is None and past is None:
            raise VerbError("the ledger could not be read in time, and memory has one day; try again", TRY_AGAIN)
        return job

    async def _past(self, names: Collection[str]) -> list[Record] | None:
        """Read the records of these names in the ledger; None if that takes too long. A hung read costs one thread."""
        try:
            async with asyncio.timeout(LEDGER_READ_WITHIN), self._turn:
                if self._reading is not None and not self._reading.done():
                    return None
                self._reading = detached("why: ledger", lambda: ended_of(self._ledger, names))
                await asyncio.wait((self._reading,))
        except TimeoutError:
            return None
        return None if self._reading.exception() is not None else self._reading.result()

    def _shown(self, job: Found | None, text: str | None) -> dict[str, Any]:
        """Return the document of a job. Raises VerbError if none was found."""
        if job is None:
            raise VerbError(_none_of(text), NO_SUCH_JOB)
        node, older = self._snapshot().service.node, job.older
        if job.record is not None:
            return of_record(job.record, self._indices, node=node, older=older)
        now, end = self._clock(), of(self._snapshot()).ends.get(job.epoch.name)
        so_far = self._so_far(job.epoch, end or End(at=now, known_from="processes"))
        return of_running(job.epoch, self._indices, now, end=end, answer=so_far, node=node, older=older)

    def _so_far(self, epoch: Epoch, end: End) -> Answer | None:
        """Return the answer if the job ended now, for a script that asks at its end; None if it names no cause."""
        gpus = self._snapshot().verdict.gpus
        boards = {gpu.slot: Board(index=self._indices.get(gpu.slot), serial=gpu.serial) for gpu in gpus}
        shown = of(self._snapshot())
        around = Around(boards=boards, pids=pids_of_others(epoch, shown.running, shown.ended), denied=shown.denied)
        so_far = answer(epoch, end, around)
        return None if so_far.cause in (Cause.NONE, Cause.NOT_SEEN) else so_far


def _asked(arguments: dict[str, Any]) -> tuple[str | None, str]:
    """Return the named job, and the hint. Raises VerbError."""
    text, hint = arguments.get("job"), arguments.get("hint")
    if not (text is None or isinstance(text, str)):
        raise VerbError('"job" must be a text such as "4711", or null')
    valid = isinstance(hint, str) and hint.isascii() and hint.isdigit() and len(hint) <= 10
    return text, hint if valid and isinstance(hint, str) else ""


def _none_of(text: str | None) -> str:
    if text is None:
        return (
            "no job of yours has or had GPUs of this node in the last day: name an older one, as in gpuwarden why 4711"
        )
    return f"no job {text[:60]!r} that you may see has or had GPUs of this node, as far back as its ledger goes"


def _any(_: Epoch, __: Record | None) -> bool:
    return True


def _caller(proc: Path, peer: Peer) -> Caller:
    stat = process_stat(proc, peer.pid) if peer.pid > 0 else None
    return Caller(pid=peer.pid, started=None if stat is None else stat.started, uid=peer.uid)
