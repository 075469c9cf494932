"""What `gpuwarden watch` shows: on a terminal a screen that fits it, elsewhere a block of lines for each change."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from gpuwarden.cli.status_text import status_text
from gpuwarden.cli.text import clean, when

Document = dict[str, Any]


class Known(NamedTuple):
    """What is known of the daemon. Times are of the wall clock."""

    status: Document | None = None
    """The last answer."""
    answered: float = 0.0
    trouble: str = ""
    """Why there is no answer now; empty while there is one."""
    silent: float = 0.0
    """Since when."""
    restarted: str = ""
    """When this daemon started, if another one answered before it."""

    def answer(self, status: Document, at: float) -> Known:
        same = self.status is None or self.status["started_at"] == status["started_at"]
        return Known(status, at, restarted=self.restarted if same else str(status["started_at"]))

    def silence(self, trouble: str, at: float) -> Known:
        return self._replace(trouble=trouble, silent=self.silent if self.trouble else at)

    def standing(self) -> tuple[str, ...]:
        """What a person would read, without what always changes: while it is the same there is no news."""
        if self.trouble or self.status is None:
            return (self.trouble,)
        lasting = {
            "age_seconds": None if self.status["age_seconds"] is None else 0,
            "gpus": [gpu | {"readings": {}} for gpu in self.status["gpus"]],
            "findings": [one | {"evidence": {}, "last_seen": None, "count": 1} for one in self.status["findings"]],
        }
        return str(self.status["started_at"]), *status_text(self.status | lasting)

    def lines(self, width: int | None = None, *, only_sick: bool = False) -> Iterator[str]:
        """Of an old answer only the first word is still said, and when it was given: nothing old is to look alive."""
        if self.trouble:
            yield f"NO ANSWER since {_time(self.silent)}: {clean(self.trouble)}"
            if self.status is not None:
                why = ", ".join(map(clean, self.status["reasons"]))
                health = f"{str(self.status['status']).upper()}{f': {why}' if why else ''}"
                yield f"at {_time(self.answered)} it said: {clean(self.status['node'])} is {health}"
            return
        if self.status is None:
            return
        if self.restarted:
            yield f"another daemon than before: it started at {when(self.restarted)}"
        gpus = self.status["gpus"]
        sick = [gpu for gpu in gpus if gpu["health"] != "healthy"]
        if only_sick and len(sick) < len(gpus):
            yield f"{len(gpus) - len(sick)} healthy GPUs are not shown, for want of room"
            yield from status_text(self.status | {"gpus": sick}, width)
        else:
            yield from status_text(self.status, width)


def _time(wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wall))


def block(known: Known, now: float) -> str:
    """One change, for a file or another program; the first line of each begins with `==`."""
    return "\n".join((f"== {_time(now)}", *known.lines(), ""))


def screen(known: Known, now: float, columns: int, rows: int) -> str:
    """All of a terminal of that size, drawn over what is there. Nothing of the terminal is left otherwise than it was."""
    lines = list(_wrapped(known.lines(columns), columns))
    room = max(rows - 2, 1)  # one line for the head, one for what the shell says afterwards
    if len(lines) > room:
        lines = list(_wrapped(known.lines(columns, only_sick=True), columns))
    if len(lines) > room:
        lines = [*lines[: room - 1], f"… {len(lines) - room + 1} more lines; gpuwarden status shows all"]
    drawn = (_HOME, _CUT, *(f"{line}{_TO_END_OF_LINE}\n" for line in (_time(now), *lines)), _REST_AWAY, _NO_CUT)
    return "".join(drawn)


_HOME, _TO_END_OF_LINE, _REST_AWAY = "\x1b[H", "\x1b[K", "\x1b[J"
_CUT, _NO_CUT = "\x1b[?7l", "\x1b[?7h"
"""Off and on: a line that is longer than thought, for a character may be two columns wide, goes on in the next row."""

_HANGING = 4


def _wrapped(lines: Iterable[str], columns: int) -> Iterator[str]:
    for line in lines:
        rest = line
        indent = " " * min(len(line) - len(line.lstrip()) + _HANGING, columns // 4)
        while len(rest) > columns:
            cut = rest.rfind(" ", len(indent) + 1, columns + 1)
            cut = columns if cut < 0 else cut
            yield rest[:cut].rstrip()
            rest = indent + rest[cut:].lstrip()
        yield rest
