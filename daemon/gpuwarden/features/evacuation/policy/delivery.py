"""Chooses which processes of a job are signalled when the machine ends, with which signal, and in which way. Pure.

The signal of a process is the first of these: that of its own environment, of the job's comment in Slurm, of the
container's label, of the first site rule that fits, the default. It is sent only to a rank that catches it, because the
default action of each of these signals ends a process. If a rank does not catch the chosen signal, no other is tried.

    way       who gets it                                   where
    job_wide  every rank of the job's steps that are here,  every leader here is a rank that catches it, nobody here dies of it
              on all their nodes
    batch     the process of the batch script               it is itself the rank: `exec python` in the script
    local     the ranks on this host, by pidfd              everything else, and whenever time or the controller is short
    watch     nobody: another node signals these steps      its mark is in the AdminComment, and they run there, too
    none      nobody                                        `text` says why
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.receivers.facts import NOTHING, SIGNALS, Kind, LocalJob, Receiver, Role
from gpuwarden_collectors.slurm.departing_facts import SlurmJob
from gpuwarden_collectors.slurm.hostlist import in_hostlist

SIGNALLED_MOST = 1_024
"""Most processes of one job that are signalled, so that the state can store each: a host has less than 200 hardware
threads a GPU."""
MARK_STANDS = 600.0
"""Seconds for which a mark keeps other nodes from signalling: as long as an announced end may be away, by default."""
RUNNING = "running"
ALIVE = frozenset({RUNNING, "suspended", "stopped", "configuring", "resizing", "signaling"})
"""States of a job that is not ending by itself. One that is has already got SIGTERM from Slurm."""

Process = tuple[int, int]
"""PID, and start in ticks since boot: together they identify a process for good."""


class Way(StrEnum):
    JOB_WIDE = "job_wide"
    BATCH = "batch"
    LOCAL = "local"
    WATCH = "watch"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteRule:
    """The signal (one of SIGNALS, or NOTHING) for jobs of this partition and of this name; an empty field fits any job.

    `name` is a regular expression for all of the name, such as `fnmatch.translate` makes.
    """

    signal: str
    partition: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRules:
    """The site's choice of signals. `default` is one of SIGNALS, or NOTHING; the first of `rules` that fits takes
    precedence over it.
    """

    default: str = "TERM"
    rules: tuple[SiteRule, ...] = ()


@dataclass(frozen=True, slots=True)
class Aim:
    receiver: Receiver
    signal: str

    @property
    def process(self) -> Process:
        return self.receiver.pid, self.receiver.started


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """How a job is signalled. `signal` is what all receivers get; it has several words where they differ, which only
    the way `local` can do.

    `receivers` are the processes of this host that the signal reaches, from whichever node it is sent; from then on
    they count as signalled. With `local_only`, the job has more nodes, and the ranks there are not signalled. `text` is
    for people.
    """

    way: Way
    text: str
    signal: str = ""
    receivers: tuple[Aim, ...] = ()
    local_only: bool = False

    @property
    def steps(self) -> frozenset[str]:
        """Return the steps of the receivers. A `job_wide` delivery signals these on all their nodes."""
        return frozenset(aim.receiver.step for aim in self.receivers)


@dataclass(frozen=True, slots=True)
class Mark:
    """The node that signals the steps of a job that it runs, and since when (Unix time there, whole seconds)."""

    node: str
    at: float

    def __str__(self) -> str:
        return f"gpuwarden:ckpt@{self.node}@{int(self.at)}"


_MARK = re.compile(r"gpuwarden:ckpt@([A-Za-z0-9._-]{1,255})@([0-9]{1,12})", re.ASCII)
_SIGNAL_IN_COMMENT = re.compile(r"(?:gpuwarden:signal|GPUWARDEN_SIGNAL)=([A-Za-z0-9]{0,16})", re.ASCII)


def mark(node: str, now: float) -> str:
    """Return the text written into a job's AdminComment before it is signalled as a whole. `now`: Unix time."""
    return str(Mark(node, now))


def parse_mark(text: str) -> Mark | None:
    """Parse an AdminComment. Returns None unless it is exactly a mark: any other text belongs to someone else."""
    match = _MARK.fullmatch(text.strip())
    return None if match is None else Mark(match[1], float(match[2]))


def standing_mark(admin_comment: str | None, started: float, now: float) -> Mark | None:
    """Return the mark in force: one of this run of the job that is not too old. `now` and `started` in Unix time.

    A mark of this node counts, too: it may have signalled the job before it lost its ledger, and must not signal it
    twice.
    """
    mark = None if admin_comment is None else parse_mark(admin_comment)
    if mark is None or mark.at < int(started) or abs(now - mark.at) > MARK_STANDS:
        return None
    return mark


