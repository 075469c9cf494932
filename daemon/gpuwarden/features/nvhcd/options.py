"""The keys of `[nvhcd]`: whether ft_launcher is sent the state of this node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuwarden.config.model import Config
    from gpuwarden_collectors.options import Misfit


@dataclass(frozen=True, slots=True)
class NvhcdOptions:
    """ft_launcher of the NVIDIA Resiliency Extension ([nvhcd.md](../use/nvhcd.md))."""

    enabled: bool = False
    """Exclude this node for ft_launcher: the daemon writes a marker while the node is excluded, and `gpuwarden nvhcd` then fails ft_launcher's health
    check.
    """


def misfits(_: Config) -> Iterator[Misfit]:
    """Yield nothing: any value of these keys fits the others."""
    return iter(())


def excludes(config: Config) -> bool:
    """Return whether the daemon marks this node for `gpuwarden nvhcd` while it is excluded."""
    return config.of(NvhcdOptions).enabled


TABLES = {"nvhcd": NvhcdOptions}
