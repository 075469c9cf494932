"""The keys of `[file]`: a marker file for programs that take a node out by its presence, such as a load balancer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileOptions:
    """A marker file, such as for a load balancer ([exclusion.md](exclusion.md))."""

    path: Path | None = None
    """The file, which is there while the node is held out. Its folder must exist. Not set: none."""
