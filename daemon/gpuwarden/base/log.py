"""Log lines: one per event, to stderr, as text or as JSON: time, level, event, then its keys.

The reader of stderr may stop (a terminal on hold, a pipe that is not read). Therefore a separate thread writes lines;
those that do not fit into its queue are dropped, and their number is logged once writing works again. Records of
Python's `logging`, as of aiohttp and asyncio, and warnings take the same path.
"""

from __future__ import annotations

import codecs
import logging
import math
import os
import re
import select
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

from gpuwarden.base.background import BackgroundWriter


@contextmanager
def _hidden(module: str) -> Iterator[None]:
    """Make imports of `module` fail during the block, unless it is already loaded."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # makes the import system treat it as missing
    try:
        yield
    finally:
        del sys.modules[module]


with _hidden("rich"):  # structlog would load it for tracebacks that are not used here: 5 MiB in every daemon
    import structlog
    from structlog.typing import FilteringBoundLogger, Processor

_TIME = "time"
_BEGINNING = (_TIME, "level", "event")
_CAPACITY = 2_000  # lines that may wait
_VALUE_MAX = 1_000  # characters
_TRACEBACK_MAX = 8_000
_ITEMS_MAX = 32  # values in a line, and in a list within it

# Escape sequences and line breaks from outside must not reach a terminal, nor unpaired surrogates a JSON parser.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_CONTROL_BUT_NEWLINE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")

# Priorities of syslog(3) by level; the journal takes them from the start of a line (sd-daemon(3)).
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


class LogOutput:
    """The queue of lines for `fd`, made by `configure`."""

    def __init__(self, fd: int, processors: list[Processor], capacity: int) -> None:
        self._fd = fd
        self._processors = processors
        self._failed = 0
        self._reported = 0
        self._writer = BackgroundWriter("log", capacity, on_error=self._count)

    @property
    def dropped(self) -> int:
        """Number of lines not written because the reader was too slow or is gone."""
        return self._writer.dropped + self._failed

    def msg(self, line: str) -> None:
        self._writer.submit(partial(self._write, line))

    debug = info = warning = error = critical = msg  # the methods that structlog calls on its output

    async def flush(self, timeout: float) -> bool:  # noqa: ASYNC109 - returns False at the deadline, which is no error here
        return await self._writer.flush(timeout)

    def close(self, timeout: float) -> bool:
        """Write waiting lines; False if not done within `timeout` seconds. Blocks: for the exit of the process."""
        return self._writer.close(timeout)

    def _write(self, line: str) -> None:
        _write_all(self._fd, f"{line}\n".encode("utf-8", "backslashreplace"))
        unreported, self._reported = self.dropped - self._reported, self.dropped
        if unreported:
            self._write(self._own_line("log lines dropped: stderr was not read in time", count=unreported))

    def _own_line(self, event: str, **values: int) -> str:
        line: Any = {"event": event, **values}
        for processor in self._processors:
            line = processor(None, "warning", line)
        return str(line)

    def _count(self, _error: Exception) -> None:
        self._failed += 1


def configure(
    level: str = "info",
    form: str = "auto",
    *,
    fd: int = 2,
    environ: Mapping[str, str] = os.environ,
    capacity: int = _CAPACITY,
) -> LogOutput:
    """Log lines of `level` or above to `fd`. Call it once, before the loop starts.

    `form`: "text", "json", or "auto": text on a terminal and JSON elsewhere.
    """
    processors = _processors(form, fd, environ)
    output = LogOutput(fd, processors, capacity)
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: output,
        cache_logger_on_first_use=False,
    )
    # Libraries log routine work at "info".
    logging.basicConfig(handlers=[_Bridge()], level=max(logging.WARNING, getattr(logging, level.upper())), force=True)
    logging.captureWarnings(capture=True)
    return output


def get_logger() -> FilteringBoundLogger:
    """Returns the logger of this process; may be called before `configure`."""
    logger: FilteringBoundLogger = structlog.get_logger()
    return logger


class _Bridge(logging.Handler):
    """Converts records of Python's `logging` to lines of this log."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # a library's bug: arguments that do not match its message
            message = f"{record.msg!s} {record.args!r}"
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.CRITICAL)
        get_logger().log(level, message, logger=record.name, exc_info=record.exc_info)


def _processors(form: str, fd: int, environ: Mapping[str, str]) -> list[Processor]:
    common: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key=_TIME),
        structlog.processors.format_exc_info,
        _bounded,
    ]
    render: Processor = structlog.processors.JSONRenderer(ensure_ascii=False)
    if form == "text" or (form == "auto" and os.isatty(fd)):
        colors = os.isatty(fd) and "NO_COLOR" not in environ
        render = structlog.dev.ConsoleRenderer(
            colors=colors,
            exception_formatter=structlog.dev.plain_traceback,
            pad_event_to=0,
            pad_level=False,
            timestamp_key=_TIME,
        )
    status = os.fstat(fd)
    if environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}":  # systemd.exec(5): stderr is the journal
        return [*common, _with_priority(render)]
    return [*common, render]


def _with_priority(render: Processor) -> Processor:
    def rendered(logger: Any, method: str, line: MutableMapping[str, Any]) -> str:
        return f"<{_PRIORITIES.get(line['level'], 6)}>{render(logger, method, line)!s}"

    return rendered


def _bounded(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Order the keys for reading, and limit the length of each value."""
    ordered = {name: line[name] for name in _BEGINNING if name in line} | dict(line)
    return {
        name: _traceback(value) if name == "exception" else _value(value) for name, value in _first(ordered.items())
    }


def _value(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple | set | frozenset):
        return [_value(item) for item in _first(value)]
    text = value if isinstance(value, str) else repr(value)
    return _CONTROL.sub(_escaped, _cut(text, _VALUE_MAX))


def _traceback(text: str) -> str:
    return _CONTROL_BUT_NEWLINE.sub(_escaped, text[-_TRACEBACK_MAX:])  # its end names the error


def _first(items: Any) -> Iterator[Any]:
    return islice(items, _ITEMS_MAX)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


codecs.lookup("unicode_escape")
"""Loaded in advance: `encode` imports it at its first use, which fails if file descriptors are exhausted."""


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode()


def _write_all(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # another process on this terminal made it non-blocking
            ready = select.poll()
            ready.register(fd, select.POLLOUT)
            ready.poll()
