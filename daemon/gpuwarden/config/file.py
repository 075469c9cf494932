"""The keys of `[file]`: a marker for whoever takes a node out by the presence of a file, such as a load balancer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileOptions:
    """`path` None: no such file. Its folder must exist."""

    path: Path | None = None
