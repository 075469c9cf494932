"""The output of `gpuwarden watch`: a fitted screen on a terminal, otherwise a block of lines per change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpuwarden.cli.status_text import status_text
from gpuwarden.cli.text import clean, when, wrapped

Document = dict[str, Any]


class Known(NamedTuple):
    """The last received state of the daemon. Times are Unix times."""

    status: Document | None = None
    """The last response."""
    answered: float = 0.0
    """When it arrived."""
    error: str = ""
    """Why the daemon does not respond; empty while it does."""
    silent_since: float = 0.0
    """Since when it does not respond."""
    restarted: str = ""
    """When this daemon started, if an earlier one answered before."""

    def answer(self, status: Document, at: float) -> Known:
        same = self.status is None or self.status["started_at"] == status["started_at"]
        return Known(status, at, restarted=self.restarted if same else str(status["started_at"]))

    def silence(self, error: str, at: float) -> Known:
        return self._replace(error=error, silent_since=self.silent_since if self.error else at)

    def content(self) -> tuple[str, ...]:
        """The text without parts that always change; an equal content needs no new block."""
        if self.error or self.status is None:
            return (self.error,)
        lasting = {
            "age_seconds": None if self.status["age_seconds"] is None else 0,
            "gpus": [gpu | {"readings": {}} for gpu in self.status["gpus"]],
            "findings": [
                finding | {"evidence": {}, "last_seen": None, "count": 1} for finding in self.status["findings"]
            ],
        }
        return str(self.status["started_at"]), *status_text(self.status | lasting)

    def lines(self, width: int | None = None, *, only_sick: bool = False) -> Iterator[str]:
        """Yield the lines. Reduces an old status to verdict and time, so that stale readings do not look current."""
        if self.error:
            yield f"NO RESPONSE since {_time(self.silent_since)}: {clean(self.error)}"
            if self.status is not None:
                why = ", ".join(map(clean, self.status["reasons"]))
                health = f"{str(self.status['status']).upper()}{f': {why}' if why else ''}"
                yield f"last status, of {_time(self.answered)}: {clean(self.status['node'])} is {health}"
            return
        if self.status is None:
            return
        if self.restarted:
            yield f"the daemon was restarted at {when(self.restarted)}"
        gpus = self.status["gpus"]
        sick = [gpu for gpu in gpus if gpu["health"] != "healthy"]
        if only_sick and len(sick) < len(gpus):
            yield f"{len(gpus) - len(sick)} healthy GPUs hidden: terminal too small"
            yield from status_text(self.status | {"gpus": sick}, width)
        else:
            yield from status_text(self.status, width)


def _time(wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall))


def block(state: Known, now: float) -> str:
    """Text of one change, for a file or another program. Its first line begins with `==`."""
    return "\n".join((f"== {_time(now)}", *state.lines(), ""))


def screen(state: Known, now: float, columns: int, rows: int) -> str:
    """Text that overwrites a terminal of that size and restores its modes."""
    lines = list(wrapped(state.lines(columns), columns))
    room = max(rows - 2, 1)  # one line for the head, one for the shell's prompt
    if len(lines) > room:
        lines = list(wrapped(state.lines(columns, only_sick=True), columns))
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more lines; gpuwarden status shows all"]
    drawn = (_HOME, _CUT, *(f"{line}{_TO_END_OF_LINE}\n" for line in (_time(now), *lines)), _REST_AWAY, _NO_CUT)
    return "".join(drawn)


_HOME, _TO_END_OF_LINE, _REST_AWAY = "\x1b[H", "\x1b[K", "\x1b[J"
_CUT, _NO_CUT = "\x1b[?7l", "\x1b[?7h"
"""Disable and enable line wrapping, because a wide character could make a line longer than computed."""
