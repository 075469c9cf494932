"""The helper's record of its steps, in a folder of root's, and the limits that follow from it.

An entry is on disk before its step begins, and changes after each part of it: if a helper is killed at any point, it
shows what was done, what was not, and what must be put back. Two locks show who works: a helper holds `helper.lock`
while it carries out a step; its commands hold `commands.lock` as well, so that one that outlives its helper is
detected. The kernel releases both when their holders end.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from gpuwarden.base.files import lock, replace_file
from gpuwarden_collectors.dataclass import dataclass

HOUR = 3600.0
STEPS_MOST, STEPS_WITHIN = 10, 24 * HOUR
REBOOTS_MOST, REBOOTS_WITHIN = 1, 6 * HOUR
"""Most steps that are begun, whatever the daemon requests: as many as `repair.per_day` allows by default. The daemon
has its own budgets, too; these limit an intruder in it."""
REST = 120.0
"""Seconds for which a step that was done is not repeated: whoever requests it, such as a second daemon on this node,
has not read its result. As long as a node must be without an Xid after a step (`requirement.QUIET_FOR`)."""
_KEPT = 64
_BYTES_MOST = 1 << 20
_TEXT_MOST = 500

State = Literal["running", "done", "failed"]
Stage = Literal["before", "command", "after"]


class NotebookError(Exception):
    """The notebook cannot be used, so that no step is carried out. The message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One step. `start`, `load` and `persist`: units, modules, and slots of GPUs with persistence mode, to put back."""

    id: str
    step: str
    subject: str
    begun: float
    boot: str
    state: State = "running"
    stage: Stage = "before"
    """Progress: its command has not begun, may be running, or has ended."""
    succeeded: bool = False
    """The command has ended successfully."""
    refused: bool = False
    text: str = ""
    ended: float = 0.0
    start: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    persist: tuple[str, ...] = ()


class Notebook:
    """Entries, oldest first. Only the holder of the helper's lock may `add` and `change`: both raise NotebookError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "notebook.json"

    @property
    def entries(self) -> list[Entry]:
        """Return the entries. Raises NotebookError: without them no limit holds, so that nothing is done."""
        try:
            with self._file.open("rb") as file:
                rows = json.loads(file.read(_BYTES_MOST))
            return [_entry(row) for row in rows]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise NotebookError(f"cannot read {self._file} ({error}): move it away, if you know its steps") from error

    def find(self, wanted: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.id == wanted), None)

    def add(self, entry: Entry) -> Entry:
        self._write([*self.entries, entry][-_KEPT:])
        return entry

    def change(self, entry: Entry) -> Entry:
        self._write([entry if other.id == entry.id else other for other in self.entries])
        return entry

    def end(self, entry: Entry, state: State, text: str, now: float, *, refused: bool = False) -> Entry:
        return self.change(replace(entry, state=state, text=text[:_TEXT_MOST], ended=now, refused=refused))

    def over_limit(self, step: str, subject: str, now: float) -> str:
        """Return why no further step may begin, or "". An entry of the future counts, since the clock was set back."""
        entries = self.entries
        begun = [entry for entry in entries if entry.begun > now - STEPS_WITHIN]
        if len(begun) >= STEPS_MOST:
            return f"{len(begun)} steps were begun on this node within 24 h; the limit is {STEPS_MOST}"
        reboots = [
            entry
            for entry in entries
            if entry.step == "reboot" and not entry.refused and entry.begun > now - REBOOTS_WITHIN
        ]
        if step == "reboot" and len(reboots) >= REBOOTS_MOST:
            return "a reboot of this node was begun within 6 h; the limit is one"
        done = [entry for entry in entries if (entry.step, entry.subject, entry.state) == (step, subject, "done")]
        if any(entry.ended > now - REST for entry in done):
            return f"it was done less than {REST:.0f} s ago: check its result first"
        return ""

    def _write(self, entries: list[Entry]) -> None:
        content = json.dumps([asdict(entry) for entry in entries], indent=1)
        try:
            replace_file(self._file, content, mode=0o600, synced=True)
        except OSError as error:
            raise NotebookError(
                f"cannot write {self._file}: {error.strerror}; no step is carried out without it"
            ) from error

    def check(self) -> None:
        """Create the folder if it is missing. Raises NotebookError if other users can write to it."""
        try:
            with suppress(FileExistsError):
                self._folder.mkdir(mode=0o700)
            status = self._folder.lstat()
        except OSError as error:
            raise NotebookError(f"cannot use {self._folder}: {error.strerror}") from error
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise NotebookError(f"{self._folder} is not a folder that only root can write: remove it")

    def lock(self, name: Literal["helper", "commands"], within: float = 0.0) -> AbstractContextManager[int | None]:
        """The open file of the lock, until the end of the block; None if another has it for so many seconds."""
        return lock(self._lock_file(name), within)

    def is_locked(self, name: Literal["helper", "commands"]) -> bool:
        """Return True if somebody has the lock. Those who only ask do not stand in each other's way."""
        file = os.open(self._lock_file(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
        return False

    def _lock_file(self, name: str) -> Path:
        return self._folder / f"{name}.lock"


def _entry(row: dict[str, Any]) -> Entry:
    """Parse an entry. Raises TypeError for a row of another form."""
    return Entry(**{**row, **{name: tuple(row[name]) for name in ("start", "load", "persist")}})
