"""Whether a job has saved, by the looks of the directory in which it keeps its checkpoints.

That directory is the user's, on whatever file system: it is looked at by a child process which has the job's user and
groups and no capabilities, through the eyes of one of the job's processes (its root directory, for containers), and
which is given up after a deadline. A dead file server hangs it and nobody else; a job whose last child cannot be
ended is not looked at again until it has.

It takes a guess: a program that writes nothing for a while in the midst of its save is taken to be done. What the job itself
says counts more.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from dataclasses import asdict, dataclass
from enum import StrEnum

from gpuwarden_collectors.plugin.run import Process, Run, run

_VARIABLE = "GPUWARDEN_LOOK"
"""What the child is asked. Not among its arguments, which everybody on the host may read."""
_CHILD = "gpuwarden_collectors.acknowledgements.directory_child"
_PATH_MOST = 4096


class Look(StrEnum):
    SAVED = "saved"  # something is newer than the signal, nothing is half written, and nothing changed for a while
    WRITING = "writing"  # something is newer, and it still changes or is marked as unfinished
    NOTHING = "nothing"  # nothing is newer than the signal
    UNKNOWN = "unknown"  # it could not be looked at, or not in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """`job`: any name for it. `pid`, `started`: a process of it whose groups and file system are taken; `uid`: whose it must be.

    `directory`: absolute, as that process knows it. `since`: Unix time of the signal.
    """

    job: str
    pid: int
    started: int
    uid: int
    directory: str
    since: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryLook:
    """`newest`: Unix time of the last write that was seen, by the clock of the file system. `text` says why, for people."""

    look: Look
    newest: float | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class _Seen:
    """`imprint`: the same as long as nothing changes. `marker`: a name that says that something is half written."""

    newest: float
    imprint: str
    marker: str


class CheckpointDirectories:
    """`deadline` in seconds for one look. `settled`: nothing may change for so long until what is there is taken for whole.

    At most `children` run at a time. `python` starts the child.
    """

    def __init__(
        self, *, python: str = sys.executable, deadline: float = 5.0, settled: float = 5.0, children: int = 4
    ) -> None:
        self._command = (python, "-P", "-m", _CHILD, _VARIABLE)
        self._deadline = deadline
        self._settled = settled
        self._turns = asyncio.Semaphore(children)
        self._asked: set[str] = set()
        self._left: dict[str, Process] = {}
        self._since: dict[str, tuple[str, float]] = {}

    async def look(self, watched: Watched) -> DirectoryLook:
        """Takes twice `deadline` and a few seconds at most, and raises nothing.

        To be repeated every second or two while it is WRITING or NOTHING; the first look never says SAVED.
        """
        why = self._objection(watched)
        if why:
            return DirectoryLook(look=Look.UNKNOWN, text=why)
        self._asked.add(watched.job)
        try:
            async with asyncio.timeout(self._deadline):
                await self._turns.acquire()
            try:
                return await self._turn(watched)
            finally:
                self._turns.release()
        except TimeoutError:
            return DirectoryLook(look=Look.UNKNOWN, text="the directories of other jobs are still being looked at")
        finally:
            self._asked.discard(watched.job)

    def forget(self, job: str) -> None:
        """What was seen of it, when its departure ends."""
        self._since.pop(job, None)

    def _objection(self, watched: Watched) -> str:
        left = self._left.get(watched.job)
        if left is not None and left.gone():
            left.reap()
            self._left.pop(watched.job)
        elif left is not None:
            return f"the last look (pid {left.pid}) is still stuck in the kernel; is the file server dead?"
        if watched.job in self._asked:
            return "it is being looked at already"
        directory = watched.directory
        if not directory.startswith("/") or "\0" in directory or len(os.fsencode(directory)) > _PATH_MOST:
            return "the job names no absolute directory"
        return ""

    async def _turn(self, watched: Watched) -> DirectoryLook:
        loop = asyncio.get_running_loop()
        began = loop.time()
        question = {**asdict(watched), "seconds": self._deadline * 0.6}
        environment = {"PATH": os.defpath, _VARIABLE: json.dumps(question)}
        done = await run(self._command, environment, self._deadline)
        if done.left is not None:
            self._left[watched.job] = done.left
        seen = _seen(done)
        if isinstance(seen, str):
            self._since.pop(watched.job, None)
            return DirectoryLook(look=Look.UNKNOWN, text=seen)
        return self._judged(watched, seen, began, loop.time())

    def _judged(self, watched: Watched, seen: _Seen, began: float, ended: float) -> DirectoryLook:
        imprint, since = self._since.get(watched.job, ("", ended))
        if imprint != seen.imprint:
            self._since[watched.job], since = (seen.imprint, ended), ended
        quiet = began - since  # less than nothing with the first look at it
        if seen.newest <= watched.since:
            return DirectoryLook(look=Look.NOTHING, newest=seen.newest or None, text="nothing was written since")
        if seen.marker:
            why = f"{seen.marker!r} says that something is half written"
        elif quiet < self._settled:
            why = f"nothing changed for {max(quiet, 0):.1f} s, which is less than {self._settled:g}"
        else:
            return DirectoryLook(look=Look.SAVED, newest=seen.newest)
        return DirectoryLook(look=Look.WRITING, newest=seen.newest, text=why)


def _seen(done: Run) -> _Seen | str:
    """What the child saw, or why it saw nothing. It has run under the job's user, and is trusted no further."""
    if done.exit_code != 0:
        return f"the look {done.error or f'ended with {done.exit_code}'}"
    try:
        answer = json.loads(done.stdout)
        trouble, newest, imprint, marker = (answer[key] for key in ("trouble", "newest", "imprint", "marker"))
    except (ValueError, RecursionError, TypeError, KeyError):
        return "the look gave no answer that can be read"
    if isinstance(trouble, str) and trouble:
        return _printable(trouble)
    number = isinstance(newest, int | float) and not isinstance(newest, bool) and math.isfinite(newest)
    if not (number and isinstance(imprint, str) and isinstance(marker, str)):
        return "the look gave no answer that can be read"
    return _Seen(float(newest), imprint[:200], _printable(marker))


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:200])
