"""The role of each process in its job, from its name, from what it declares, and from its position in the tree.

A rank is the topmost process that is not a shell, launcher or service and that shows signs of work: it holds a GPU,
has a rank number, declares a signal, or was started by slurmstepd, directly or through shells and launchers. A process
below a rank with the same identity is its helper: data loaders and checkpoint writers inherit a rank's environment, and
its signal handlers if they were forked. Unknown launchers are detected by structure: they hold no GPU, and their
descendants have other identities, or hold GPUs and catch signals.

If several candidates remain for one rank, those that hold a GPU are the ranks. Processes of other users (sudo) are
ignored. Orphans are judged by their environment, and are not ranks if another process has the same identity.
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

    `step`, `leader` and `stuck` are as in Receiver. `task` is its task's name from slurmd or the control group;
    `number` is its rank from slurmd.
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

        Batch scripts and interactive sessions have them, too, without meaning.
        """
        declared = self.declarations.identity
        return None if declared and declared[0].startswith("SLURM_") and not self.step.isdecimal() else declared


@dataclass(slots=True)
class _Below:
    """The identities of all descendants of a process, at most two: enough to detect another one than its own."""

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
    """Returns the role of each member by PID. `owner`: the only user whose processes count, or None if unknown."""
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

    `root` is the topmost process of its tree. `led` is true if slurmstepd started it, or started a shell or launcher
    above it. `rank` is the process itself or the rank above it.
    """

    root: int
    led: bool
    rank: Member | None


def _top_down(members: Members) -> Iterator[int]:
    """Yields parents before their children.

    PIDs reused during the scan could form a cycle, which is cut at an arbitrary process.
    """
    children: dict[int, list[int]] = {}
    for pid, member in members.items():
        children.setdefault(member.process.parent, []).append(pid)
    seen: set[int] = set()
    todo = [*members, *(pid for pid, member in members.items() if member.process.parent not in members)]
    while todo:  # from the end: trees first, then processes of cycles
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
    """Reduces several candidates for one rank to those that hold a GPU, or else to those that are not orphans.

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
    """True if the process belongs to the batch script, while steps do the work, and shows no signs of work itself."""
    return member.step in ("batch", "interactive") and not member.gpu and member.identity is None
