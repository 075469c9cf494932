"""Reads the daemon's notice for the jobs of its node: `notice.json` in its run directory.

    act                 true: the machine ends soon, save now. Other notices are only for people, and ignored here.
    id                  unique per notice
    kind, reason        for the log
    deadline_boottime   seconds of CLOCK_BOOTTIME; `deadline` is the same in RFC 3339 or Unix time; either may be null
    boot_id             the boot to which it applies

The reader may run in a container or on a node without a daemon, and the file may be missing or of another boot. The
result is a notice, none, or unknown. Unknown neither starts nor ends an interruption.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIMIT = 64 << 10  # bytes
_TEXT = 200  # characters
_LATEST = 1e11  # no time is later than this


class Unknown(Exception):  # noqa: N818
    """The content of the file cannot be determined."""


@dataclass(frozen=True)
class Notice:
    """The imminent notice of this machine."""

    id: str
    """Unique id; differs if the same event is announced again after a withdrawal."""
    kind: str = ""
    """Kind of the announced event."""
    reason: str = ""
    """Text for people."""
    deadline: float | None = None
    """Seconds of CLOCK_BOOTTIME; None if the notice gives none."""


def boottime() -> float:
    # macOS has no such clock, and no daemon.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def read(path: Path, boot_id: str) -> Notice | None:
    """Returns the notice to act on, or None if there is none. Raises Unknown."""
    try:
        text = _text(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unknown(f"{path} cannot be read: {error}") from error
    return _parsed(text, boot_id)


def _text(path: Path) -> bytes:
    """Return the content of the file. Raises OSError if it cannot be read, Unknown if it is not a notice."""
    # Non-blocking, because the path may be a FIFO.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Unknown(f"{path} is no file")
        text = os.read(handle, _LIMIT + 1)
    finally:
        os.close(handle)
    if len(text) > _LIMIT:
        raise Unknown(f"{path} is longer than any notice")
    return text


def _parsed(text: bytes, boot_id: str) -> Notice | None:
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unknown(f"the notice is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("act"), bool):
        raise Unknown('the notice has no valid "act"')
    if not content["act"]:
        return None
    if not boot_id or not isinstance(content.get("boot_id"), str):
        raise Unknown("it is not known whether the notice is of this boot")
    if content["boot_id"] != boot_id:
        return None
    number = content.get("id")
    if not isinstance(number, (str, int)) or isinstance(number, bool):
        raise Unknown("the notice has no id")
    return Notice(str(number)[:_TEXT], _short(content.get("kind")), _short(content.get("reason")), _deadline(content))


def _short(value: object) -> str:
    return " ".join(value[:_TEXT].split()) if isinstance(value, str) else ""


def _deadline(content: dict[str, Any]) -> float | None:
    """Returns the deadline, by CLOCK_BOOTTIME if possible, because the wall clock may be set meanwhile."""
    if (steady := _number(content.get("deadline_boottime"))) is not None:
        return steady
    wall = content.get("deadline")
    since_1970 = _rfc3339(wall) if isinstance(wall, str) else _number(wall)
    return None if since_1970 is None else boottime() + since_1970 - time.time()


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < _LATEST and not math.isnan(value) else None


def _rfc3339(text: str) -> float | None:
    """Parses a time; returns None for one without a zone, which may be hours off."""
    try:
        # Python before 3.11 does not know the Z.
        moment = dt.datetime.fromisoformat(text.strip().upper().replace("Z", "+00:00"))
        return moment.timestamp() if moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
