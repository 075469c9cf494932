"""Format of published times: RFC 3339 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from gpuwarden_collectors.facts import Stamp

_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_799.0  # the years 1 to 9999, which RFC 3339 can write


def rfc3339(wall: float) -> str:
    moment = datetime.fromtimestamp(min(max(wall, _EARLIEST), _LATEST), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def when(stamp: Stamp | None) -> str | None:
    return None if stamp is None else rfc3339(stamp.wall)
