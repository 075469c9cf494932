"""Jobs on a machine that is about to go, and a story of how it goes: policy decides each step, the story carries it out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from gpuwarden.features.evacuation.policy import events
from gpuwarden.features.evacuation.policy.delivery import Process, Way, mark
from gpuwarden.features.evacuation.policy.model import BY_STEP, Evacuation, EvacuationState, JobState, Sent
from gpuwarden.features.evacuation.policy.plan import EvacuationSettings, Seen, plan
from gpuwarden.features.evacuation.policy.state import fold
from gpuwarden.features.evacuation.policy.steps import (
    Approve,
    CheckSteps,
    NameNot,
    Plan,
    Requeue,
    SetFinalState,
    SignalJob,
    Step,
)
from gpuwarden.features.evacuation.policy.unsettled import job_number, settle
from gpuwarden.health.model import Event, EventKind, Json
from gpuwarden.policy.model import Notice, Result
from gpuwarden.policy.notices import id_of
from gpuwarden_collectors.cloud.facts import Approval
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.receivers.facts import Kind, LocalJob, Receiver, Role
from gpuwarden_collectors.slurm.departing_facts import CommandOutcome, SlurmJob

BOOT = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
BOOTED = 1_700_000_000.0
NODE = "n1"
UID = 1_000
CATCHES = frozenset({"TERM", "USR1"})
Dies = Literal["", "before marking", "behind the mark", "before sending", "after sending"]
"""Where a daemon is killed while it signals a job; one that is not signalled as a whole has no mark, and no kill before that."""
SETTINGS = EvacuationSettings(slurm=True, final_node_state="down", approve=True)


def stamp(boottime: float) -> Stamp:
    return Stamp(boottime, BOOTED + boottime)


def process(pid: int, role: Role = Role.RANK, **more: object) -> Receiver:
    """A rank that leads a task of step 0 and catches TERM and USR1, unless given otherwise."""
    leads = role is Role.RANK
    fields: dict[str, object] = {
        "started": pid * 10, "uid": UID, "name": "python", "role": role, "step": "0", "leader": leads,
        "catches": CATCHES if leads else frozenset(),
    }  # fmt: skip
    return Receiver(pid=pid, **(fields | more))  # type: ignore[arg-type]


def slurm_job(number: int, **more: object) -> SlurmJob:
    fields: dict[str, object] = {
        "uid": UID, "state": "running", "nodes": "n[1-2]", "node_count": 2, "partition": "gpu", "batch": True,
        "requeue": True, "started": BOOTED, "admin_comment": "", "name": "train",
    }  # fmt: skip
    return SlurmJob(id=number, **(fields | more))  # type: ignore[arg-type]


def local(number: int | str, *processes: Receiver, kind: Kind = Kind.SLURM, **more: object) -> LocalJob:
    fields: dict[str, object] = {"uid": UID, "name": "train"}
    return LocalJob(kind=kind, id=str(number), processes=processes, **(fields | more))  # type: ignore[arg-type]


def announced(
    within: float | None = 120.0, *, source: str = "aws", kind: str = "interruption", at: float = 1_000.0,
    approval: Approval = Approval.NONE,
) -> Notice:  # fmt: skip
    deadline = None if within is None else stamp(at + within)
    return Notice(
        source=source, kind=kind, at=stamp(at), boot_id=BOOT, deadline=deadline, id=f"{source}-1", approval=approval
    )


@dataclass
class Story:
    """`sent`: each (notice, process) for which anybody sent a signal, in order. `wide`: what the mark and scancel come to.

    `unanswered`: as in Seen. `under_way`: jobs for which this daemon is sending something. `fresh`: the controller was asked for this scan. `stepless`: jobs of which Slurm runs no step any more.
    """

    settings: EvacuationSettings = SETTINGS
    now: Stamp = field(default_factory=lambda: stamp(1_000.0))
    jobs: dict[str, LocalJob] = field(default_factory=dict)
    slurm: dict[int, SlurmJob] = field(default_factory=dict)
    controller: bool = True
    unanswered: float | None = None
    fresh: bool = True
    stepless: set[int] = field(default_factory=set)
    under_way: set[str] = field(default_factory=set)
    records: dict[str, CommandOutcome] = field(default_factory=dict)
    """By job: of the command that signalled it, where a daemon was killed."""
    unschedulable: bool = False
    concerned: frozenset[str] | None = None
    notices: dict[str, Notice] = field(default_factory=dict)
    wide: Sent = Sent.SENT
    requeue_works: bool = True
    ledger: list[Event] = field(default_factory=list)
    state: EvacuationState = field(default_factory=EvacuationState)
    sent: list[tuple[str, Process, str]] = field(default_factory=list)
    requeues: list[tuple[int, float]] = field(default_factory=list)
    final_node_state: list[str] = field(default_factory=list)
    approval: Result = Result.DONE
    approvals: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.took([Event(kind=EventKind.BOOT, at=self.now, boot_id=BOOT)])

    # --- the world

    def runs(self, number: int, *processes: Receiver, **more: object) -> Story:
        """A job that has this node only, unless given otherwise."""
        self.jobs[f"slurm/{number}"] = local(number, *processes)
        self.slurm[number] = slurm_job(number, **{"nodes": "n1", "node_count": 1, **more})
        return self

    def spreads(self, number: int, *processes: Receiver, **more: object) -> Story:
        """A job on two nodes, with these processes on this one."""
        return self.runs(number, *processes, **{"nodes": "n[1-2]", "node_count": 2, **more})

    def hosts(self, job: LocalJob) -> Story:
        self.jobs[f"{job.kind}/{job.id}"] = job
        return self

    def announces(self, *notices: Notice) -> Story:
        self.notices = {id_of(notice): notice for notice in notices}
        self.took(events.follow(self.state, notices, boot_id=BOOT, now=self.now))
        return self

    def waits(self, seconds: float) -> Story:
        self.now, self.fresh = stamp(self.now.boottime + seconds), True
        return self

    def ends(self, pid: int) -> Story:
        self.jobs = {
            key: replace(job, processes=tuple(p for p in job.processes if p.pid != pid))
            for key, job in self.jobs.items()
        }  # fmt: skip
        self.jobs = {key: job for key, job in self.jobs.items() if job.processes}
        return self

    def acknowledges(self, number: int, rank: int, *, pid: int | None = None, all_ranks: bool = False) -> Story:
        """A rank acknowledges, by the socket if its PID is given."""
        process = None if pid is None else (pid, 10 * pid)
        event = events.saved(
            f"slurm/{number}",
            "socket",
            saved=True,
            rank=rank,
            process=process,
            step=7,
            all_ranks=all_ranks,
            boot_id=BOOT,
            now=self.now,
        )
        self.took([event])
        return self

    # --- the daemon

    def took(self, events: Iterable[Event]) -> None:
        for event in events:
            self.ledger.append(event)
            self.state = fold(self.state, event)

    def restarts(self) -> Story:
        """All that it knows is what is in the ledger."""
        self.state = EvacuationState()
        for event in self.ledger:
            self.state = fold(self.state, event)
        return self

    def sums_up(self) -> Story:
        boot = Event(kind=EventKind.BOOT, at=self.now, boot_id=BOOT)
        self.ledger = [boot, *events.checkpoint(self.state)]
        return self.restarts()

    @property
    def notice(self) -> Notice | None:
        """The one that ends the machine first."""
        return min(self.notices.values(), key=lambda n: n.deadline.boottime if n.deadline else 0.0, default=None)

    @property
    def seen(self) -> Seen:
        return Seen(
            jobs=tuple(self.jobs.values()), concerned=self.concerned, slurm=dict(self.slurm),
            controller=self.controller, unanswered=self.unanswered, unschedulable=self.unschedulable, closed=self.unschedulable,
            fresh=self.controller and self.fresh, node=NODE,
        )  # fmt: skip

    @property
    def plan(self) -> Plan:
        return (
            Plan((), 0.0) if self.notice is None else plan(self.state, self.notice, self.seen, self.settings, self.now)
        )

    def steps(self) -> tuple[Step, ...]:
        return self.plan.steps

    def acts(self, most: int = 1_000, *, dies: Dies = "") -> Story:
        """Carry out what is due until nothing is, or `most` steps; the last of them may be cut short."""
        for number in range(most):
            self.settles()
            steps = [step for step in self.steps() if not isinstance(step, SignalJob) or step.key not in self.under_way]
            if not steps:
                return self
            self.carries_out(steps[0], dies if number == most - 1 else "")
        assert most < 1_000, f"there is no end to what is due: {self.steps()}"
        return self

    def settles(self) -> Story:
        """Record the outcome of signals during which an earlier daemon was killed."""

        def slurm_of(key: str) -> SlurmJob | None:
            number = job_number(key)
            return self.seen.slurm.get(number) if self.controller and number is not None else None

        def record_of(_notice: str, key: str) -> CommandOutcome:
            return self.records.get(key, CommandOutcome.UNKNOWN)

        self.took(
            settle(self.state, slurm_of, record_of, NODE, self.under_way.__contains__, boot_id=BOOT, now=self.now)
        )
        return self

    def carries_out(self, step: Step, dies: Dies = "") -> None:
        notice = id_of(self.notice) if self.notice else ""
        unheard, unsaid = dies in ("before marking", "behind the mark", "before sending"), dies == "after sending"
        match step:
            case SignalJob():
                self._signals(notice, step, dies)
            case Requeue(key, slurm):
                self._requeues(key, slurm, unheard=unheard, unsaid=unsaid)
            case NameNot(key, text, permanent):
                self.took([
                    events.not_requeued(key, text, permanent=permanent, named=True, boot_id=BOOT, now=self.now)
                ])  # fmt: skip
            case CheckSteps(key, slurm):
                self.fresh = False
                if slurm.id in self.stepless:
                    self.took([events.saved(key, BY_STEP, saved=False, all_ranks=True, boot_id=BOOT, now=self.now)])
            case SetFinalState(final_state):
                self.final_node_state.append(final_state)
                self.took([events.final_node_state(notice, final_state, Result.DONE, "", boot_id=BOOT, now=self.now)])
            case Approve(name):
                self._approves(notice, name, unheard=unheard, unsaid=unsaid)

    def _signals(self, notice: str, step: SignalJob, dies: Dies) -> None:
        """Send signals in the daemon's order. A daemon killed before its mark leaves no signal on this host either."""
        way = step.delivery.way
        result = self.wide if way in (Way.JOB_WIDE, Way.BATCH) else Sent.SENT
        if way is Way.JOB_WIDE and not self._marks(notice, step, dies):
            return
        if dies in ("before marking", "behind the mark") and way not in (Way.NONE, Way.WATCH):
            return
        if way is not Way.JOB_WIDE or result is not Sent.UNSENT:
            self.took(
                events.signalling(
                    notice, step.key, step.delivery, step.slurm, remaining=step.remaining, again=step.again, boot_id=BOOT, now=self.now
                )
            )  # fmt: skip
        if dies == "before sending" or way in (Way.NONE, Way.WATCH):
            return
        if result is Sent.SENT:
            self.sent += [(notice, aim.process, aim.signal) for aim in step.delivery.receivers]
        if dies != "after sending":
            self.took([
                events.signalled(
                    notice, step.key, way, result, count=len(step.delivery.receivers), again=step.again, boot_id=BOOT, now=self.now
                )
            ])  # fmt: skip

    def _marks(self, notice: str, step: SignalJob, dies: Dies) -> bool:
        """False if it dies over it."""
        assert step.slurm is not None
        self.took(
            events.marking(
                notice, step.key, step.delivery, step.slurm, remaining=step.remaining, boot_id=BOOT, now=self.now
            )
        )
        if dies == "before marking":
            return False
        node = {Sent.UNSENT: "", Sent.WATCHED: "n2"}.get(self.wide, NODE)
        comment = mark(node, self.now.wall) if node else ""
        self.slurm[step.slurm.id] = replace(self.slurm[step.slurm.id], admin_comment=comment)
        return dies != "behind the mark"

    def _requeues(self, key: str, slurm: SlurmJob, *, unheard: bool, unsaid: bool) -> None:
        """Slurm's own memory makes the second try of one that was cut short a harmless one."""
        if unheard:
            return
        if not self.requeue_works:
            self.took([events.not_requeued(key, "away", permanent=False, boot_id=BOOT, now=self.now)])
            return
        if slurm.id in self.slurm:
            self.requeues.append((slurm.id, self.now.boottime))
        if not unsaid:
            del self.slurm[slurm.id]
            self.jobs.pop(key, None)
            self.took([events.requeued(key, slurm.restarts, boot_id=BOOT, now=self.now)])

    def _approves(self, notice: str, name: str, *, unheard: bool, unsaid: bool) -> None:
        self.took([events.approving(notice, boot_id=BOOT, now=self.now)])
        if unheard:
            return
        self.approvals.append((name, self.now.boottime))
        if not unsaid:
            self.took([events.approved(notice, self.approval, "so", boot_id=BOOT, now=self.now)])

    # --- what is remembered

    @property
    def evacuation(self) -> Evacuation:
        assert self.notice is not None
        return self.state.evacuations[id_of(self.notice)]

    def known(self, number: int) -> JobState:
        return self.evacuation.jobs[f"slurm/{number}"]

    @property
    def signals(self) -> list[tuple[int, str]]:
        return [(pid, signal) for _, (pid, _), signal in self.sent]

    def texts(self, kind: EventKind) -> list[Mapping[str, Json]]:
        return [event.data for event in self.ledger if event.kind == kind]
