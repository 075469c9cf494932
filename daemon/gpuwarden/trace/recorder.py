"""Records a trace while the daemon works: records are queued, and a separate thread writes them.

The thread computes differences from the records it has written, so a dropped record does not affect later ones. If the
process is killed, records since the last flush are lost.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from gpuwarden import __version__
from gpuwarden.base.background import BackgroundWriter
from gpuwarden.trace.records import Record
from gpuwarden.trace.writer import TraceWriter

FLUSHED_EVERY = 5.0
WAITING_MOST = 2000
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class Recording:
    """Writes a trace to `file`. No method raises, and only `close` blocks.

    `error`: why nothing more is written, or ""; `dropped`: number of records that came too fast.
    """

    def __init__(self, file: BufferedIOBase, *, names: Callable[[Any], Any] | None = None) -> None:
        self._trace = TraceWriter(file, version=__version__, names=names)
        self.error = ""
        self._writer = BackgroundWriter("trace", WAITING_MOST, on_error=self._failed)

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    def take(self, record: Record) -> None:
        if not self.error:
            self._writer.submit(partial(self._write, record))

    async def flush(self, timeout: float) -> bool:  # noqa: ASYNC109 - returns False at the deadline, which is no error here
        """Wait until all records so far are written; return False if `timeout` seconds were not enough."""
        return await self._writer.flush(timeout)

    def close(self, timeout: float) -> bool:
        """End the trace; False if that was not done within `timeout` seconds."""
        self._writer.submit(self._end)
        return self._writer.close(timeout)

    def _write(self, record: Record) -> None:
        if not self.error:
            self._trace.write(record)

    def _end(self) -> None:
        """Close the output. Hook for subclasses, called in the thread after the last record."""

    def _failed(self, error: Exception) -> None:
        self.error = str(error)


class Recorder(Recording):
    """Writes a new trace at `path`. The constructor raises OSError, also if the file exists."""

    def __init__(self, path: Path, *, names: Callable[[Any], Any] | None = None) -> None:
        self._file, self._zipped = new_trace(path)
        self._flushed = float("-inf")
        super().__init__(self._zipped, names=names)

    def _write(self, record: Record) -> None:
        super()._write(record)
        if not self.error and record.at.boottime - self._flushed >= FLUSHED_EVERY:
            self._zipped.flush()
            self._flushed = record.at.boottime

    def _end(self) -> None:
        self._zipped.close()
        self._file.close()


def new_trace(path: Path) -> tuple[BufferedIOBase, gzip.GzipFile]:
    """Create the file and a gzip stream into it. Only its owner may read it, since it shows what runs here.

    Raises OSError, also if the file exists.
    """
    file = os.fdopen(os.open(path, _NEW, 0o600), "wb")
    return file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0)
