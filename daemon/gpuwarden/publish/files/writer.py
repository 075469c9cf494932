"""Files for other readers, kept up to date by a thread and replaced atomically. Errors are reported."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from gpuwarden.base.background import BackgroundWriter
from gpuwarden.base.files import replace_file
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.facts import Stamp

_STALLED = 5.0  # seconds after which a write that hangs is reported


class Kept:
    """A file or folder, kept up to date by a thread. Of several pending states only the newest is written."""

    def __init__(self, path: Path, clock: Clock, *, remedy: str, name: str = "", verb: str = "write") -> None:
        """Start the thread `name`. `remedy`: advice for operators if the daemon cannot `verb` the file."""
        self._path = path
        self._remedy, self._verb = remedy, verb
        self._error = ""  # of the last write
        self._writer = BackgroundWriter(
            name or path.name, 1, newest_wins=True, on_error=self._failed, clock=lambda: clock().boottime
        )

    def error(self, now: Stamp) -> str:
        """Return why the file is not up to date, or may not be after the next change; "" if there is no error."""
        stalled = self._writer.stalled_for(now.boottime)
        if stalled > _STALLED:
            return f"cannot {self._verb} {self._path}: no response for {stalled:.0f} s; is its filesystem frozen?"
        return self._error

    async def flush(self, timeout: float) -> bool:  # noqa: ASYNC109 - returns False at the deadline, which is no error here
        return await self._writer.flush(timeout)

    def close(self, timeout: float) -> bool:
        """End the thread; return False if it hangs. Blocks: call it after `flush`, or without a loop."""
        return self._writer.close(timeout)

    def _failed(self, error: Exception) -> None:
        why = error.strerror if isinstance(error, OSError) else repr(error)
        self._error = f"cannot {self._verb} {self._path}: {why}; {self._remedy}"


class KeptFile(Kept):
    """A file that every user may read."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__(path, clock, remedy="check that the directory is writable and has room")

    def write(self, text: Callable[[], str], *, urgent: bool = False) -> None:
        """Have the file written. `text` is called right before the write.

        `urgent`: if there is no room for a second file, remove the old one first. A reader may briefly find no file, or
        none at all if the second attempt fails too.
        """
        self._writer.submit(lambda: self._write(text(), urgent=urgent))

    def _write(self, text: str, *, urgent: bool) -> None:
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace_file(self._path, text, mode=0o644)
        except OSError:
            if urgent:
                with contextlib.suppress(OSError):
                    self._path.unlink(missing_ok=True)  # possible on a full file system, and frees space
                    replace_file(self._path, text, mode=0o644)
            raise
        self._error = ""
