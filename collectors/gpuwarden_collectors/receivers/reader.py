"""Who could be told that this machine ends: the jobs of this host, and what each of their processes is to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from gpuwarden_collectors.base import Clock, host_clock
from gpuwarden_collectors.receivers.facts import Kind, LocalJob, Receiver, Role
from gpuwarden_collectors.receivers.grouping import Crowd, Gathering
from gpuwarden_collectors.receivers.labels import UNLABELLED, ContainerLabels, Labels
from gpuwarden_collectors.receivers.roles import Member, roles
from gpuwarden_collectors.receivers.scan import Scanner
from gpuwarden_collectors.receivers.timed_reads import PATIENCE, CarefulReads
from gpuwarden_collectors.slurm.departing_facts import ListedPid

_ORDER = tuple(Kind)


class ReceiversReader:
    """Of `<proc>/PID`; one scan takes some tens of milliseconds with 2,000 processes. Not for several threads at once.

    `containers` is asked for their labels. `patience`: seconds until a process is given up that does not let itself be read.
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
        self._scanner = Scanner(proc, CarefulReads(patience), max_processes=max_processes, clock=clock)
        self._containers = containers

    def read(
        self,
        gpu_pids: Collection[int],
        slurm_pids: Mapping[int, ListedPid] | None = None,
        owners: Mapping[int, int] | None = None,
    ) -> tuple[LocalJob, ...]:
        """All jobs of Slurm's, and what else has a rank or holds a GPU: containers, and trees of processes.

        `gpu_pids` hold a GPU. `slurm_pids` is what slurmd lists, `owners` the user of each job as the controller has it, as far as
        anybody asked them. Raises SourceAbsent without /proc, CollectorError if it cannot be listed.
        """
        crowds = Gathering(self._scanner, frozenset(gpu_pids), slurm_pids or {}, owners or {}).crowds()
        found = [(crowd, roles(crowd.members, crowd.owner)) for crowd in crowds]
        working = [(crowd, named) for crowd, named in found if crowd.job is not None or _works(crowd, named)]
        containers = [crowd.container for crowd, _ in working if crowd.container]
        labels = self._containers.of(containers) if self._containers and containers else {}
        return tuple(sorted(_jobs(working, labels), key=lambda job: (_ORDER.index(job.kind), len(job.id), job.id)))


def _works(crowd: Crowd, named: Mapping[int, Role]) -> bool:
    return any(
        role is Role.RANK or (crowd.members[pid].gpu and role is not Role.SERVICE) for pid, role in named.items()
    )


def _jobs(
    crowds: Sequence[tuple[Crowd, Mapping[int, Role]]], labels: Mapping[str, ContainerLabels]
) -> Iterator[LocalJob]:
    taken: set[str] = set()
    # A label is the runtime's word: it goes before what an environment says, should two call themselves the same.
    for crowd, named in sorted(crowds, key=lambda found: not labels.get(found[0].container, UNLABELLED).task):
        label = labels.get(crowd.container, UNLABELLED)
        first = sorted(crowd.oldest_first(), key=lambda member: named[member.process.pid] is not Role.RANK)
        task = label.task or _first(member.said.task for member in first)
        name = crowd.container if task in taken or not task else task
        taken |= {name} if crowd.container else set()
        yield LocalJob(
            kind=Kind.CONTAINER if crowd.container else Kind.PROCESS if crowd.job is None else Kind.SLURM,
            id=name if crowd.container else str(crowd.root if crowd.job is None else crowd.job),
            uid=first[0].process.uid if crowd.owner is None else crowd.owner,
            name=_first(member.said.title for member in first) or label.name or _root_name(crowd),
            folder=_first(member.said.folder for member in first),
            declared=label.declared,
            elsewhere=_elsewhere(member for member in first if named[member.process.pid] is Role.RANK),
            processes=tuple(_receiver(member, named[pid]) for pid, member in sorted(crowd.members.items())),
        )


def _root_name(crowd: Crowd) -> str:
    return crowd.members[crowd.root].process.name if crowd.root in crowd.members else ""


def _first(texts: Iterator[str]) -> str:
    return next(filter(None, texts), "")


def _elsewhere(ranks: Iterable[Member]) -> bool:
    """Some of the job's ranks or nodes are not here, as its ranks say that are."""
    here = list(ranks)
    return any(rank.said.nodes > 1 or rank.said.world > len(here) for rank in here)


def _receiver(member: Member, role: Role) -> Receiver:
    process, said = member.process, member.said
    number = member.identity[1] if member.identity else ""
    return Receiver(
        pid=process.pid,
        started=process.started,
        uid=process.uid,
        name=process.name,
        role=role,
        catches=process.catches,
        declared=said.declared,
        step=member.step,
        leader=member.leader,
        rank=int(number) if number else member.number,
        gpu=member.gpu,
        directory=said.directory,
        stuck=member.stuck,
    )
