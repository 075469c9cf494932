"""Scans the host's processes: reads the control groups of all, and further facts about the relevant ones.

Control groups take about 20 ms on a host with 2,000 processes. Declarations are read once per executed program, so a
process that overwrites them later, or whose memory lock is held later, does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path

from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.control_groups import RootFolders
from gpuwarden_collectors.process_stat import process_ids
from gpuwarden_collectors.receivers.cgroups import OUTSIDE, Group, group_in
from gpuwarden_collectors.receivers.declared import (
    COMMAND_MOST,
    ENVIRON_MOST,
    UNREAD,
    Declarations,
    command_in,
    declarations_in,
)
from gpuwarden_collectors.receivers.process import Process, opened, process, read, stat
from gpuwarden_collectors.receivers.timed_reads import TimedReads
from gpuwarden_collectors.receivers.unmanaged import ProcessNode

READ_MOST = 1024
"""Most processes of one job whose environment is read, oldest first, because ranks are older than their helpers."""
READ_BYTES_MOST = 16 << 20
"""Most bytes of environments read for one job in one scan, so that a user cannot delay the other jobs."""

_TICKS = os.sysconf("SC_CLK_TCK")
_GROUPS_MOST = 64 << 10  # bytes; a host has a dozen v1 hierarchies
_GONE = (OSError, ValueError)

Key = tuple[int, int, tuple[bytes, ...]]
"""Identifies a process between two execs."""


class Scanner:
    """Reads `<proc>/PID`. Not thread-safe."""

    def __init__(
        self,
        proc: Path,
        timed_reads: TimedReads[Key, Declarations | None],
        *,
        max_processes: int = 100_000,
        clock: Clock = host_clock,
    ) -> None:
        self._proc = os.fspath(proc)
        self._folders = RootFolders(proc)
        self._timed_reads = timed_reads
        self._max_processes = max_processes
        self._clock = clock
        self._declarations: dict[Key, Declarations] = {}
        self._began = 0.0
        self._pids: list[int] = []

    def groups(self) -> dict[int, Group]:
        """Starts a scan; returns the processes in Slurm jobs or containers. Raises SourceAbsent, CollectorError."""
        self._began = self._clock().boottime * _TICKS
        self._folders = RootFolders(Path(self._proc))
        self._pids = process_ids(self._proc, self._max_processes)
        by_text: dict[bytes, Group] = {}
        by_pid: dict[int, Group] = {}
        for pid in self._pids:
            group = self._group(pid, by_text)
            if group is not OUTSIDE:
                by_pid[pid] = group
        return by_pid

    def _group(self, pid: int, by_text: dict[bytes, Group]) -> Group:
        """Returns the group of a process. Many processes have the same text, so each text is parsed once."""
        try:
            text = read(None, f"{self._proc}/{pid}/cgroup", _GROUPS_MOST)
        except OSError:
            return OUTSIDE
        if text not in by_text:
            group = group_in(text.decode("ascii", "replace"), self._folders)
            by_text[text] = OUTSIDE if group == OUTSIDE else group
        return by_text[text]

    def process(self, pid: int, group: Group = OUTSIDE) -> Process | None:
        """Reads a process; returns None if it is gone, or if its PID was reused outside `group`."""
        try:
            with opened(self._proc, pid) as folder:
                candidate = process(folder)
        except _GONE:
            return None
        if candidate is None or (candidate.started + 1 >= self._began and self._group(pid, {}) != group):
            return None
        return candidate

    def nodes(self, excluded: Collection[int]) -> dict[int, ProcessNode]:
        """Returns the processes of this host by PID, without the `excluded` ones and those that are gone."""
        return {node.pid: node for pid in self._pids if pid not in excluded and (node := self._node(pid)) is not None}

    def _node(self, pid: int) -> ProcessNode | None:
        try:
            with opened(self._proc, pid) as folder:
                line = stat(folder)
        except _GONE:
            return None
        return None if line.over else ProcessNode(pid, line.parent, line.name.decode("utf-8", "replace"))

    def read_declarations(self, jobs: Iterable[Iterable[Process]]) -> dict[int, Declarations | None]:
        """Returns the declarations of each process by PID, or None for one that cannot be read now.

        `jobs` lists the processes of each job in the order of their importance.
        """
        every = [[(process.pid, process.started, process.program) for process in job] for job in jobs]
        alive = {key for job in every for key in job}
        self._declarations = {key: value for key, value in self._declarations.items() if key in alive}
        for job in every:
            self._read(job[:READ_MOST])
        self._read(key for job in every for key in job[:READ_MOST])  # again: a D state is mostly short
        return {
            key[0]: self._declarations.get(key, None if index < READ_MOST else UNREAD)
            for job in every
            for index, key in enumerate(job)
        }

    def _read(self, keys: Iterable[Key]) -> None:
        reader = _Reader(self._proc)
        answers = self._timed_reads.all(reader.read, [key for key in keys if key not in self._declarations])
        self._declarations.update({key: answer for key, answer in answers.items() if answer is not None})


class _Reader:
    """Reads the processes of one job."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._left = READ_BYTES_MOST
        self._known: dict[bytes, Declarations] = {}  # by environment, which helpers inherit unchanged from a rank

    def read(self, key: Key) -> Declarations | None:
        """Reads the declarations of a process; returns UNREAD if it is gone. May hang.

        Returns None if it is in D state, if the byte limit is reached, or if permission is denied: then it is unknown
        which signal the process accepts.
        """
        if self._left <= 0:
            return None
        try:
            with opened(self._proc, key[0]) as folder:
                line = stat(folder)
                if line.state == "D":
                    return None
                if line.started != key[1]:
                    return UNREAD
                command = read(folder, "cmdline", COMMAND_MOST)
                environ = read(folder, "environ", ENVIRON_MOST)
        except PermissionError:
            return None
        except _GONE:
            return UNREAD
        self._left -= len(environ)
        if environ not in self._known:
            self._known[environ] = declarations_in(environ, b"")
        return replace(self._known[environ], command=command_in(command))
