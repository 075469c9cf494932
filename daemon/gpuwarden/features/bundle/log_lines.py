"""The log lines of archives that the daemon asked for."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.model import EventKind

LINES: Mapping[EventKind, tuple[str, str]] = {
    EventKind.BUNDLE_MADE: ("info", "archive for the vendor made"),
    EventKind.BUNDLE_FAILED: ("warning", "no archive for the vendor could be made"),
}
