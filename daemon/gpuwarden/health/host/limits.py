"""Limits above which disk, memory and swap count as full: site options, each a table of the configuration."""

from __future__ import annotations

from dataclasses import field

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import bounded

_TOO_LOW = "with a lower limit a host at work would warn all the time"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """Limits of `disk_full` ([conditions.md](conditions.md)), from which on a file system counts as full."""

    used_percent: int | None = bounded(None, 50, 99, _TOO_LOW)
    """Used space in per cent, regardless of the GiB left. Not set: 95 %, and less than 100 GiB left."""
    inodes_percent: int = bounded(95, 50, 99, _TOO_LOW)
    """Used inodes in per cent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimits:
    """Limit of `memory_low` ([conditions.md](conditions.md)), from which on main memory counts as used up."""

    used_percent: int = bounded(98, 50, 99, _TOO_LOW)
    """Memory that is not available, in per cent of the memory outside huge pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapLimits:
    """Limit of `memory_low.swap` ([conditions.md](conditions.md)), from which on swap space counts as used up."""

    used_percent: int | None = bounded(None, 1, 99)
    """Used swap space in per cent. Not set: swap is not checked, since pages of idle programs may stay there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of disk, memory and swap."""

    disk: DiskLimits = field(default_factory=DiskLimits)
    """Limits of file systems."""
    memory: MemoryLimits = field(default_factory=MemoryLimits)
    """Limit of main memory."""
    swap: SwapLimits = field(default_factory=SwapLimits)
    """Limit of swap space."""
