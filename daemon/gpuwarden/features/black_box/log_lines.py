"""The log line of a frozen black box."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.model import EventKind

LINES: Mapping[EventKind, tuple[str, str]] = {EventKind.BOX_FROZEN: ("info", "black box frozen")}
