"""The keys of `[nvhcd]`: whether ft_launcher is sent the state of this node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NvhcdOptions:
    """ft_launcher of the NVIDIA Resiliency Extension ([nvhcd.md](../use/nvhcd.md))."""

    enabled: bool = False
    """Exclude this node for ft_launcher: the daemon writes a marker while the node is excluded, and `gpuwarden nvhcd` then fails ft_launcher's health
    check.
    """
