"""Groups the processes of the host by job, by container, or by process tree that holds a GPU.

Sources in the order of trust: control group, slurmd's list, and, for GPU processes, the environment. Only Slurm
determines the user of a job: by its answer, by a cgroup v1 folder with the uid, or by the processes that it placed in
the job, if they have one user.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.receivers.cgroups import OUTSIDE, Group
from gpuwarden_collectors.receivers.declared import UNREAD
from gpuwarden_collectors.receivers.process import Process
from gpuwarden_collectors.receivers.roles import Member
from gpuwarden_collectors.receivers.scan import Scanner
from gpuwarden_collectors.receivers.unmanaged import trees
from gpuwarden_collectors.slurm.departing_facts import ListedPid
from gpuwarden_collectors.slurm.own_pids import own_pids

_STEPD = "slurmstepd"
_NO_TASK = "special"
"""The cgroup v2 folder of processes without a task's folder: all tasks if cgroup.conf constrains nothing (26.05.3)."""


@dataclass(slots=True, kw_only=True)
class ProcessGroup:
    """The processes of a Slurm job (by number or SLUID), of a container, or of the tree below `root`.

    `owner`: the job's user; None if Slurm does not report it.
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
    def user(self) -> int | None:
        """The only user of its processes, or None. Ignores root, which has processes in other users' jobs."""
        users = {member.process.uid for member in self.members.values()} - {0} or {0}
        return users.pop() if len(users) == 1 else None


class Gathering:
    """One scan.

    `gpu_pids` hold a GPU, `slurm_pids` is slurmd's list, `owners` maps jobs to users as reported by the controller.
    """

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
        """Returns the process groups; those of Slurm jobs have the job's number and user.

        Raises SourceAbsent, CollectorError.
        """
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
                process_group = process_groups.setdefault(
                    (pgroup.job, pgroup.sluid, pgroup.container, pgroup.root), pgroup
                )
                process_group.owner = group.owner if process_group.owner is None else process_group.owner
                process_group.members[pid] = member

        for pid, group in groups.items():
            add(ProcessGroup(job=group.job, sluid=group.sluid, container=group.container), pid, group)
        of_slurm = {
            pid: (group.job, group.sluid) for pid, group in groups.items() if group.job is not None or group.sluid
        }
        self._slurm_pids = own_pids(
            self._slurm_pids, {pid: of_slurm[pid] for pid in self._slurm_pids if pid in of_slurm}
        )
        self._listed = {pid for pid in self._slurm_pids if pid not in groups}
        for pid in self._listed:
            add(ProcessGroup(job=self._slurm_pids[pid].job), pid, OUTSIDE)
        for root, pids in self._trees({*groups, *self._listed}).items():
            for pid in pids:
                add(ProcessGroup(root=root), pid, OUTSIDE)
        return list(process_groups.values())

    def _member(self, pid: int, group: Group) -> Member | None:
        """Reads a process as a member; returns None if it is gone or is Slurm's own."""
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
                    del pgroup.members[pid]  # the PID was reused

    def _joined(self, process_groups: Iterable[ProcessGroup]) -> Iterator[ProcessGroup]:
        """Yields all processes of a job together: those that Slurm placed in it, and those that credibly name it
        themselves.
        """
        jobs: dict[int, ProcessGroup] = {}
        claiming: dict[int, list[ProcessGroup]] = {}
        for pgroup in process_groups:
            if (number := self._placed(pgroup)) is not None:
                job = jobs.setdefault(number, ProcessGroup(job=number))
                job.owner = pgroup.owner if job.owner is None else job.owner
                job.members |= pgroup.members
            elif (number := self._claimed(pgroup)) is not None:
                claiming.setdefault(number, []).append(pgroup)
            elif not pgroup.sluid:  # otherwise the job's number is unknown, because Slurm could not be reached
                yield pgroup
        for number, job in jobs.items():
            job.owner = self._owners.get(number, job.user if job.owner is None else job.owner)
        for number, pgroups in claiming.items():
            yield from self._admitted(number, pgroups, jobs)
        yield from jobs.values()

    def _placed(self, pgroup: ProcessGroup) -> int | None:
        """Returns the job in which Slurm placed these processes."""
        if pgroup.job is not None or pgroup.container:
            return pgroup.job
        return next((self._slurm_pids[pid].job for pid in pgroup.members if pid in self._slurm_pids), None)

    @staticmethod
    def _claimed(pgroup: ProcessGroup) -> int | None:
        """Returns the job that these processes name themselves."""
        if pgroup.container:
            return None
        witnesses = (member for member in pgroup.oldest_first() if member.gpu or pgroup.sluid)
        return next((member.declarations.job for member in witnesses if member.declarations.job), None)

    def _admitted(
        self, number: int, pgroups: Sequence[ProcessGroup], jobs: dict[int, ProcessGroup]
    ) -> Iterator[ProcessGroup]:
        """Adds to the job the processes of its user, and yields the others.

        Any user can write a job number into an environment. Without the job's user from Slurm, the number is accepted
        if only one user claims it; that user counts as the owner only if it is root.
        """
        job = jobs.get(number)
        owner = self._owners.get(number) if job is None else job.owner
        alone = job is None and len({pgroup.user for pgroup in pgroups}) == 1
        for pgroup in pgroups:
            if alone if owner is None else pgroup.user == owner:
                owner = 0 if owner is None and pgroup.user == 0 else owner
                jobs.setdefault(number, ProcessGroup(job=number, owner=owner)).members.update(pgroup.members)
            elif pgroup.sluid:  # of an unknown job: its ranks are found as in a process tree
                yield ProcessGroup(root=pgroup.oldest_first()[0].process.pid, members=pgroup.members)
            else:
                yield pgroup

    def _lead(self, pgroup: ProcessGroup) -> None:
        """Mark task leaders: direct children of slurmstepd, excluding orphans it re-parented."""
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
                placed = "" if member.task == _NO_TASK else member.task
                task = (member.step, placed or member.declarations.identity)
                member.leader = task not in first
                first.add(task)

    def _below_stepd(self, process: Process) -> bool:
        if process.parent not in self._stepds:
            parent = self._scanner.process(process.parent)
            self._stepds[process.parent] = parent is not None and _is_stepd(parent)
        return self._stepds[process.parent]


def _is_stepd(process: Process) -> bool:
    return process.name == _STEPD and process.uid == 0
