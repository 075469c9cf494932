"""Maps Slurm's GPU numbers to device files, by this node's gres.conf.

Slurm numbers the GPUs of a node in the order of the files in gres.conf (IDX). That is neither the minor number nor
NVML's index, though on most hosts all three are equal. With AutoDetect, or without files, PCI addresses determine the
order.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from gpuwarden_collectors.host_files import read_bytes
from gpuwarden_collectors.slurm.hostlist import in_hostlist
from gpuwarden_collectors.slurm.jobs_text import numbers

_SIZE_MAX = 1 << 20  # bytes
_FILES_MAX = 4096
_ITEM = re.compile(r"(\w+)\s*=\s*(\S+)")
_TRAILING_NUMBER = re.compile(r"(\d+)$")


def minors(gres_conf: Path, node: str) -> tuple[int, ...]:
    """Returns the minor numbers of this node's GPU files in Slurm's order; empty if that is the PCI order."""
    try:
        text = read_bytes(gres_conf, _SIZE_MAX).decode("utf-8", "replace")
    except OSError:
        return ()
    candidates = [_minor(path) for path in gpu_files(text, node)]
    valid = tuple(minor for minor in candidates if minor is not None)
    return valid if len(valid) == len(candidates) == len(set(valid)) else ()


def gpu_files(text: str, node: str) -> list[str]:
    files: list[str] = []
    for line in text.replace("\\\n", " ").splitlines():
        keys = {key.lower(): value for key, value in _ITEM.findall(line.partition("#")[0])}
        if not in_hostlist(node, keys.get("nodename", node)):
            continue
        if keys.get("autodetect", "off").lower() not in ("off", "none") and "file" not in keys:
            return []
        if keys.get("name", "").lower() == "gpu":
            files += expanded(keys.get("file", ""))
    return list(dict.fromkeys(files))


def expanded(pattern: str) -> list[str]:
    """Expands `/dev/nvidia[0-2,5]` to four names; a list of such patterns is allowed."""
    return list(_expanded(pattern))[:_FILES_MAX]


def _expanded(pattern: str) -> Iterator[str]:
    for entry in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", pattern):
        head, bracket, rest = entry.partition("[")
        ranges, _, tail = rest.partition("]")
        if bracket:
            yield from (f"{head}{number}{tail}" for number in numbers(ranges))
        else:
            yield entry


def _minor(path: str) -> int | None:
    """Returns the device's minor number, or the number in its name, since the file of a lost GPU may be missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a device file
    except OSError:
        status = None
    if status is not None and stat.S_ISCHR(status.st_mode):
        return os.minor(status.st_rdev)
    match = _TRAILING_NUMBER.search(path)
    return int(match[1]) if match is not None and len(match[1]) < 6 else None
