"""Why a job ended: one answer, by one table of rules, from what touched the job and how it ended. A pure function.

The rules are tried in order, and the first that holds is the answer. A touch counts only if it can have ended the job:
not if it follows from another one, concerns another job's process, came after the end, or so long before that the job
outlived it. Certain and likely ones count before possible ones, and of each the first in time. Touches within
`TOGETHER` are one fault, whose cause is the highest rule. Hardware is blamed only if a touch during the job names one
of its GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import field, replace

from gpuwarden.features.why.follows import code_of
from gpuwarden.features.why.model import Answer, Cause, Certainty, End, Epoch, JobKind, Touch
from gpuwarden.features.why.sentences import Board, sentence, values_of
from gpuwarden.features.why.signs import Sign, in_time, signs_of
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.jobs_facts import PROLOG_FAILED

ENDED_WELL = frozenset({"", "COMPLETED", "COMPLETING"})
SCHEDULED = frozenset({"TIMEOUT", "DEADLINE", "CANCELLED", "REQUEUED", "REQUEUE_HOLD"})
"""Ends from outside, for which a hung job waits: the cause is what made it hang."""
TOGETHER = 60.0
"""Seconds within which touches of a job are one fault."""
WHOLE = 1.0
"""Seconds by which an end may be later than recorded: the epilog rounds down to whole seconds."""
_SENT = ("sent", "watched", "unknown")
"""Results of a signal that may have reached a job."""
_SHELL = 128
"""Added to the number of a signal in the exit code of a shell, and of a container."""
_OWN_SIGNALS = frozenset({4, 5, 6, 7, 8, 11, 24, 25, 31})
"""SIGILL, TRAP, ABRT, BUS, FPE, SEGV, XCPU, XFSZ, SYS: a program causes them itself."""
_AFTER_OTHERS = frozenset({1, 6, 9, 15})
"""SIGABRT: NCCL's watchdog ends a rank that waited for another (PyTorch, ProcessGroupNCCL.cpp). KILL, TERM: srun and other launchers end all
ranks once one has failed (srun(1), `--kill-on-bad-exit`; exit code 143 on 22.05). HUP: Slurm's 0:1 on all nodes of a job that lost one (25.11).
"""
_NO_OUTPUT = 53
"""In place of a signal, Slurm's error for a file of a job that cannot be opened (slurm_errno.h, ESLURMD_IO_ERROR: 4021, cut to 7 bits)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The input of the rules: a job, its end and the signs."""

    epoch: Epoch
    end: End
    signs: tuple[Sign, ...]
    """Touches that can have ended it, in order of time."""

    @property
    def signal(self) -> int | None:
        """Return the signal that ended it, as reported or from the exit code."""
        code = self.end.exit_code or 0
        return self.end.signal or (code - _SHELL if _SHELL < code < _SHELL + 65 else None)

    @property
    def well(self) -> bool:
        """Return True if it ended well. A script that continues after a failed step also ends with 0: not well if a
        fault explains the step.
        """
        succeeded = self.end.exit_code == 0 or self.end.state == "COMPLETED"
        if not succeeded or self.signal or self.end.exit_code or self.end.state not in ENDED_WELL:
            return False
        return not self.end.step_failed or self.first_fault(_is_sure) is None

    def last(self, *kinds: str) -> Touch | None:
        """Return the newest touch of one of these kinds before its end."""
        touches = [touch for touch in self.epoch.touches if touch.what in kinds and _before_end(touch, self.end)]
        return touches[-1] if touches else None

    @property
    def notice(self) -> Touch | None:
        """Return the newest notice before its end, unless it was called off and the job outlived that."""
        notice = self.last("notice")
        return notice if notice is not None and in_time(notice, self.end, self.epoch) else None

    @property
    def signal_for_gpu(self) -> Touch | None:
        """Return the newest signal before its end that was due to a failing GPU, unless the job outlived it."""
        is_requeued = self.last("requeued") is not None
        signals = [
            touch
            for touch in self.epoch.touches
            if touch.what == "signalled" and touch.slot and (touch.detail in _SENT or is_requeued)
            if in_time(touch, self.end, self.epoch) and _before_end(touch, self.end)
        ]
        return signals[-1] if signals else None

    def first_fault(self, among: Callable[[Sign], bool] = lambda _: True) -> Sign | None:
        """Return the first fault among certain and likely signs, else among possible ones."""
        for possible in (False, True):
            signs = [s for s in self.signs if (s.certainty is Certainty.POSSIBLE) is possible and among(s)]
            if signs:
                first = min(sign.touch.at.boottime for sign in signs)
                together = [sign for sign in signs if sign.touch.at.boottime <= first + TOGETHER]
                return min(together, key=lambda sign: (sign.order, sign.touch.at.boottime))
        return None


