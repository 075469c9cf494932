"""From where on a host counts as full: the site's choices, each a table of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuwarden_collectors.options import bounded

_TOO_LOW = "below it a host at work would warn all the time"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """From where on a file system is full: `disk_full` ([conditions.md](conditions.md))."""

    used_percent: int | None = bounded(None, 50, 99, _TOO_LOW)
    """Space that is used, per cent, however much is left. Not set: 95, and less than 100 GiB are left."""
    inodes_percent: int = bounded(95, 50, 99, _TOO_LOW)
    """Inodes that are used, per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """From where on main memory is used up: `memory_low` ([conditions.md](conditions.md))."""

    used_percent: int = bounded(98, 50, 99, _TOO_LOW)
    """Memory that is not available, per cent of what is not set aside as huge pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapLimits:
    """From where on swap space is used up: `memory_low.swap` ([conditions.md](conditions.md))."""

    used_percent: int | None = bounded(None, 1, 99)
    """Swap space that is used, per cent. Not set: it is not judged, since pages of idle programs may stay there for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All of them."""

    disk: DiskLimits = field(default_factory=DiskLimits)
    """Of file systems."""
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    """Of main memory."""
    swap: SwapLimits = field(default_factory=SwapLimits)
    """Of swap space."""