def markable(admin_comment: str | None) -> bool:
    """Return True if a mark may be written: the comment has no foreign text, or was not read yet."""
    return admin_comment is None or not admin_comment.strip() or parse_mark(admin_comment) is not None


def declared(text: str) -> str:
    """Convert a word such as `USR1` or `sigusr1` to one of SIGNALS. Any other word gives NOTHING: it names a signal
    that is never sent.
    """
    word = text.strip().upper().removeprefix("SIG")
    return word if word in SIGNALS else NOTHING


def commented(comment: str) -> str:
    """Return the signal that a job's comment requests: one of SIGNALS, NOTHING, or empty if it requests none."""
    match = _SIGNAL_IN_COMMENT.search(comment)
    return "" if match is None else declared(match[1])


def delivery(
    job: LocalJob,
    slurm: SlurmJob | None,
    rules: DeliveryRules,
    *,
    now: float,
    signalled: frozenset[Process] = frozenset(),
    again: frozenset[Process] = frozenset(),
    trees: bool | None = None,
    wide: bool = True,
    unused_mark: str = "",
) -> Delivery:
    """Choose how `job` is signalled. `slurm`: the controller's record of it, None if there is none. `now` in Unix time.

    `signalled`: processes signalled before; `again`, if not empty: those of them that alone get the signal, once more.
    `trees`: a signal through Slurm reaches all processes of a step, not only the leaders of its tasks; unknown counts
    as yes. `wide` False: there is no time or no controller for anything but this host. `unused_mark`: a node whose mark
    counts for nothing, since no signal followed it.
    """
    trees = trees is not False
    if slurm is not None and slurm.state not in ALIVE:
        return Delivery(way=Way.NONE, text=f"it is {slurm.state}: it ends by itself")
    several = slurm is not None and slurm.node_count > 1
    chosen = _chosen(job, slurm, rules)
    marked = _mark_in_force(slurm, now, unused_mark) if slurm is not None and several and not signalled else None
    if marked is not None and (watched := _watched(marked, chosen, trees=trees)):
        return watched
    if again:
        aims = tuple(aim for aim in chosen if _hears(aim) and aim.process in again)
    else:
        aims = tuple(aim for aim in chosen if _hears(aim) and aim.process not in signalled)[
            : max(SIGNALLED_MOST - len(signalled), 0)
        ]
    if not aims:
        return Delivery(way=Way.NONE, text=_why_nobody(job, chosen, signalled))
    whole = slurm is not None and several and wide and not signalled and marked is None and slurm.state == RUNNING
    if slurm is not None and whole and (through_slurm := _through_slurm(job, slurm, aims, trees=trees)):
        return through_slurm
    signals = " ".join(sorted({aim.signal for aim in aims}))
    text = f"SIG{signals.replace(' ', ', SIG')} to {_ranks(len(aims))} here"
    beyond = slurm is not None and slurm.several  # a part of a heterogeneous job, too, that has one node
    if beyond:
        text += "; those on its other nodes are not signalled by this node"
    elif job.kind is Kind.SLURM and slurm is None:
        text += "; Slurm's record of it is not known"
    return Delivery(way=Way.LOCAL, signal=signals, receivers=aims, local_only=beyond, text=text)


# --- which signal


def _chosen(job: LocalJob, slurm: SlurmJob | None, rules: DeliveryRules) -> tuple[Aim, ...]:
    """Return an aim for each rank that may be signalled; its signal is NOTHING if the rank wants none. A user's choice
    counts only for processes of that user.
    """
    below = (commented(slurm.comment) if slurm else "") or job.declared or _ruled(job, slurm, rules)
    return tuple(
        Aim(receiver, receiver.declared or below)
        for receiver in job.processes
        if receiver.role is Role.RANK and not receiver.stuck and _is_of(receiver, job, slurm)
    )


def _is_of(receiver: Receiver, job: LocalJob, slurm: SlurmJob | None) -> bool:
    """Return True if a process belongs to the job's user. A container has users of its own; elsewhere a process of
    another user is not the job's. While the job's user is not known, every process counts that does not run as root.
    """
    user = job.uid if slurm is None else slurm.uid
    return job.kind is Kind.CONTAINER or (receiver.uid == user if user is not None else receiver.uid != 0)


def _ruled(job: LocalJob, slurm: SlurmJob | None, rules: DeliveryRules) -> str:
    partition, name = (slurm.partition, slurm.name or job.name) if slurm else ("", job.name)
    for rule in rules.rules:
        if rule.partition in ("", partition) and (not rule.name or re.fullmatch(rule.name, name)):
            return rule.signal
    return rules.default


