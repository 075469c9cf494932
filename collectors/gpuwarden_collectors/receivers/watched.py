"""Reads the containers with GPUs that have opted in to `job_stalled`.

They opt in by GPUWARDEN_STALL=watch in the environment of a GPU process, as set in a pod's spec, or by the label
`gpuwarden.stall=watch` of a runtime with Docker's API. Only processes with an open GPU are read: the control group of
each, and its environment once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.control_groups import RootFolders
from gpuwarden_collectors.host_files import read_text
from gpuwarden_collectors.receivers.cgroups import OUTSIDE, Group, group_in
from gpuwarden_collectors.receivers.labels import Labels
from gpuwarden_collectors.receivers.watched_facts import ContainersFacts, WatchedContainer
from gpuwarden_collectors.slurm.jobs_cpu import CpuTimes
from gpuwarden_collectors.slurm.jobs_facts import JobProcess
from gpuwarden_collectors.slurm.jobs_process import WATCH, Process, process, rank_of, variables, wish

PROCESSES_MAX = 4096
_GROUPS_MAX = 64 << 10  # bytes
_SHOWN = 12  # digits of an id, as the runtimes' own lists have them


class WatchedReader:
    """Reads the containers with GPUs.

    `pids` returns the processes with an open GPU, from NVML's last list. If `labels` is None, no runtime is queried.
    """

    def __init__(
        self,
        proc: Path,
        *,
        pids: Callable[[], Collection[int]],
        labels: Labels | None = None,
        clock: Clock = host_clock,
    ) -> None:
        self._proc = proc
        self._pids = pids
        self._labels = labels
        self._clock = clock
        self._cpu = CpuTimes()
        self._known: dict[tuple[int, float], tuple[str, bool, int | None]] = {}

    def read(self) -> ContainersFacts:
        """Reads the containers. Raises nothing: an unreadable process has not opted in."""
        users = [user for pid in sorted(self._pids())[:PROCESSES_MAX] if (user := process(self._proc, pid))]
        self._cpu.read(users, self._clock().boottime)
        folders = RootFolders(self._proc)
        memberships = {(user.pid, user.started): self._of(user, folders) for user in users}
        self._known = {key: membership for key, membership in memberships.items() if membership is not None}
        of = {container for container, _, _ in self._known.values()}
        labels = self._labels.of(sorted(of)) if self._labels is not None and of else {}
        watched = {container for container, wishes_it, _ in self._known.values() if wishes_it}
        watched |= {container for container, labelled in labels.items() if labelled.stall == WATCH}
        return ContainersFacts(
            containers=tuple(self._container(name, users) for name in sorted(watched)), cpu_at=self._cpu.at
        )

    def _of(self, user: Process, folders: RootFolders) -> tuple[str, bool, int | None] | None:
        """Returns the process's container, whether it opts in, and its rank.

        Returns None outside of containers, and while reading the process could block.
        """
        if (membership := self._known.get((user.pid, user.started))) is not None:
            return membership
        group = self._group(user, folders)
        if not group.container or user.stuck:
            return None
        declared = variables(self._proc, user)
        return group.container, wish(declared) == WATCH, rank_of(declared)

    def _group(self, user: Process, folders: RootFolders) -> Group:
        try:
            return group_in(read_text(self._proc / str(user.pid) / "cgroup", _GROUPS_MAX), folders)
        except OSError:
            return OUTSIDE

    def _container(self, name: str, users: Collection[Process]) -> WatchedContainer:
        mine = [
            (user, membership)
            for user in users
            if (membership := self._known.get((user.pid, user.started))) and membership[0] == name
        ]
        processes = (
            JobProcess(pid=user.pid, uid=user.uid, known_from="cgroup", rank=rank, cpu_seconds=self._cpu.of(user))
            for user, (_, _, rank) in mine
        )
        return WatchedContainer(id=name[:_SHOWN], processes=tuple(processes))