def _before_end(touch: Touch, end: End) -> bool:
    return end.known_from == "boot" or touch.at.boottime < end.at.boottime + WHOLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of a rule. An attribute that is None is as in the rule."""

    touch: Touch | None = None
    cause: Cause | None = None
    certainty: Certainty | None = None
    template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A row of the table."""

    name: str
    asks: Callable[[Case], Found | None]
    cause: Cause
    certainty: Certainty
    template: str
    """The sentence; names in braces are those of `sentences.py`."""
    source: str
    """Where the rule comes from."""


HERE = Found()


def _signalled_before_end(case: Case) -> Found | None:
    signal, notice = case.last("signalled", "requeued"), case.notice
    if signal is None or (signal.what == "signalled" and signal.detail not in _SENT):
        return None
    if notice is None and (case.first_fault(_of_hardware) is not None or case.signal_for_gpu is not None):
        return None  # signalled because its GPU fails
    if notice is None and not in_time(signal, case.end, case.epoch):
        return None  # the job outlived it
    saved = case.last("saved")
    kept = saved is not None and saved.detail == "saved"
    return Found(touch=notice or signal, template=_SAVED if kept else None)


_SAVED = "This machine was announced to end{notice}; the job was signalled, and acknowledged that it saved its work"


def _of_hardware(sign: Sign) -> bool:
    return sign.cause is Cause.HARDWARE


def _hangs(sign: Sign) -> bool:
    return sign.cause is not Cause.JOB and _is_sure(sign)


def _is_sure(sign: Sign) -> bool:
    return sign.certainty is not Certainty.POSSIBLE


def _scheduled_fault(case: Case) -> Found | None:
    return _of_sign(case.first_fault(_hangs)) if case.end.state in SCHEDULED and not case.end.by_itself else None


def _signalled_for_gpu(case: Case) -> Found | None:
    """Blame the GPU that fails, unless a sure fault ended the job: the finding of that GPU itself ends none."""
    signal = case.signal_for_gpu
    if signal is None or case.notice is not None:
        return None
    if case.end.state not in SCHEDULED and (fault := case.first_fault(_is_sure)) is not None:
        return _of_sign(fault)
    findings = [
        touch
        for touch in case.epoch.touches
        if touch.what == "finding" and touch.slot == signal.slot and _before_end(touch, case.end)
    ]
    return Found(touch=findings[-1], template=_FINDING) if findings else Found(touch=signal)


_FINDING = "{gpu} failed: {meaning}; because of that the job was signalled to save its work, or requeued; run it again on other GPUs"


def _fault(case: Case) -> Found | None:
    fault = _of_sign(case.first_fault())
    if fault is None or fault.certainty is not Certainty.POSSIBLE or not case.end.may_be_well:
        return fault
    return replace(fault, template=f"Unless it ended well, which is unknown on this node: {fault.template}")


def _of_sign(sign: Sign | None) -> Found | None:
    if sign is None:
        return None
    return Found(touch=sign.touch, cause=sign.cause, certainty=sign.certainty, template=sign.template)


def _state(*states: str) -> Callable[[Case], Found | None]:
    return lambda case: HERE if case.end.state in states and not case.end.by_itself else None


def _cancelled(case: Case) -> Found | None:
    if case.end.state != "CANCELLED":
        return None
    by, epoch = case.end.by, case.epoch
    owner = by != "" and by in (epoch.user, str(epoch.uid))
    hung = any(code_of(touch) in ("job_hung", "job_stalled") for touch in epoch.touches)
    who = "its owner" if owner else by
    after = ", after its ranks had waited for each other" if hung else ""
    return Found(
        template=f"It was cancelled{' by ' if who else ''}{{by}}{after}"
        if not owner
        else f"It was cancelled by its owner{after}"
    )


def _out_of_memory(case: Case) -> Found | None:
    """Return the kill. Slurm's state also covers kills on a full node, which only the kernel's line distinguishes."""
    if case.end.state != "OUT_OF_MEMORY":
        return None
    touch = case.last("oom_limit")
    by_others = next((sign for sign in case.signs if sign.touch.what in ("oom_node", "oom_shared")), None)
    return Found(touch=touch) if touch is not None or by_others is None else _of_sign(by_others)


