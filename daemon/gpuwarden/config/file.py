"""The keys of `[file]`: a marker file for programs that take a node out by its presence, such as a load balancer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileOptions:
    """A marker file that exists while this node is excluded, such as for a load balancer ([exclusion.md](../use/exclusion.md))."""

    path: Path | None = None
    """Path of the marker file. Its folder must exist. Not set: no marker file."""
