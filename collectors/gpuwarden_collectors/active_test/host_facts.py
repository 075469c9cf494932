"""Facts about a host before and after a test of its GPUs: the readings of NVML, and settings that only a test depends on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import NvmlFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """The settings of one GPU; None where the driver does not report them."""

    compute_mode: int | None = None
    """nvmlComputeMode_t: 0 default, 2 prohibited, 3 exclusive process."""
    graphics: tuple[int, ...] = ()
    """PIDs of graphics processes on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The facts of one pass, in which everything is read anew."""

    collector: ClassVar[str] = "active_test"
    nvml: NvmlFacts = field(default_factory=NvmlFacts)
    """The GPUs."""
    settings: Mapping[str, GpuSettings] = field(default_factory=dict, hash=False)
    """Settings of each GPU, by slot."""
    confidential: bool | None = None
    """Whether confidential computing is on; None where the driver does not know it."""
