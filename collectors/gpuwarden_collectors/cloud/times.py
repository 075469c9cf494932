"""Parses the clouds' time formats to Unix time. A time without a zone is invalid, unless the caller passes the zone.

2026-11-21T03:08:36Z  2026-11-21T03:08:36.246z  2026-09-19T20:00:00+0000   (AWS spot, Alibaba, GCP)
Mon, 19 Sep 2016 18:29:47 GMT   (Azure, Date headers)        21 Jan 2019 09:00:43 GMT, 1 Jan …   (AWS maintenance)
2018-08-18 12:05:33   (Tencent, in UTC+8)
"""

from __future__ import annotations

import calendar
import re
from datetime import date

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_CLOCK = r"(\d\d):(\d\d):(\d\d)"
_ISO = re.compile(rf"(\d{{4}})-(\d\d)-(\d\d)[Tt ]{_CLOCK}(?:[.,]\d{{1,9}})?\s?(Z|z|[+-]\d\d:?\d\d)?", re.ASCII)
_RFC1123 = re.compile(
    rf"(?:[A-Za-z]{{3,9}},? +)?(\d{{1,2}}) ([A-Za-z]{{3}}) (\d{{4}}) {_CLOCK} (GMT|UTC|Z|[+-]\d{{4}})", re.ASCII
)


class TimeError(ValueError):
    """The text is not a time, or lacks a zone."""


def parse_time(text: str, zone: float | None = None) -> float:
    """Returns the Unix time of a text, ignoring the weekday. Raises TimeError.

    `zone` is the offset in seconds east of UTC of a time that names none.
    """
    text = text[:64].strip()
    if (match := _ISO.fullmatch(text)) is not None:
        year, month, day, hour, minute, second, where = match.groups()
        number = int(month)
    elif (match := _RFC1123.fullmatch(text)) is not None:
        day, name, year, hour, minute, second, where = match.groups()
        number = _MONTHS.index(name.lower()) + 1 if name.lower() in _MONTHS else 0
    else:
        raise TimeError(f"{text!r} is not a time")
    try:
        date(int(year), number, int(day))
    except ValueError as error:
        raise TimeError(f"{text!r} is not a time: {error}") from error
    if int(hour) > 23 or int(minute) > 59 or int(second) > 60:  # 60: a leap second
        raise TimeError(f"{text!r} is not a time")
    local = calendar.timegm((int(year), number, int(day), int(hour), int(minute), int(second), 0, 0, 0))
    return float(local) - _east(where, zone, text)


def _east(where: str | None, zone: float | None, text: str) -> float:
    if where is None:
        if zone is None:
            raise TimeError(f"{text!r} names no time zone")
        return zone
    if where[0] not in "+-":
        return 0.0
    hours, minutes = int(where[1:3]), int(where[-2:])
    if hours > 23 or minutes > 59:
        raise TimeError(f"{text!r} names no time zone")
    return (-60.0 if where[0] == "-" else 60.0) * (60 * hours + minutes)
