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
class Crowd:
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

    def crowds(self) -> list[Crowd]:
        """Those of Slurm's jobs have its number and the job's user. Raises SourceAbsent, CollectorError."""
        crowds = self._together(self._scanner.groups())
        self._hear(crowds)
        joined = list(self._joined(crowds))
        for crowd in joined:
            if crowd.job is not None:
                self._lead(crowd)
        return joined

    def _together(self, groups: Mapping[int, Group]) -> list[Crowd]:
        crowds: dict[tuple[object, ...], Crowd] = {}

        def add(crowd: Crowd, pid: int, group: Group) -> None:
            member = self._member(pid, group)
            if member is not None:
                known = crowds.setdefault((crowd.job, crowd.sluid, crowd.container, crowd.root), crowd)
                known.owner = group.owner if known.owner is None else known.owner
                known.members[pid] = member

        for pid, group in groups.items():
            add(Crowd(job=group.job, sluid=group.sluid, container=group.container), pid, group)
        self._listed = {pid for pid in self._slurm_pids if pid not in groups}
        for pid in self._listed:
            add(Crowd(job=self._slurm_pids[pid].job), pid, OUTSIDE)
        for root, pids in self._trees({*groups, *self._listed}).items():
            for pid in pids:
                add(Crowd(root=root), pid, OUTSIDE)
        return list(crowds.values())

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
        return trees(holders, self._scanner.seats(placed), self._uid) if holders else {}

    def _uid(self, pid: int) -> int | None:
        process = self._scanner.process(pid)
        return None if process is None else process.uid

    def _hear(self, crowds: Collection[Crowd]) -> None:
        jobs = [sorted(crowd.oldest_first(), key=lambda member: not member.gpu) for crowd in crowds]
        said = self._scanner.say([[member.process for member in members] for members in jobs])
        for crowd in crowds:
            for pid, member in list(crowd.members.items()):
                answer = said[pid]
                member.said, member.stuck = answer or UNREAD, answer is None
                if pid in self._listed and member.said.job not in (None, crowd.job):
                    del crowd.members[pid]  # the number is another process's by now

    def _joined(self, crowds: Iterable[Crowd]) -> Iterator[Crowd]:
        """All of one job together; those in groups of a SLUID and those of a tree by the number that they name themselves."""
        jobs: dict[int, Crowd] = {}
        for crowd in sorted(crowds, key=lambda crowd: (crowd.job is None, not crowd.sluid)):
            number = self._number(crowd)
            if number is not None and self._is_theirs(crowd, number, jobs.get(number)):
                job = jobs.setdefault(number, Crowd(job=number))
                job.owner = crowd.owner if job.owner is None else job.owner
                job.members |= crowd.members
            elif not crowd.sluid:  # whose number nobody says: Slurm could not be asked about it
                yield crowd
        for number, job in jobs.items():
            job.owner = self._owners.get(number, job.user)
            yield job

    def _number(self, crowd: Crowd) -> int | None:
        if crowd.job is not None or crowd.container:
            return crowd.job
        listed = (self._slurm_pids[pid].job for pid in crowd.members if pid in self._slurm_pids)
        witnesses = [member for member in crowd.oldest_first() if member.gpu or crowd.sluid]
        return next(listed, next((member.said.job for member in witnesses if member.said.job), None))

    def _is_theirs(self, crowd: Crowd, number: int, job: Crowd | None) -> bool:
        """Anybody can write a number into an environment: it counts only for the job's own user."""
        owner = self._owners.get(number, job.user if job else None)
        return crowd.job is not None or owner in (None, crowd.user)

    def _lead(self, crowd: Crowd) -> None:
        """Which of a job's processes slurmstepd started itself: it also adopts what others left behind."""
        first: set[object] = set()
        for member in crowd.oldest_first():
            listed = self._slurm_pids.get(member.process.pid)
            if listed is not None:
                member.step = member.step or listed.step
                member.leader, member.number = listed.local is not None, listed.rank
                continue
            if not member.step and member.said.job == crowd.job:
                member.step = member.said.step
            if self._below_stepd(member.process):
                task = (member.step, member.task or member.said.identity)
                member.leader = task not in first
                first.add(task)

    def _below_stepd(self, process: Process) -> bool:
        if process.parent not in self._stepds:
            parent = self._scanner.process(process.parent)
            self._stepds[process.parent] = parent is not None and _is_stepd(parent)
        return self._stepds[process.parent]


def _is_stepd(process: Process) -> bool:
    return process.name == _STEPD and process.uid == 0
