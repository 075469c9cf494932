"""The keys of `[file]`: a marker for whoever takes a node out by the presence of a file, such as a load balancer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileOptions:
    """A marker file, such as for a load balancer ([exclusion.md](exclusion.md))."""

    path: Path | None = None
    """The file, which is there while the node is held out. Its folder must exist. Not set: none."""