def _announced(case: Case) -> Found | None:
    notice = case.last("notice")
    if notice is None and case.end.known_from == "boot":
        notice = case.last("announced")
    return None if notice is None or notice.until is not None else Found(touch=notice)


def _node_failed(case: Case) -> Found | None:
    if case.end.state not in ("NODE_FAIL", "BOOT_FAIL"):
        return None
    if case.end.nodes == 1 or case.end.failed_here:
        return Found(
            cause=Cause.HOST, template="The scheduler lost this node while it ran; run it again on another node"
        )
    named = "The scheduler lost the node {failed_node} of the job; run it again" if case.end.failed_node else None
    return Found(template=named)


def _booted(case: Case) -> Found | None:
    return HERE if case.end.known_from == "boot" else None


def _signalled(case: Case) -> Found | None:
    if case.signal is None:
        return None
    if case.end.has_others and case.signal in _AFTER_OTHERS:
        return Found(
            cause=Cause.NOT_SEEN,
            certainty=Certainty.POSSIBLE,
            template="It was ended by {signal}, as ranks are when another rank fails, possibly on another node;"
            " read its own output, and ask the other nodes",
        )
    own = case.signal in _OWN_SIGNALS
    return Found(
        cause=Cause.JOB if own else Cause.NOT_SEEN,
        certainty=Certainty.LIKELY if own else Certainty.POSSIBLE,
        template=None if own else "It was ended by {signal}; this node did not see who sent it",
    )


def _not_started(error: int) -> Callable[[Case], Found | None]:
    return lambda case: HERE if case.end.signal == error and case.epoch.kind == JobKind.SLURM else None


def _exited(case: Case) -> Found | None:
    if not case.end.exit_code or not case.end.has_others:
        return HERE if case.end.exit_code else None
    return Found(
        certainty=Certainty.POSSIBLE,
        template="It ended with exit code {exit_code}{again}, and nothing that this node saw explains it;"
        " read its own output, and ask the other nodes",
    )


