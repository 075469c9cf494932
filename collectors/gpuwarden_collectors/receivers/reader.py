"""Finds what can be signalled before this machine ends: the jobs of this host, and the roles of their processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.receivers.facts import Kind, LocalJob, Receiver, Role
from gpuwarden_collectors.receivers.grouping import Gathering, ProcessGroup
from gpuwarden_collectors.receivers.labels import UNLABELLED, ContainerLabels, Labels
from gpuwarden_collectors.receivers.names import ends_by
from gpuwarden_collectors.receivers.roles import Member, roles
from gpuwarden_collectors.receivers.scan import Scanner
from gpuwarden_collectors.receivers.timed_reads import PATIENCE, TimedReads
from gpuwarden_collectors.slurm.departing_facts import ListedPid

_ORDER = tuple(Kind)


class ReceiversReader:
    """Reads `<proc>/PID`; one scan takes some tens of milliseconds with 2,000 processes. Not thread-safe.

    `containers` provides container labels. `patience` is the time in seconds after which a hung read of a process is
    abandoned.
    """

    def __init__(
        self,
        proc: Path,
        *,
        containers: Labels | None = None,
        patience: float = PATIENCE,
        max_processes: int = 100_000,
        clock: Clock = host_clock,
    ) -> None:
        self._scanner = Scanner(proc, TimedReads(patience), max_processes=max_processes, clock=clock)
        self._containers = containers

    def read(
        self,
        gpu_pids: Collection[int],
        slurm_pids: Mapping[int, ListedPid] | None = None,
        owners: Mapping[int, int] | None = None,
    ) -> tuple[LocalJob, ...]:
        """Returns all Slurm jobs, and the containers and process trees that have a rank or hold a GPU.

        `gpu_pids` hold a GPU. `slurm_pids` is slurmd's list, and `owners` maps jobs to users, if Slurm was queried.
        Raises SourceAbsent without /proc, CollectorError if it cannot be listed.
        """
        process_groups = Gathering(self._scanner, frozenset(gpu_pids), slurm_pids or {}, owners or {}).process_groups()
        with_roles = [(pgroup, roles(pgroup.members, pgroup.owner)) for pgroup in process_groups]
        working = [(pgroup, named) for pgroup, named in with_roles if pgroup.job is not None or _works(pgroup, named)]
        containers = [pgroup.container for pgroup, _ in working if pgroup.container]
        labels = self._containers.of(containers) if self._containers and containers else {}
        return tuple(sorted(_jobs(working, labels), key=lambda job: (_ORDER.index(job.kind), len(job.id), job.id)))


def _works(pgroup: ProcessGroup, named: Mapping[int, Role]) -> bool:
    return any(
        role is Role.RANK or (pgroup.members[pid].gpu and role is not Role.SERVICE) for pid, role in named.items()
    )


def _jobs(
    process_groups: Sequence[tuple[ProcessGroup, Mapping[int, Role]]], labels: Mapping[str, ContainerLabels]
) -> Iterator[LocalJob]:
    taken: set[str] = set()
    # If two groups declare the same name, a label wins over an environment, because the runtime set it.
    for pgroup, named in sorted(process_groups, key=lambda pair: not labels.get(pair[0].container, UNLABELLED).task):
        label = labels.get(pgroup.container, UNLABELLED)
        first = sorted(pgroup.oldest_first(), key=lambda member: named[member.process.pid] is not Role.RANK)
        task = label.task or _first(member.declarations.task for member in first)
        name = pgroup.container if task in taken or not task else task
        taken |= {name} if pgroup.container else set()
        yield LocalJob(
            kind=Kind.CONTAINER if pgroup.container else Kind.PROCESS if pgroup.job is None else Kind.SLURM,
            id=name if pgroup.container else str(pgroup.root if pgroup.job is None else pgroup.job),
            uid=first[0].process.uid if pgroup.job is None else pgroup.owner,
            name=_first(member.declarations.title for member in first) or label.name or _root_name(pgroup),
            folder=_first(member.declarations.folder for member in first),
            declared=label.declared,
            elsewhere=_has_others(member for member in first if named[member.process.pid] is Role.RANK),
            processes=tuple(_receiver(member, named[pid]) for pid, member in sorted(pgroup.members.items())),
        )


def _root_name(pgroup: ProcessGroup) -> str:
    return pgroup.members[pgroup.root].process.name if pgroup.root in pgroup.members else ""


def _first(texts: Iterator[str]) -> str:
    return next(filter(None, texts), "")


def _has_others(ranks: Iterable[Member]) -> bool:
    """True if the ranks' environment shows ranks or nodes of the job on other hosts."""
    here = list(ranks)
    return any(rank.declarations.nodes > 1 or rank.declarations.world > len(here) for rank in here)


def _receiver(member: Member, role: Role) -> Receiver:
    process, declarations = member.process, member.declarations
    number = member.identity[1] if member.identity else ""
    return Receiver(
        pid=process.pid,
        started=process.started,
        uid=process.uid,
        name=process.name,
        role=role,
        catches=process.catches - (ends_by(process.name) - {declarations.declared}),
        declared=declarations.declared,
        step=member.step,
        step_nodes=declarations.step_nodes if declarations.step == member.step else "",
        leader=member.leader,
        rank=int(number) if number else member.number,
        gpu=member.gpu,
        stuck=member.stuck,
    )
