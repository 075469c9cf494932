"""Reads how a job ended from the controller. Only the first node of a job, which ran the batch script, queries it.

That is one query per job of any size, some seconds after its end (spread by the job's number), and at most `MOST` an
hour. If there are more jobs, those that ran longest come first.

Measured with 22.05 and 24.11: the answer has the state, exit code and signal of the batch script, those of the worst
step, and from 24.11 on the failed node. Only accounting shows who cancelled a job (`jobs_accounting.py`). For a job
whose node manages its steps (StepMgrEnabled, from 24.05 on) the controller always reports 0:0 for the worst step, which
counts as unknown. The exit code in the epilog's environment is correct unless it is 0, because a cancelled job has 0,
too. A user's text, such as the job's name, may contain lines of the same form: an answer with a repeated key is
rejected.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.jobs_accounting import Accounting
from gpuwarden_collectors.slurm.jobs_facts import PROLOG_FAILED, Job
from gpuwarden_collectors.slurm.jobs_owners import Ask
from gpuwarden_collectors.slurm.jobs_text import ENDING, numbers

MOST, SPAN = 30, 3600.0
AT_ONCE = 2
"""Most queries in one pass: a slow controller must not use up the pass's time."""
AFTER, SPREAD = 5.0, 30
"""Seconds from a job's end to the query: the minimum, and the range of the addition by job number."""
AGAIN_AFTER = 30.0
"""Seconds until the second and last query, if the first failed or the job was still completing."""
UNTIL = 240.0
"""Last query, in seconds after a job's end: with the default MinJobAge the controller drops it after 300 s."""
AGAIN, HELD, COMPLETED, CANCELLED = "REQUEUED", "REQUEUE_HOLD", "COMPLETED", "CANCELLED"
_IN_GRACE = (COMPLETED, "FAILED")
"""States of a preempted job in 22.05, with the time of the preemption, if all its steps ended within the GraceTime."""
_BY_ITSELF = ("FAILED", "OUT_OF_MEMORY")
"""States with the script's own exit code. A job ended by the controller has 0, or the code of a trap in the script."""
_WAITS = ("PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
_RUNS_AGAIN = (
    *_WAITS,
    "CONFIGURING",
    "RUNNING",
    "SUSPENDED",
    "REQUEUED",
    "REQUEUE_FED",
    "EXPEDITING",  # from 25.11 on
)
_HOLDS = "0"
"""Priority of a held job: by `scontrol requeuehold`, by RequeueExitHold, or because its launch failed."""
_SIGNAL_MOST = 64
OUT_OF_MEMORY = 125
"""Slurm's value in place of a signal for an OOM kill (253, SIG_OOM, in the form of wait(2))."""
_RECORD = re.compile(r"^JobId=(?=\d)", re.MULTILINE)
_KEY = re.compile(
    r"^ +(?:UserId=[^()\n]{0,256}\((?P<uid>\d{1,10})\)"
    r"|JobState=(?P<state>[A-Z_]{1,32}) (?:.* FailedNode=(?P<failed>[\w.-]{1,64}) )?"
    r"|Priority=(?P<priority>\d{1,10}) Nice="
    r"|StartTime=(?P<start>\d{1,12}) EndTime="
    r"|PreemptEligibleTime=\w{1,32} PreemptTime=(?P<preempted>\d{1,12})$"
    r"|NumNodes=(?P<nodes>\d{1,6})\b"
    r"|HetJobIdSet=(?P<parts>[\d,-]{1,256})$"
    r"|DerivedExitCode=(?P<step>\d{1,3}:\d{1,3})"
    r"|StepMgrEnabled=(?P<managed>Yes)"
    r"|.*\bReboot=\d+ ExitCode=(?P<code>\d{1,3}:\d{1,3}))",
    re.MULTILINE | re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The controller's answer, with the field names of `Job`."""

    state: str
    exit_code: int | None = None
    signal: int | None = None
    step_exit_code: int | None = None
    step_signal: int | None = None
    failed_node: str = ""
    nodes: int | None = None
    cancelled_by: int | None = None


def end_of(text: str, number: int, uid: int | None, ended: float = math.inf) -> End | None:
    """Parses `scontrol show job -d NUMBER`. None if the job is completing, another job, or the answer is rejected.

    `uid`: the user of the job; a job of another user is a later one with the same number. `ended`: when it ended here,
    in Unix time; a job that started later is its next run, which may have ended, too.
    """
    fields = _fields(text, number)
    if fields is None or "state" not in fields or (uid is not None and fields.get("uid") != str(uid)):
        return None
    state, nodes = fields["state"], _nodes(fields)
    if state in _RUNS_AGAIN or int(fields.get("start", 0)) > ended:
        is_held = state in _WAITS and fields.get("priority") == _HOLDS
        return End(state=HELD if is_held else AGAIN, nodes=nodes)
    if state not in ENDING:
        return None
    if state in _IN_GRACE and int(fields.get("preempted", 0)) >= max(int(fields.get("start", 0)), 1):
        state = "PREEMPTED"
    code, signal = exit_of(fields.get("code", ""))
    step_code, step_signal = exit_of("" if "managed" in fields else fields.get("step", ""))
    return End(
        state=state,
        exit_code=code if state == COMPLETED or (code and state in _BY_ITSELF) else None,
        signal=None if signal == OUT_OF_MEMORY else signal,
        step_exit_code=step_code,
        step_signal=step_signal,
        failed_node=fields.get("failed", ""),
        nodes=nodes,
    )


def _fields(text: str, number: int) -> dict[str, str] | None:
    """Returns the values of `_KEY` for a job; None if one occurs twice, or the answer has not exactly one such job."""
    records = [record for record in _RECORD.split(text) if re.match(rf"{number}\b", record)]
    if len(records) != 1:
        return None
    fields = dict[str, str]()
    for match in _KEY.finditer(records[0]):
        new = {name: value for name, value in match.groupdict().items() if value is not None}
        if new.keys() & fields.keys():
            return None
        fields |= new
    if not records[0].startswith(f"{number} HetJobId="):
        fields.pop("parts", None)  # of the job's name
    return fields


def _nodes(fields: Mapping[str, str]) -> int | None:
    """Returns the number of the job's nodes. Each other part of a heterogeneous job counts as one: it has at least one."""
    others = max(len(numbers(fields.get("parts", ""))) - 1, 0)
    return int(fields["nodes"]) + others if "nodes" in fields else None


def exit_of(text: str) -> tuple[int | None, int | None]:
    """Parses an exit code such as `3:0`. The signal is None without one, and may be `OUT_OF_MEMORY`."""
    code, colon, signal = text.partition(":")
    if not (colon and code.isdecimal() and signal.isdecimal() and text.isascii() and len(text) <= 7):
        return None, None
    is_signal = 0 < int(signal) <= _SIGNAL_MOST or int(signal) == OUT_OF_MEMORY
    return int(code), int(signal) if is_signal else None


_Key = tuple[int, float | None, float | None]


class Ends:
    """Queries how jobs ended; does nothing if `ask` is None."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self._accounting = Accounting(ask)
        self._asked: deque[float] = deque()
        self._tried: dict[_Key, list[float]] = {}
        self._ends: dict[_Key, End] = {}

    def learn(self, jobs: Collection[Job], now: Stamp) -> None:
        here = {_key(job) for job in jobs}
        self._tried = {key: tries for key, tries in self._tried.items() if key in here}
        self._ends = {key: end for key, end in self._ends.items() if key in here}
        for job in sorted(self._due(jobs, now.boottime), key=_length, reverse=True)[:AT_ONCE]:
            if not self._one(job, now):
                return

    def of(self, job: Job, node: str) -> Job:
        """Returns the job with the controller's answer about its end. `node`: Slurm's name of this node, or empty."""
        end = self._ends.get(_key(job))
        if end is None:
            return job
        is_here = end.failed_node != "" and end.failed_node == node
        job = replace(
            job, state=end.state, failed_node=end.failed_node, failed_here=is_here, nodes=end.nodes or job.nodes
        )
        if end.state in (AGAIN, HELD):
            return job
        return replace(
            job,
            exit_code=end.exit_code,
            signal=PROLOG_FAILED if job.signal == PROLOG_FAILED else end.signal,  # 22.05 does not report it
            step_exit_code=end.step_exit_code,
            step_signal=end.step_signal,
            cancelled_by=end.cancelled_by,
        )

    def _due(self, jobs: Collection[Job], now: float) -> Iterator[Job]:
        for job in jobs:
            if self._ask is None or job.ended is None or not (job.batch and job.gpus) or _key(job) in self._ends:
                continue
            tried = self._tried.get(_key(job), [])
            again = not tried or (len(tried) == 1 and now - tried[0] >= AGAIN_AFTER)
            if again and AFTER + job.id % SPREAD <= now - job.ended <= UNTIL:
                yield job

    def _one(self, job: Job, now: Stamp) -> bool:
        """Queries one job. False if this pass makes no more queries."""
        while self._asked and now.boottime - self._asked[0] >= SPAN:
            self._asked.popleft()
        if self._ask is None or len(self._asked) >= MOST:
            return False
        self._asked.append(now.boottime)
        self._tried.setdefault(_key(job), []).append(now.boottime)
        ended = now.wall - now.boottime + _second_after(job)
        try:
            end = end_of(self._ask(("scontrol", "show", "job", "-d", str(job.id))), job.id, job.uid, ended)
        except CollectorError:
            return False
        if end is None:
            return True
        is_cancelled = end.state == CANCELLED
        by = self._accounting.cancelled_by(job, now.boottime) if is_cancelled else None
        self._ends[_key(job)] = replace(end, cancelled_by=by)
        return not is_cancelled  # slurmdbd may have been slow


def _key(job: Job) -> _Key:
    """Returns a unique key: job numbers repeat when the controller's counter restarts or a job is requeued."""
    return job.id, job.started, job.ended


def _second_after(job: Job) -> float:
    """Returns the end of the job plus a second: times in notes, and the controller's, are truncated to seconds."""
    return (job.ended or 0.0) + 1.0


def _length(job: Job) -> float:
    return (job.ended or 0.0) - (job.started or job.ended or 0.0)
