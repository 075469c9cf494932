"""The keys of `[nvhcd]`: whether ft_launcher is sent the state of this node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NvhcdOptions:
    """ft_launcher of the NVIDIA Resiliency Extension ([nvhcd.md](nvhcd.md))."""

    enabled: bool = False
    """Write the marker that says whether this node is held out; what answers ft_launcher goes by it."""
