"""Tracks the workloads on the GPUs, from the first process with an open GPU to the end; grouped by `workload_names.py`.

A job, container or pod ends when its control group is removed or replaced. A session, or a workload without a visible
control group, ends with its last process that had a GPU open; what the same shell starts later is a new workload. While
NVML does not answer, the processes that it last listed count as long as they live.

Only processes with an open GPU are read: their stat line in each pass, their control groups once.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path

from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.control_groups import RootFolders
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.process_stat import ProcessStat, process_stat
from gpuwarden_collectors.receivers.oom_counts import OomCount, OomCounts
from gpuwarden_collectors.receivers.workload_names import SESSION, Member, member, only, pod_names
from gpuwarden_collectors.receivers.workloads_facts import Workload, WorkloadProcess, WorkloadsFacts

PROCESSES_MAX, WORKLOADS_MAX = 4096, 256
SESSIONS_MAX = 64
"""Most sessions of one user among the current ones, and among the ended ones, so that no user displaces another's."""
KEPT_FOR = 60.0
"""Seconds for which an ended workload is still reported."""
_FIRST_MOST = 64
"""Most processes of a control group whose start time is read."""
_TICKS = os.sysconf("SC_CLK_TCK")

_Key = tuple[int, int]
"""PID and start time in ticks."""


@dataclass(slots=True)
class _Known:
    """A current or ended workload. `inode` is that of its cgroup folder."""

    member: Member
    started: float
    inode: int
    oom: OomCount | None
    also: set[str] = field(default_factory=set)
    slots: set[str] = field(default_factory=set)
    uids: set[int] = field(default_factory=set)
    alive: set[_Key] = field(default_factory=set)
    open: dict[_Key, WorkloadProcess] = field(default_factory=dict)
    ended: float | None = None


