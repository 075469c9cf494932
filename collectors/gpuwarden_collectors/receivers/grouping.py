"""Which processes of the host belong together: those of a job, of a container, or of a tree that holds a GPU.

In the order of trust: control group, slurmd's list, and, of what holds a GPU, its environment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpuwarden_collectors.receivers.cgroups import OUTSIDE, Group
from gpuwarden_collectors.receivers.declared import UNREAD
from gpuwarden_collectors.receivers.process import Process
from gpuwarden_collectors.receivers.roles import Member
from gpuwarden_collectors.receivers.scan import Scanner
from gpuwarden_collectors.receivers.unmanaged import trees
from gpuwarden_collectors.slurm.departing_facts import ListedPid

_STEPD = "slurmstepd"


@dataclass(slots=True, kw_only=True)
class ProcessGroup:
    """Processes that belong together: of a job of Slurm's, by its number or its SLUID, of a container, or below `root`.

    `owner`: the job's user, where the control groups say it.
    """

    job: int | None = None
    sluid: str = ""
    container: str = ""
    root: int = 0
    owner: int | None = None
    members: dict[int, Member] = field(default_factory=dict)

    def oldest_first(self) -> list[Member]:
        return sorted(self.members.values(), key=lambda member: (member.process.started, member.process.pid))

    @property
    def user(self) -> int:
        """The owner if that is known, else who started its first process and is not root."""
        if self.owner is not None:
            return self.owner
        return next((member.process.uid for member in self.oldest_first() if member.process.uid), 0)


class Gathering:
    """One scan. `gpu_pids` hold a GPU, `slurm_pids` is slurmd's list, `owners` the users of jobs as the controller has them."""

    def __init__(
        self,
        scanner: Scanner,
        gpu_pids: Collection[int],
        slurm_pids: Mapping[int, ListedPid],
        owners: Mapping[int, int],
    ) -> None:
        self._scanner = scanner
        self._gpu_pids = gpu_pids
        self._slurm_pids = slurm_pids
        self._owners = owners
        self._stepds: dict[int, bool] = {}
        self._listed: set[int] = set()

    def process_groups(self) -> list[ProcessGroup]:
        """Those of Slurm's jobs have its number and the job's user. Raises SourceAbsent, CollectorError."""
        process_groups = self._together(self._scanner.groups())
        self._read_declarations(process_groups)
        joined = list(self._joined(process_groups))
        for pgroup in joined:
            if pgroup.job is not None:
                self._lead(pgroup)
        return joined

    def _together(self, groups: Mapping[int, Group]) -> list[ProcessGroup]:
        process_groups: dict[tuple[object, ...], ProcessGroup] = {}

        def add(pgroup: ProcessGroup, pid: int, group: Group) -> None:
            member = self._member(pid, group)
            if member is not None:
                known = process_groups.setdefault((pgroup.job, pgroup.sluid, pgroup.container, pgroup.root), pgroup)
                known.owner = group.owner if known.owner is None else known.owner
                known.members[pid] = member

        for pid, group in groups.items():
            add(ProcessGroup(job=group.job, sluid=group.sluid, container=group.container), pid, group)
        self._listed = {pid for pid in self._slurm_pids if pid not in groups}
        for pid in self._listed:
            add(ProcessGroup(job=self._slurm_pids[pid].job), pid, OUTSIDE)
        for root, pids in self._trees({*groups, *self._listed}).items():
            for pid in pids:
                add(ProcessGroup(root=root), pid, OUTSIDE)
        return list(process_groups.values())

    def _member(self, pid: int, group: Group) -> Member | None:
        """None for one that is gone, and for Slurm's own."""
        process = self._scanner.process(pid, group)
        if process is None:
            return None
        if _is_stepd(process):
            self._stepds[pid] = True
            return None
        return Member(process=process, step=group.step, task=group.task, gpu=pid in self._gpu_pids)

    def _trees(self, placed: set[int]) -> dict[int, set[int]]:
        holders = [pid for pid in self._gpu_pids if pid not in placed]
        return trees(holders, self._scanner.nodes(placed), self._uid) if holders else {}

    def _uid(self, pid: int) -> int | None:
        process = self._scanner.process(pid)
        return None if process is None else process.uid

    def _read_declarations(self, process_groups: Collection[ProcessGroup]) -> None:
        jobs = [sorted(pgroup.oldest_first(), key=lambda member: not member.gpu) for pgroup in process_groups]
        read = self._scanner.read_declarations([[member.process for member in members] for members in jobs])
        for pgroup in process_groups:
            for pid, member in list(pgroup.members.items()):
                answer = read[pid]
                member.declarations, member.stuck = answer or UNREAD, answer is None
                if pid in self._listed and member.declarations.job not in (None, pgroup.job):
                    del pgroup.members[pid]  # the number is another process's by now

    def _joined(self, process_groups: Iterable[ProcessGroup]) -> Iterator[ProcessGroup]:
        """All of one job together; those in groups of a SLUID and those of a tree by the number that they name themselves."""
        jobs: dict[int, ProcessGroup] = {}
        for pgroup in sorted(process_groups, key=lambda pgroup: (pgroup.job is None, not pgroup.sluid)):
            number = self._number(pgroup)
            if number is not None and self._is_theirs(pgroup, number, jobs.get(number)):
                job = jobs.setdefault(number, ProcessGroup(job=number))
                job.owner = pgroup.owner if job.owner is None else job.owner
                job.members |= pgroup.members
            elif not pgroup.sluid:  # whose number is not known: Slurm could not be reached
                yield pgroup
        for number, job in jobs.items():
            job.owner = self._owners.get(number, job.user)
            yield job

    def _number(self, pgroup: ProcessGroup) -> int | None:
        if pgroup.job is not None or pgroup.container:
            return pgroup.job
        listed = (self._slurm_pids[pid].job for pid in pgroup.members if pid in self._slurm_pids)
        witnesses = [member for member in pgroup.oldest_first() if member.gpu or pgroup.sluid]
        return next(listed, next((member.declarations.job for member in witnesses if member.declarations.job), None))

    def _is_theirs(self, pgroup: ProcessGroup, number: int, job: ProcessGroup | None) -> bool:
        """Anybody can write a number into an environment: it counts only for the job's own user."""
        owner = self._owners.get(number, job.user if job else None)
        return pgroup.job is not None or owner in (None, pgroup.user)

    def _lead(self, pgroup: ProcessGroup) -> None:
        """Which of a job's processes slurmstepd started itself: it also adopts what others left behind."""
        first: set[object] = set()
        for member in pgroup.oldest_first():
            listed = self._slurm_pids.get(member.process.pid)
            if listed is not None:
                member.step = member.step or listed.step
                member.leader, member.number = listed.local is not None, listed.rank
                continue
            if not member.step and member.declarations.job == pgroup.job:
                member.step = member.declarations.step
            if self._below_stepd(member.process):
                task = (member.step, member.task or member.declarations.identity)
                member.leader = task not in first
                first.add(task)

    def _below_stepd(self, process: Process) -> bool:
        if process.parent not in self._stepds:
            parent = self._scanner.process(process.parent)
            self._stepds[process.parent] = parent is not None and _is_stepd(parent)
        return self._stepds[process.parent]


def _is_stepd(process: Process) -> bool:
    return process.name == _STEPD and process.uid == 0
