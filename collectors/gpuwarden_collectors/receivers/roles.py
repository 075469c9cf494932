"""The role of each process in its job, from its name, from what it declares, and from its position in the tree.

A rank is the topmost process that is no shell, launcher or service and that shows that it does the work: it
holds a GPU, it has a rank's number, it declares a signal, or slurmstepd started it, directly or through shells and launchers.
What is below a rank with the same identity is its helper: data loaders and writers of checkpoints inherit the environment of
a rank, its handlers too if they were forked. Launchers of unknown names are recognised by their shape: they hold no GPU, and below
them are other identities than their own, or processes that hold GPUs and catch signals.

Where that leaves several in one place, those that hold a GPU are the ranks. A process of another user than the job's
(sudo) is none of it. What was left by its parent is judged by its environment, and is no rank beside one of the same identity.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.receivers.declared import UNREAD, Declarations, Identity
from gpuwarden_collectors.receivers.facts import Role
from gpuwarden_collectors.receivers.names import named
from gpuwarden_collectors.receivers.process import Process

_PASSED = (Role.SHELL, Role.LAUNCHER, Role.SERVICE)


@dataclass(slots=True, kw_only=True)
class Member:
    """A process of a job.

    `step`, `leader` and `stuck` are as in Receiver. `task` is its task's name in slurmd or the control group; `number`
    is its rank according to slurmd.
    """

    process: Process
    declarations: Declarations = UNREAD
    stuck: bool = False
    task: str = ""
    step: str = ""
    leader: bool = False
    number: int | None = None
    gpu: bool = False

    @property
    def identity(self) -> Identity | None:
        """Returns the declared identity; Slurm's numbers count only in steps of tasks.

        They are set in batch scripts and interactive sessions too, where they mean nothing.
        """
        declared = self.declarations.identity
        return None if declared and declared[0].startswith("SLURM_") and not self.step.isdecimal() else declared


@dataclass(slots=True)
class _Below:
    """The identities of all processes below one: at most two, enough to know whether there is one besides its own."""

    identities: set[Identity] = field(default_factory=set)
    first: bool = False  # the first rank of this host
    gpu_catching: bool = False
    gpu_unnumbered: bool = False  # who starts ranks and holds a GPU itself has no number in what it was started with

    def add(self, member: Member, below: _Below) -> None:
        own = {member.identity} if member.identity else set()
        for identity in own | below.identities:
            if len(self.identities) < 2:
                self.identities.add(identity)
        self.first |= below.first or any(identity[2] == "0" for identity in own)
        self.gpu_catching |= below.gpu_catching or (member.gpu and bool(member.process.catches))
        self.gpu_unnumbered |= below.gpu_unnumbered or (member.gpu and member.identity is None)


Members = Mapping[int, Member]


def roles(members: Members, owner: int | None = None) -> dict[int, Role]:
    """The role of each member, by its number. `owner`: the only user whose processes count, if that is known."""
    order = list(_top_down(members))
    below = {pid: _Below() for pid in order}
    for pid in reversed(order):
        parent = members[pid].process.parent
        if parent in below and parent != pid:
            below[parent].add(members[pid], below[pid])
    by_pid: dict[int, Role] = {}
    contexts: dict[int, _Context] = {}
    for pid in order:
        member = members[pid]
        above = contexts.get(member.process.parent)
        role = _known(member, owner) or _placed(member, below[pid], above)
        by_pid[pid], contexts[pid] = role, _context(member, role, above)
    _settle(members, by_pid, contexts)
    return by_pid


@dataclass(frozen=True, slots=True)
class _Context:
    """The surroundings of a process.

    `root` is the topmost process of its tree. `led` is true if slurmstepd started it, or a shell or launcher above it,
    for the job. `rank` is the rank that it is or that is above it.
    """

    root: int
    led: bool
    rank: Member | None


def _top_down(members: Members) -> Iterator[int]:
    """Yields parents before their children.

    Processes whose numbers changed hands during the scan could form a circle, which is cut anywhere.
    """
    children: dict[int, list[int]] = {}
    for pid, member in members.items():
        children.setdefault(member.process.parent, []).append(pid)
    seen: set[int] = set()
    todo = [*members, *(pid for pid, member in members.items() if member.process.parent not in members)]
    while todo:  # from the end: the trees first, then what no tree has
        pid = todo.pop()
        if pid not in seen:
            seen.add(pid)
            yield pid
            todo.extend(children.get(pid, ()))


def _known(member: Member, owner: int | None) -> Role | None:
    if owner is not None and member.process.uid != owner:
        return Role.SERVICE
    if member.step == "extern" and member.leader:
        return Role.SERVICE  # Slurm's own `sleep`
    return named(member.process.name, member.declarations.command)


def _placed(member: Member, below: _Below, above: _Context | None) -> Role:
    rank = above.rank if above else None
    started_ranks = not member.gpu and bool(below.identities - {member.identity})
    if started_ranks and not (below.first or below.gpu_unnumbered) and member.identity is None:
        return Role.RANK  # it is the first rank itself, and has started the others of this host (Lightning)
    if started_ranks or (not member.gpu and below.gpu_catching):
        return Role.LAUNCHER
    if rank is not None and member.identity in (None, rank.identity):
        return Role.HELPER
    evidence = member.gpu or member.identity or member.declarations.declared or _led(member, above)
    return Role.RANK if evidence else Role.HELPER


def _led(member: Member, above: _Context | None) -> bool:
    """True if slurmstepd started the process or one above it, except at a terminal (interactive, extern).

    A user at a terminal runs more than the job's work.
    """
    return (member.leader or bool(above and above.led)) and member.step not in ("interactive", "extern")


def _context(member: Member, role: Role, above: _Context | None) -> _Context:
    root = above.root if above else member.process.pid
    if role is Role.RANK:
        return _Context(root, led=False, rank=member)
    return _Context(root, _led(member, above) and role in _PASSED, above.rank if above else None)


def _settle(members: Members, by_pid: dict[int, Role], contexts: Mapping[int, _Context]) -> None:
    """Reduces several ranks in one place to those that hold a GPU, or else to those that are not orphans.

    The others become helpers.
    """
    groups: dict[object, list[int]] = {}
    ranks = [pid for pid, role in by_pid.items() if role is Role.RANK]
    for pid in ranks:
        member = members[pid]
        groups.setdefault((member.step, member.identity or contexts[pid].root), []).append(pid)
    for group in groups.values():
        holders = [pid for pid in group if members[pid].gpu]
        kept = (
            holders or [pid for pid in group if members[pid].process.parent in members or members[pid].leader] or group
        )
        by_pid.update((pid, Role.HELPER) for pid in group if pid not in kept)
    if any(members[pid].step.isdecimal() for pid in ranks):
        by_pid.update((pid, Role.HELPER) for pid in ranks if _accompanies(members[pid]))


def _accompanies(member: Member) -> bool:
    """True if the process runs in the batch script beside steps that do the work, and shows no work of its own."""
    return member.step in ("batch", "interactive") and not member.gpu and member.identity is None