C = Certainty
RULES: tuple[Rule, ...] = (
    Rule(
        name="notice", asks=_signalled_before_end, cause=Cause.NOTICE, certainty=C.CERTAIN,
        template="This machine was announced to end{notice}; the job was signalled, and did not acknowledge that it saved its work",
        source="the events of the evacuation itself, which name the job; docs/use/termination.md",
    ),
    Rule(
        name="ended_well", asks=lambda case: HERE if case.well else None, cause=Cause.NONE, certainty=C.CERTAIN, template="It ended well",
        source="exit code 0; Slurm, job state COMPLETED",
    ),
    Rule(
        name="preempted", asks=_state("PREEMPTED"), cause=Cause.SCHEDULER, certainty=C.CERTAIN,
        template="The scheduler preempted it for another job; let it save and be requeued", source="Slurm, job state PREEMPTED",
    ),
    Rule(
        name="memory_limit", asks=_out_of_memory, cause=Cause.JOB, certainty=C.CERTAIN,
        template="It used more memory of the host than it may, and the kernel killed{process}; ask for more, or use less",
        source="Slurm, job state OUT_OF_MEMORY: the kernel killed a process at the limit of its control group",
    ),
    Rule(
        name="prolog_failed", asks=_not_started(PROLOG_FAILED), cause=Cause.SCHEDULER, certainty=C.CERTAIN,
        template="It was not started: the prolog failed on one of its nodes{then}; gpuwarden's refuses a node or GPU that has failed",
        source="gpuwarden's own note that it refused the job; exit code 0:54 after any prolog that failed: 24.11 and 25.11, not 22.05",
    ),
    Rule(
        name="hung_by_fault", asks=_scheduled_fault, cause=Cause.HARDWARE, certainty=C.LIKELY, template="",
        source="stories C01 and NVIDIA/nccl#968: the ranks that are left wait until somebody, or the time limit, ends the job",
    ),
    Rule(
        name="time_limit", asks=_state("TIMEOUT", "DEADLINE"), cause=Cause.SCHEDULER, certainty=C.CERTAIN,
        template="It reached its time limit; ask for more time, or save and continue in another job", source="Slurm, job states TIMEOUT and DEADLINE",
    ),
    Rule(
        name="cancelled", asks=_cancelled, cause=Cause.SCHEDULER, certainty=C.CERTAIN, template="It was cancelled",
        source="Slurm, job state CANCELLED, with the user who did it",
    ),
    Rule(
        name="failing_gpu", asks=_signalled_for_gpu, cause=Cause.HARDWARE, certainty=C.LIKELY,
        template="{gpu} failed, and because of that the job was signalled to save its work, or requeued; run it again on other GPUs",
        source="the events of the evacuation itself, which name the job and the GPU; docs/use/termination.md, A failing GPU",
    ),
    Rule(
        name="requeued", asks=_state("REQUEUED"), cause=Cause.SCHEDULER, certainty=C.LIKELY,
        template="It was put back into the queue and runs again: by a person, for another job, or because one of its nodes was lost or could not start it",
        source="Slurm, a job that is pending or running again (collectors: slurm/jobs_end.py); after NODE_FAIL it says no more, seen on 22.05",
    ),
    Rule(
        name="requeued_and_held", asks=_state("REQUEUE_HOLD"), cause=Cause.SCHEDULER, certainty=C.CERTAIN,
        template="It was put back into the queue and is held there; it runs again once it is released (scontrol release)",
        source="Slurm, a pending job of priority 0 (collectors: slurm/jobs_end.py)",
    ),
    Rule(name="fault", asks=_fault, cause=Cause.HARDWARE, certainty=C.LIKELY, template="", source="`signs.py`, whose table has a source for each"),
    Rule(
        name="announced", asks=_announced, cause=Cause.NOTICE, certainty=C.LIKELY,
        template="This machine was announced to end{notice} while it ran; run it again, from its last checkpoint", source="docs/use/termination.md",
    ),
    Rule(
        name="booted", asks=_booted, cause=Cause.HOST, certainty=C.CERTAIN,
        template="The node was rebooted, or lost power, while it ran; run it again, from its last checkpoint",
        source="another boot id: no process outlives a boot",
    ),
    Rule(
        name="node_failed", asks=_node_failed, cause=Cause.OTHER_NODE, certainty=C.LIKELY,
        template="The scheduler lost a node of the job, and on this one nothing failed; ask the other nodes", source="Slurm, job state NODE_FAIL",
    ),
    Rule(
        name="not_started", asks=_not_started(_NO_OUTPUT), cause=Cause.JOB, certainty=C.LIKELY,
        template="Slurm could not open its output or input file, and did not start it; look whether the folders of --output and --error are there, "
        "and its user may write to them", source="exit code 0:53 of a job with --output in a folder that is missing, or not its user's; 22.05, 25.11",
    ),
    Rule(
        name="signal", asks=_signalled, cause=Cause.JOB, certainty=C.LIKELY, template="It was ended by {signal}, caused by a fault of the program itself",
        source="signal(7); exit codes above 128: POSIX shell, 2.8.2",
    ),
    Rule(
        name="exit_code", asks=_exited, cause=Cause.JOB, certainty=C.LIKELY,
        template="It ended with exit code {exit_code}{again}, and nothing that this node saw explains it; read its own output", source="its exit code",
    ),
    Rule(
        name="not_seen", asks=lambda _: HERE, cause=Cause.NOT_SEEN, certainty=C.POSSIBLE,
        template="Nothing that this node saw ended it; read its own output", source="none",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """Input of the rules about other jobs and GPUs."""

    boards: Mapping[str, Board] = field(default_factory=dict)
    """The GPUs, by slot."""
    pids: Collection[int] = frozenset()
    """Processes of other jobs."""
    denied: Collection[str] = frozenset()
    """Ids of findings that other readings contradict."""


ALONE = Around()


def answer(epoch: Epoch, end: End, around: Around = ALONE) -> Answer:
    """Return the answer of the first rule that holds. `around`: what other jobs and GPUs contribute."""
    case = Case(epoch=epoch, end=end, signs=signs_of(epoch, end, around.pids, around.denied))
    rule, match = next((rule, match) for rule in RULES if (match := rule.asks(case)) is not None)
    touch = match.touch
    cause = match.cause or rule.cause
    blamed = touch is not None and touch.slot != "" and cause in (Cause.HARDWARE, Cause.FABRIC)
    board = around.boards.get(touch.slot) if blamed and touch is not None else None
    return Answer(
        cause=cause,
        certainty=match.certainty or rule.certainty,
        sentence=sentence(match.template or rule.template, values_of(end, touch, around.boards, case.signal)),
        code=_code(touch, end),
        slot=touch.slot if blamed and touch is not None else "",
        serial="" if board is None else board.serial,
    )


def _code(touch: Touch | None, end: End) -> str:
    if touch is not None:
        return (code_of(touch) or touch.what)[:200]
    return end.state if end.state not in ENDED_WELL else ""