class WorkloadsReader:
    """Reads the workloads on the GPUs.

    `users` returns the open GPUs of each process by PID, from NVML's last list, or None while NVML does not answer.
    `jobs` returns the job numbers that the collector `jobs` found, by PID. `root`: where the host's root is mounted.
    """

    def __init__(
        self,
        proc: Path,
        *,
        users: Callable[[], Mapping[int, tuple[str, ...]] | None],
        jobs: Callable[[], Mapping[int, int]] = dict,
        root: Path = Path("/"),
        clock: Clock = host_clock,
    ) -> None:
        self._proc = proc
        self._users = users
        self._jobs = jobs
        self._root = root
        self._clock = clock
        self._counts = OomCounts()
        self._there: dict[str, _Known] = {}
        self._gone: list[_Known] = []
        self._members: dict[_Key, Member | None] = {}
        self._left_out = 0

    def read(self) -> WorkloadsFacts:
        """Reads the workloads. Raises nothing: processes that cannot be read are skipped."""
        now = self._clock().boottime
        self._left_out = 0
        users = self._users()
        for tracked in self._there.values():
            tracked.alive = {key for key in tracked.alive if self._is_alive(key)}
            tracked.open = {
                key: workload for key, workload in tracked.open.items() if users is None and key in tracked.alive
            }
        self._end(now)
        self._take({} if users is None else users)
        self._counts.read([tracked.oom for tracked in self._there.values() if tracked.oom is not None])
        self._gone = _newest([tracked for tracked in self._gone if now - (tracked.ended or now) <= KEPT_FOR])
        workloads = [_workload(tracked) for tracked in (*self._gone, *self._there.values())]
        workloads.sort(key=lambda workload: (workload.name, workload.started))
        return WorkloadsFacts(workloads=tuple(workloads), left_out=self._left_out)

    def _take(self, users: Mapping[int, tuple[str, ...]]) -> None:
        listed = sorted(users)
        self._left_out += len(listed[PROCESSES_MAX:])
        stats = [stat for pid in listed[:PROCESSES_MAX] if (stat := process_stat(self._proc, pid)) and not stat.over]
        self._identify(stats)
        sessions = Counter(tracked.member.uid for tracked in self._there.values() if tracked.member.is_session)
        for stat in stats:
            key = stat.pid, stat.started
            if (of := self._members.get(key)) is None:
                continue
            tracked = self._there.get(of.name)
            is_too_many = of.is_session and sessions[of.uid] >= SESSIONS_MAX
            if tracked is None and len(self._there) < WORKLOADS_MAX and not is_too_many:
                tracked = self._there[of.name] = self._begun(of, stat)
                sessions[of.uid] += of.is_session
            if tracked is None:
                self._left_out += 1
                continue
            tracked.started = min(tracked.started, stat.started / _TICKS)
            tracked.alive.add(key)
            tracked.slots.update(users[stat.pid])
            tracked.uids.add(of.uid)
            tracked.also.update(of.also)
            tracked.open[key] = WorkloadProcess(pid=stat.pid, uid=of.uid, slots=tuple(sorted(users[stat.pid])))

    def _identify(self, stats: list[ProcessStat]) -> None:
        """Determines the workload of each process once; of a job without control groups again until it is known."""
        before, jobs = self._members, self._jobs()
        self._members = {}
        folders: RootFolders | None = None
        pods: dict[str, str] | None = None
        for stat in stats:
            key = stat.pid, stat.started
            earlier = before.get(key)
            late = stat.pid in jobs and (earlier is None or earlier.name.startswith(SESSION))
            if key in before and not late:
                self._members[key] = earlier
                continue
            folders = folders or RootFolders(self._proc)
            pods = pod_names(self._root) if pods is None else pods
            self._members[key] = member(self._proc, stat, folders, jobs, pods)
            if earlier is not None and (was := self._there.get(earlier.name)) is not None:
                was.alive.discard(key)
                was.open.pop(key, None)

    def _begun(self, of: Member, stat: ProcessStat) -> _Known:
        folder = of.folder
        return _Known(
            member=of,
            started=min((stat.started / _TICKS, *self._starts(folder))),
            inode=_inode(folder),
            oom=None if folder is None else OomCount(folder),
        )

    def _starts(self, folder: str | None) -> list[float]:
        """Returns start times of the control group's processes: a container's first process may have no GPU open."""
        if folder is None:
            return []
        try:
            pids = [int(pid) for pid in read_text(f"{folder}/cgroup.procs").split()[:_FIRST_MOST] if pid.isdecimal()]
        except OSError:
            return []
        return [stat.started / _TICKS for pid in pids if pid and (stat := process_stat(self._proc, pid))]

    def _is_alive(self, key: _Key) -> bool:
        stat = process_stat(self._proc, key[0])
        return stat is not None and stat.started == key[1] and not stat.over

    def _end(self, now: float) -> None:
        for name, tracked in list(self._there.items()):
            gone = not tracked.alive if tracked.oom is None else _inode(tracked.oom.folder) != tracked.inode
            if gone:
                tracked.ended, tracked.open = now, {}
                self._gone.append(self._there.pop(name))
                moved = {key for key, of in self._members.items() if of is not None and of.name == name}
                self._members = {key: of for key, of in self._members.items() if key not in moved}


def _newest(gone: list[_Known]) -> list[_Known]:
    """Return the ended workloads that are still reported, oldest first."""
    sessions: Counter[int] = Counter()
    kept = []
    for tracked in reversed(gone):
        of = tracked.member
        sessions[of.uid] += of.is_session
        if not of.is_session or sessions[of.uid] <= SESSIONS_MAX:
            kept.append(tracked)
    return kept[:WORKLOADS_MAX][::-1]


def _inode(folder: str | None) -> int:
    """Returns the inode of a folder, which is unique while the folder exists; -1 if it is gone."""
    try:
        return -1 if folder is None else os.lstat(folder).st_ino
    except OSError:
        return -1


def _workload(tracked: _Known) -> Workload:
    of = tracked.member
    return Workload(
        name=of.name,
        also=tuple(sorted(tracked.also)),
        uid=only(tracked.uids) if of.owner is None else of.owner,
        started=tracked.started,
        ended=tracked.ended,
        slots=tuple(sorted(tracked.slots)),
        processes=tuple(tracked.open[key] for key in sorted(tracked.open)),
        group=of.group,
        oom_kills=None if tracked.oom is None else tracked.oom.kills,
    )
