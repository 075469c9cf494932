"""Whether what the daemon remembers outlives a boot: not on a node whose root, or /var, is in memory, as diskless nodes have it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuwarden.config.model import Config
from gpuwarden.doctor.row import Row, ok, warn
from gpuwarden_collectors.host_files import read_text

_IN_MEMORY = ("tmpfs", "ramfs", "rootfs")
_TABLE = 1 << 20  # bytes
_UPPER = re.compile(r"(?:^|,)upperdir=([^,]+)")


def after_a_boot(config: Config, folder: Path) -> Iterator[Row]:
    """Row about a state directory that a boot empties; none for one on a disk. `folder`: the part of its path that exists."""
    kind = in_memory(folder.resolve(), config.paths.proc / "self/mountinfo")
    if not kind:
        return
    state = (
        f"{config.state.dir} is on {kind}, which a boot empties: what gpuwarden excluded before, only a person restores"
    )
    if config.inventory.expected_gpus is not None:
        yield ok("state after a boot", state)
        return
    state = f"{state}, and a GPU that is gone after it makes no failure"
    yield warn(
        "state after a boot", state, "set inventory.expected_gpus, or state.dir to a folder on a disk of this node"
    )


def in_memory(path: Path, mountinfo: Path) -> str:
    """Type of the file system in memory that has `path`; empty if it is none of these, or cannot be told."""
    try:
        lines = read_text(mountinfo, _TABLE).splitlines()
    except OSError:
        return ""
    sides = [(left.split(), right.split()) for left, _, right in (line.partition(" - ") for line in lines)]
    mounts = {left[4]: right for left, right in sides if len(left) > 4 and len(right) > 2}
    kind, options = _holder(path, mounts)
    if kind == "overlay" and (upper := _UPPER.search(options)) is not None:
        below, _ = _holder(Path(upper[1]), mounts)
        return f"overlay on {below}" if below in _IN_MEMORY else ""
    return kind if kind in _IN_MEMORY else ""


def _holder(path: Path, mounts: Mapping[str, list[str]]) -> tuple[str, str]:
    """Type and options of the mount that has this path."""
    nearest = next((mounts[str(folder)] for folder in (path, *path.parents) if str(folder) in mounts), None)
    return ("", "") if nearest is None else (nearest[0], nearest[2])