def _hears(aim: Aim) -> bool:
    return aim.signal in SIGNALS and aim.signal in aim.receiver.catches


# --- which way


def _mark_in_force(slurm: SlurmJob, now: float, unused: str) -> Mark | None:
    mark = standing_mark(slurm.admin_comment, slurm.started, now)
    return None if mark is None or mark.node == unused else mark


def _watched(mark: Mark, chosen: tuple[Aim, ...], *, trees: bool) -> Delivery | None:
    """Return the delivery under another node's valid mark: processes here that its signal reaches count as signalled.
    Later processes do not.
    """
    in_reach = (aim for aim in chosen if _in_reach(aim.receiver, trees=trees))
    reached = tuple(aim for aim in in_reach if signalled_from(mark.node, aim.receiver))[:SIGNALLED_MOST]
    if not reached:
        return None
    signals = " ".join(sorted({aim.signal for aim in reached if aim.signal in SIGNALS}))
    text = f"{mark.node} signals the whole job, {_ranks(len(reached))} of it here"
    return Delivery(way=Way.WATCH, signal=signals, receivers=reached, text=text)


def _through_slurm(job: LocalJob, slurm: SlurmJob, aims: tuple[Aim, ...], *, trees: bool) -> Delivery | None:
    first = aims[0]
    if reached := _reached_by_all(job, slurm, aims, trees=trees):
        whole = "this part of the job" if slurm.part else "the whole job"
        text = f"SIG{first.signal} through Slurm to {whole}, {_ranks(len(reached))} of it here"
        text += "; its other parts are not signalled by this node" if slurm.part else ""
        return Delivery(way=Way.JOB_WIDE, signal=first.signal, receivers=reached, text=text)
    if slurm.batch and len(aims) == 1 and first.receiver.step == "batch" and first.receiver.leader:
        text = f"SIG{first.signal} through Slurm to the batch script, which is the rank itself"
        return Delivery(way=Way.BATCH, signal=first.signal, receivers=aims, text=text)
    return None


def _reached_by_all(job: LocalJob, slurm: SlurmJob, aims: tuple[Aim, ...], *, trees: bool) -> tuple[Aim, ...]:
    """Return the ranks here that one signal to all steps with a leader here reaches; none if it would kill or miss a
    process.

    Leaders of the same steps on other nodes are assumed to be like those here.
    """
    if not markable(slurm.admin_comment) or len({aim.signal for aim in aims}) > 1:
        return ()
    hearing = {aim.process for aim in aims}
    leaders = [process for process in job.processes if process.leader and _numbered(process.step)]
    reached = [process for process in job.processes if _in_reach(process, trees=trees)]
    if not leaders or any((process.pid, process.started) not in hearing for process in leaders):
        return ()
    if any(aims[0].signal not in process.catches for process in reached):
        return ()
    steps = {leader.step for leader in leaders}
    return tuple(aim for aim in aims if aim.receiver.step in steps and _in_reach(aim.receiver, trees=trees))


def signalled_from(node: str, process: Receiver) -> bool:
    """Return True if the step of `process` also runs on `node`, which signals the steps that it runs. Not known counts
    as True, so that no process is signalled twice.
    """
    return not process.step_nodes or in_hostlist(node, process.step_nodes)


def _in_reach(process: Receiver, *, trees: bool) -> bool:
    """Return True if a signal to all steps of a job reaches `process`. The batch script gets none. An interactive step
    counts as reached, although that is not known.
    """
    return process.step not in ("", "batch", "extern") and (trees or process.leader)


def _numbered(step: str) -> bool:
    return step.isascii() and step.isdigit()


# --- texts for people


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _why_nobody(job: LocalJob, chosen: tuple[Aim, ...], signalled: Iterable[Process]) -> str:
    before = frozenset(signalled)
    left = [aim for aim in chosen if aim.process not in before]
    if chosen and not left:
        return "all of its ranks here were signalled before"
    if len(before) >= SIGNALLED_MOST:
        return f"{len(before)} of its processes were signalled, the most that are tracked"
    deaf = sorted({aim.signal for aim in left if aim.signal in SIGNALS})
    if deaf:
        return f"no rank of it here catches SIG{' or SIG'.join(deaf)}, which would kill it"
    if left:
        return "it asks for no signal"
    if any(process.role is Role.RANK for process in job.processes):
        return "its ranks here cannot be read, do not respond, or run as another user than the job"
    return "no rank of it is found here" if job.processes else "it has no process here"
