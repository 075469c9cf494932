"""Reads the kernel's count of OOM kills in a control group.

    v2    memory.events       oom_kill, of the whole subtree (Linux 4.13), also kills by another group's or the node's limit
    v1    memory.oom_control  oom_kill, of this folder only (Linux 4.13): counts of a job's steps are summed, and kept
                              after their folders are removed

A kill right before its folder is removed is not counted; the kernel log has it. Reads are made in a thread: they may hang.
"""

from __future__ import annotations

import os
import re
from dataclasses import field
from itertools import islice

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.receivers.timed_reads import TimedReads

FOLDERS_MOST = 256
"""Most folders read of one cgroup v1 group."""
_DEEP = 3
_COUNT = re.compile(r"^oom_kill (\d{1,18})$", re.MULTILINE | re.ASCII)


@dataclass(slots=True)
class OomCount:
    """The count of one control group, in its folder."""

    folder: str
    _of: dict[str, int] = field(default_factory=dict)

    def take(self, counts: dict[str, int]) -> None:
        for folder, count in counts.items():
            if folder in self._of or len(self._of) < FOLDERS_MOST:
                self._of[folder] = max(count, self._of.get(folder, 0))

    @property
    def kills(self) -> int | None:
        return sum(self._of.values()) if self._of else None


class OomCounts:
    def __init__(self) -> None:
        self._reads: TimedReads[str, dict[str, int]] = TimedReads()

    def read(self, counts: list[OomCount]) -> None:
        """Updates the counts. Raises nothing: a count that hangs or cannot be read stays unchanged."""
        answers = self._reads.all(_counted, [count.folder for count in counts])
        for count in counts:
            count.take(answers.get(count.folder, {}))


def _counted(folder: str) -> dict[str, int]:
    """Returns counts by folder: of this folder, and for version 1 of those below it."""
    if (count := _count(f"{folder}/memory.events")) is not None:
        return {folder: count}
    counts: dict[str, int] = {}
    level = [folder]
    for _ in range(_DEEP + 1):
        for group in level:
            if (count := _count(f"{group}/memory.oom_control")) is not None:
                counts[group] = count
        level = [below for group in level for below in _below(group)][: FOLDERS_MOST - len(counts)]
    return counts


def _below(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in islice(entries, 4096) if _is_roots(entry)]
    except OSError:
        return []


def _is_roots(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_uid == 0


def _count(path: str) -> int | None:
    try:
        match = _COUNT.search(read_text(path))
    except OSError:
        return None
    return None if match is None else int(match[1])
