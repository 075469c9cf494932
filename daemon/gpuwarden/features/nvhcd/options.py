"""The keys of `[nvhcd]`: whether ft_launcher is sent the state of this node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuwarden.features import Excludes

if TYPE_CHECKING:
    from gpuwarden.config.model import Config


@dataclass(frozen=True, slots=True)
class NvhcdOptions:
    """ft_launcher of the NVIDIA Resiliency Extension ([nvhcd.md](../use/nvhcd.md))."""

    enabled: bool = False
    """Exclude this node for ft_launcher: the daemon writes a marker while the node is excluded, and `gpuwarden nvhcd` then fails ft_launcher's health
    check.
    """


def excludes(config: Config) -> Excludes:
    return Excludes.BY_MARKER if config.of(NvhcdOptions).enabled else Excludes.NOT


TABLES = {"nvhcd": NvhcdOptions}
