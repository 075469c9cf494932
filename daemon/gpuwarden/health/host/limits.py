"""From which value on a host counts as full: the site's choices, each a table of the configuration."""

from __future__ import annotations

from dataclasses import field

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import bounded

_TOO_LOW = "with a lower limit a host at work would warn all the time"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """Limits of `disk_full` ([conditions.md](conditions.md)): from which value on a file system counts as full."""

    used_percent: int | None = bounded(None, 50, 99, _TOO_LOW)
    """Used space in per cent, however many GiB are left. Not set: 95 %, and less than 100 GiB left."""
    inodes_percent: int = bounded(95, 50, 99, _TOO_LOW)
    """Used inodes in per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Limit of `memory_low` ([conditions.md](conditions.md)): from which value on main memory counts as used up."""

    used_percent: int = bounded(98, 50, 99, _TOO_LOW)
    """Memory that is not available, in per cent of the memory outside huge pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapLimits:
    """Limit of `memory_low.swap` ([conditions.md](conditions.md)): from which value on swap space counts as used up."""

    used_percent: int | None = bounded(None, 1, 99)
    """Used swap space in per cent. Not set: swap is not checked, since pages of idle programs may stay there for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """All of them."""

    disk: DiskLimits = field(default_factory=DiskLimits)
    """Of file systems."""
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    """Of main memory."""
    swap: SwapLimits = field(default_factory=SwapLimits)
    """Of swap space."""
