"""The keys of `[file]`: a marker file for programs that take a node out by its presence, such as a load balancer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpuwarden.features import Excludes
from gpuwarden_collectors.dataclass import dataclass

if TYPE_CHECKING:
    from gpuwarden.config.model import Config


@dataclass(frozen=True, slots=True)
class FileOptions:
    """A marker file that exists while this node is excluded, such as for a load balancer ([exclusion.md](../use/exclusion.md))."""

    path: Path | None = None
    """Path of the marker file. Its folder must exist. Not set: no marker file."""


def excludes(config: Config) -> Excludes:
    return Excludes.NOT if config.of(FileOptions).path is None else Excludes.BY_ACTUATOR


TABLES = {"file": FileOptions}
