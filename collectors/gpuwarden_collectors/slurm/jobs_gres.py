"""Maps Slurm's GPU numbers to device files, by this node's gres.conf.

Slurm numbers the GPUs of a node in the order of the files in gres.conf (IDX). That is neither the minor number nor
NVML's index, though on most hosts all three are equal. With AutoDetect, or without files, PCI addresses determine the
order.

Compared with the output of `slurmd -G` of 22.05.8 and 25.11.7: lines without NodeName come before those with one. If
slurm.conf has the GPUs of the node by type (`Gres=gpu:b:2,gpu:a:2`), its order of the types precedes that of the lines,
and other types of gres.conf are left out.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_bytes
from gpuwarden_collectors.slurm.hostlist import in_hostlist
from gpuwarden_collectors.slurm.jobs_text import numbers

_SIZE_MAX = 1 << 20  # bytes
_FILES_MAX = 4096
_INCLUDES_MAX = 32  # files read in all; own choice, against files that include each other
_ITEM = re.compile(r"(\w+)\s*=\s*(?:\"([^\"]*)\"|(\S+))")
_INCLUDE = re.compile(r"\s*include\s+\"?([^\s\"]+)", re.IGNORECASE)
_SOCKETS = re.compile(r"\([^)]*\)")
_TRAILING_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True, slots=True)
class GpuLine:
    """The GPUs of a line of gres.conf. `kind`: their Type in lower case, or "". `divided`: part of a GPU (MIG)."""

    kind: str
    files: tuple[str, ...]
    divided: bool = False


def minors(lines: Iterable[GpuLine], kinds: Sequence[str] = ()) -> tuple[int, ...]:
    """Returns the minor numbers of these GPUs in Slurm's order; empty if that is the PCI order.

    `kinds`: the types of the node's GPUs in slurm.conf's order, if they are known.
    """
    candidates = [(_minor(path), line.divided) for line in in_order(lines, kinds) for path in line.files][:_FILES_MAX]
    valid = [minor for minor, _ in candidates if minor is not None]
    whole = [minor for minor, divided in candidates if not divided]
    return tuple(valid) if len(valid) == len(candidates) and len(whole) == len(set(whole)) else ()


def has_kinds(lines: Iterable[GpuLine]) -> bool:
    """True if the order of these GPUs depends on that of their types in slurm.conf."""
    return len({line.kind for line in lines if line.files}) > 1


def conf_text(path: Path) -> str:
    """Returns a configuration file with the files that it includes; empty if it cannot be read."""
    return "\n".join(_included(path, path.parent, [_INCLUDES_MAX]))


def _included(path: Path, folder: Path, left: list[int]) -> Iterator[str]:
    left[0] -= 1
    if left[0] < 0:
        return
    try:
        text = read_bytes(path, _SIZE_MAX).decode("utf-8", "replace")
    except OSError:
        return
    for line in text.splitlines():
        if match := _INCLUDE.match(line):
            yield from _included(folder / match[1], folder, left)
        else:
            yield line


def gpu_lines(text: str, node: str) -> list[GpuLine]:
    """Returns the lines of gres.conf for this node's GPUs, those without NodeName first; none with AutoDetect."""
    named, unnamed = list[GpuLine](), list[GpuLine]()
    for line in text.replace("\\\n", " ").splitlines():
        items = _ITEM.findall(line.partition("#")[0])
        keys = {key.lower(): quoted or value for key, quoted, value in items}
        if not in_hostlist(node, keys.get("nodename", node)):
            continue
        if keys.get("autodetect", "off").lower() not in ("off", "none") and "file" not in keys:
            return []
        if keys.get("name", "").lower() == "gpu":
            files = tuple(expanded(keys.get("file", "")))
            divided = tuple(expanded(keys.get("multiplefiles", "")))[:1]
            gpus = GpuLine(keys.get("type", "").lower(), files or divided, divided=not files)
            (named if "nodename" in keys else unnamed).append(gpus)
    return unnamed + named


def in_order(lines: Iterable[GpuLine], kinds: Sequence[str] = ()) -> list[GpuLine]:
    """Returns the lines in Slurm's order, each file of a whole GPU once."""
    lines = list(lines)
    if kinds and {line.kind for line in lines}.issuperset(kinds):
        lines = [line for kind in dict.fromkeys(kinds) for line in lines if line.kind == kind]
    ordered, seen = list[GpuLine](), set[str]()
    for line in lines:
        files = line.files if line.divided else tuple(file for file in dict.fromkeys(line.files) if file not in seen)
        ordered.append(GpuLine(line.kind, files, line.divided))
        seen.update(() if line.divided else files)
    return ordered


def kinds_of(gres: str) -> tuple[str, ...]:
    """Parses the types of the GPUs in a node's Gres, such as `gpu:a100:2(S:0),gpu:t4:1`, in lower case.

    Empty if one has no type.
    """
    entries = (entry.strip().split(":") for entry in _SOCKETS.sub("", gres).split(","))
    kinds = [entry[1].lower() if len(entry) > 2 else "" for entry in entries if entry[0].lower() == "gpu"]
    return tuple(kinds) if all(kinds) else ()


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
