"""Determines which event touches which job.

A job is touched by what happens on its own GPUs and their links, to its processes and its control group, and to the node as a whole,
from its begin on: not by what was there before, and not by what happens to other GPUs. A switch touches jobs with two GPUs or more,
since a GPU alone uses none. What a checkpoint repeats is recognised by its time, and not counted again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from gpuwarden.features.why.model import LASTING, TOUCHES_MOST, WORKING_FABRIC, Epoch, JobKind, Touch
from gpuwarden.features.why.stored import NAME_MOST, printable
from gpuwarden.health.conditions import condition
from gpuwarden.health.event_data import read
from gpuwarden.health.events import Lines, OomKilled, Raised, Reset
from gpuwarden.health.memory import State
from gpuwarden.health.model import Event, EventKind, Severity
from gpuwarden.health.runbooks import PAGES
from gpuwarden.health.xid.bursts import OF_A_DAY
from gpuwarden.health.xid.catalogue import XidClass, xid_row
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

RECENT_FOR, RECENT_MOST = 780.0, 256
"""Seconds, and number, of events that are kept for jobs that are not in memory yet: a job may wait ten minutes for that
(`writing.BEGUN_AT_LAST`), its record two more for the scheduler (`step.ANSWERED_WITHIN`), and a pass may be late. On a
node of 16 GPUs all jobs may fail at once, each with several Xids."""
PAIRED_WITHIN = 10.0
"""Seconds between the bare number of an Xid and its line, which names the process."""
OUTLIVED_AFTER = 900.0
"""Seconds after which an error of a program, or of a switch, ended no job: as in `signs.py`."""
FAR = 3_600.0
"""Seconds: the longest time before an end in which a cloud has a machine prepare for it (`gcp`, TERMINATE_ON_HOST_MAINTENANCE)."""
SEVERAL = 2
"""Least GPUs of a job that uses switches."""
EXCLUSIONS = frozenset({EventKind.EXCLUDED.value, EventKind.EXCLUDED_BY_OTHERS.value})
"""Touches that do not end a job: it continues while its node is excluded."""
_OF_PARTS = ("gpu", "link", "port", "adapter")
"""Scopes of conditions of which a job has many."""
_PROCESS = "process/"  # evacuation's name of a process without a job
_GPU = "gpu/"  # evacuation's id of a notice of a failing GPU: its slot, @, and its time
_CONTAINER = "container-"  # job_stall's name of a container
_clean = printable(NAME_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Touching:
    """The effect of an event on the jobs that it concerns."""

    touch: Touch
    boot_id: str
    """The boot of the event."""
    job: str = ""
    """The only job that it concerns; empty: all that have the GPU, or all on the node."""
    of_process: bool = False
    """It concerns only the job of the process that it names."""
    several: bool = False
    """It concerns only jobs with two GPUs or more."""
    ends: bool = False
    """It ends a touch that lasts, and is no touch itself."""


def touching(event: Event, state: State) -> Touching | None:
    """Return the effect of the event on jobs; None if it has none. `state`: after the event."""
    handler = _KINDS.get(event.kind)
    return None if handler is None else handler(event, state)


def concerns(effect: Touching, epoch: Epoch) -> bool:
    """Return True if it is about this job, its GPU or its node, and not from before its begin."""
    if effect.touch.what == "boot":
        return epoch.boot_id != effect.boot_id
    if epoch.boot_id != effect.boot_id or effect.touch.at.boottime < epoch.began.boottime:
        return False
    if effect.of_process:
        return effect.touch.pid in epoch.pids
    if effect.job:
        return effect.job == epoch.name or effect.job in epoch.also
    if effect.touch.slot:
        return effect.touch.slot in epoch.slots
    return not effect.several or len(epoch.slots) >= SEVERAL


def with_touch(epoch: Epoch, effect: Touching) -> Epoch:
    """Return the job with this touch; the same object if that changes nothing. Repetitions are counted."""
    if effect.ends:
        ended = tuple(_ended(touch, effect.touch) for touch in epoch.touches)
        return epoch if ended == epoch.touches else replace(epoch, touches=ended)
    for n, touch in enumerate(epoch.touches):
        if _alike(touch, effect.touch):
            merged = _merged(touch, effect.touch)
            touches = (*epoch.touches[:n], merged, *epoch.touches[n + 1 :])
            return epoch if merged == touch else replace(epoch, touches=touches)
    if not effect.touch.count:  # a line about a report that counts already
        if effect.touch.pid is None:
            return epoch
        effect = replace(effect, touch=replace(effect.touch, count=1))  # the report of another process than those here
    touches = epoch.touches if len(epoch.touches) < TOUCHES_MOST else with_room(epoch.touches, effect.touch)
    return epoch if len(touches) >= TOUCHES_MOST else replace(epoch, touches=(*touches, effect.touch))


def touched(epoch: Epoch, recent: Iterable[Touching]) -> Epoch:
    """Return a job that is not in the ledger yet with its touches."""
    for effect in recent:
        if concerns(effect, epoch):
            epoch = with_touch(epoch, effect)
    return epoch


def with_room(touches: tuple[Touch, ...], new: Touch) -> tuple[Touch, ...]:
    """Return the touches without one that matters less than `new`, if there is one: in weeks a job meets more warnings
    than it has room for, and what ends it comes last.
    """
    touches = _without_repeated(touches)
    if len(touches) < TOUCHES_MOST or _ends_no_job(new):
        return touches
    outlived = (n for n, touch in enumerate(touches) if _is_outlived(touch, new))
    n = next((n for n, touch in enumerate(touches) if _ends_no_job(touch)), next(outlived, None))
    return touches if n is None else (*touches[:n], *touches[n + 1 :])


def _ends_no_job(touch: Touch) -> bool:
    """Return True for a finding with which jobs continue, such as heat, a slow GPU or errors of a link."""
    code = touch.detail.partition("@")[0]
    row = condition(code.partition(".")[0]) if touch.what in ("finding", "rising") else None
    if row is None:
        return False
    is_mild = row.severity is Severity.WARNING and row.scope in _OF_PARTS
    return row.jobs_go_on or is_mild or code in WORKING_FABRIC


def _is_outlived(touch: Touch, new: Touch) -> bool:
    """Return True for an error of a program, or of a switch, that ended no job by then."""
    last = touch.until or touch.at
    is_mild = touch.what == "sxid" or (touch.what == "xid" and _of_application(touch.detail))
    return is_mild and new.at.boottime - last.boottime > OUTLIVED_AFTER


def _without_repeated(touches: tuple[Touch, ...]) -> tuple[Touch, ...]:
    """Return the touches without the first Xid that another process had again on the same GPU."""
    for n, touch in enumerate(touches):
        if touch.what == "xid" and any(
            (later.what, later.detail, later.slot) == (touch.what, touch.detail, touch.slot)
            for later in touches[n + 1 :]
        ):
            return (*touches[:n], *touches[n + 1 :])
    return touches


def _alike(old: Touch, new: Touch) -> bool:
    same = old.what == new.what or {old.what, new.what} == {"finding", "rising"}
    if not same or old.detail != new.detail or old.slot != new.slot:
        return False
    paired = abs(new.at.boottime - old.at.boottime) <= PAIRED_WITHIN
    return old.pid == new.pid or (None in (old.pid, new.pid) and paired)


def _merged(old: Touch, new: Touch) -> Touch:
    last = old.until or old.at
    is_news = new.count > 0 and new.at.boottime > last.boottime and new.at.wall != last.wall
    until = old.until
    if is_news:
        until = None if new.what in LASTING else new.at
    return replace(
        old,
        what="finding" if new.what == "finding" else old.what,
        pid=new.pid if old.pid is None else old.pid,
        count=old.count + new.count if is_news else old.count,
        until=until,
    )


def _ended(touch: Touch, end: Touch) -> Touch:
    if touch.what not in LASTING or touch.until is not None:
        return touch
    is_notice = end.what == "notice" and touch.what in ("notice", "announced")
    ends = touch.detail.startswith(end.detail) if is_notice else _alike(touch, end)
    return replace(touch, until=end.at) if ends else touch


# --- one function for each kind of event


def _xid(event: Event, _: State) -> Touching | None:
    if event.key is None or not event.key.subject.slot:
        return None
    data = read(Lines, event)
    if data.history:
        return None
    pid = data.pid if data.pid is not None and data.pid > 0 else None
    touch = Touch(
        what="xid",
        detail=_clean(event.key.detail),
        at=event.at,
        slot=event.key.subject.slot,
        pid=pid,
        count=max(0, data.count),
    )
    return Touching(touch=touch, boot_id=event.boot_id)


def _sxid(event: Event, _: State) -> Touching | None:
    if event.key is None:
        return None
    data = read(Lines, event)
    touch = Touch(
        what="sxid", detail=_clean(f"{event.key.detail}@{event.key.subject}"), at=event.at, count=max(0, data.count)
    )
    return None if data.history else Touching(touch=touch, boot_id=event.boot_id, several=True)


_OWN = frozenset(next(page.checks for page in PAGES if page.name == "gpuwarden")) | {
    "lemon_node",
    "inventory_incomplete",
}
"""Conditions about gpuwarden itself, or about months: they touch no job."""
_LINES = frozenset({"sxid"})
"""Conditions whose log lines already touch a job."""


def _finding(event: Event, _: State) -> Touching | None:
    key = event.key
    if key is None or key.code in _OWN or key.code in _LINES or (row := condition(key.code)) is None:
        return None
    ends = event.kind in (EventKind.SUBSIDED, EventKind.CLEARED, EventKind.ACKNOWLEDGED)
    if key.code == "xid" and not (_of_application(key.detail) and (ends or OF_A_DAY in read(Raised, event).evidence)):
        return None  # its line touched the job already; only a repetition over several jobs adds to that
    kind = "rising" if event.kind in (EventKind.RISING, EventKind.SUBSIDED) else "finding"
    first = event.at if ends else read(Raised, event).first or event.at
    subject = key.subject
    slot = subject.slot if subject.kind in ("gpu", "link") else ""
    touch = Touch(what=kind, detail=_clean(str(key)), at=first, slot=slot)
    if kind == "rising" and (row.severity is not Severity.FAILURE or _ends_no_job(touch)):
        return None
    job = "" if subject.kind != "job" else _job(subject.part)
    return Touching(touch=touch, boot_id=event.boot_id, job=job, ends=ends)


def _of_application(xid: str) -> bool:
    return xid.isdecimal() and xid_row(int(xid)).klass is XidClass.RECORD


def _job(part: str) -> str:
    """Return the name of a job as `job_stall` has it."""
    if part.startswith(_CONTAINER):
        return f"{JobKind.CONTAINER}/{part.removeprefix(_CONTAINER)}"
    return part if "/" in part else f"{JobKind.SLURM}/{part}"


def _reset(event: Event, _: State) -> Touching | None:
    if event.key is None or not event.key.subject.slot or not read(Reset, event).ok:
        return None
    return Touching(touch=Touch(what="reset", at=event.at, slot=event.key.subject.slot), boot_id=event.boot_id)


def _oom(event: Event, _: State) -> Touching | None:
    """Return a kill for lack of memory: at a limit it concerns the job of the process, on a full node all jobs;
    `detail` names the killed one.

    The limit may belong to a group above the job, such as kubelet's for all pods, or a slice: then others may have used
    the memory.
    """
    data = read(OomKilled, event)
    if data.of_limit and not (data.limit_job or data.job):
        return None  # of a session of a user, or of a service
    kind = "oom_node" if not data.of_limit else "oom_limit" if data.limit_job else "oom_shared"
    touch = Touch(what=kind, detail=_clean(data.job), at=event.at, pid=data.pid, count=max(1, data.count))
    job = _clean(data.job or data.limit_job) if data.of_limit else ""
    return Touching(touch=touch, boot_id=event.boot_id, job=job)


def _line(event: Event, _: State) -> Touching | None:
    """Return an error of the host's memory. Other lines of the kernel touch jobs as findings."""
    if event.key is None or event.key.code != "memory_failed":
        return None
    data = read(Lines, event)
    touch = Touch(what="memory_error", at=event.at, pid=data.pid, count=max(1, data.count))
    return None if data.history else Touching(touch=touch, boot_id=event.boot_id)


def _notice(event: Event, _: State) -> Touching | None:
    """Return a notice. Its end ends all of its source; without a source, as by an operator, all notices. A notice of a
    distant end, such as maintenance in some days, is only listed: a job that ends earlier ended for another reason.
    """
    source, kind = (event.data.get(name) for name in ("source", "notice"))
    ends = event.kind == EventKind.NOTICE_ENDED
    if not ends and event.data.get("hard") is not True:
        return None
    detail = f"{source}/" if source else ""
    deadline = event.data.get("deadline_boottime")
    is_far = not ends and isinstance(deadline, int | float) and deadline - event.at.boottime > FAR
    touch_kind = "announced" if is_far else "notice"
    touch = Touch(what=touch_kind, detail=_clean(detail if ends else f"{detail}{kind}"), at=event.at)
    return Touching(touch=touch, boot_id=event.boot_id, ends=ends)


def _of_job(kind: str) -> Callable[[Event, State], Touching | None]:
    """Return the function for what gpuwarden did with a job before the machine's end, except in a checkpoint."""

    def found(event: Event, _: State) -> Touching | None:
        job = event.data.get("job")
        if not isinstance(job, str) or not job or event.data.get("kept") is True:
            return None
        detail = {
            "signalled": str(event.data.get("result") or ""),
            "saved": "saved" if event.data.get("saved") is True else "unsaved",
        }
        pid = job.removeprefix(_PROCESS)
        is_process = job.startswith(_PROCESS) and pid.isascii() and pid.isdigit() and len(pid) < 10
        notice = str(event.data.get("notice") or "") if kind == "signalled" else ""
        slot = _clean(notice.removeprefix(_GPU).partition("@")[0]) if notice.startswith(_GPU) else ""
        touch = Touch(
            what=kind,
            detail=_clean(detail.get(kind, "")),
            at=event.at,
            slot=slot,
            pid=int(pid) if is_process else None,
        )
        return Touching(touch=touch, boot_id=event.boot_id, job=_clean(job), of_process=is_process)

    return found


def _excluded(event: Event, _: State) -> Touching:
    touch = Touch(what="excluded", detail=_clean(str(event.data.get("reason") or "")), at=event.at)
    return Touching(touch=touch, boot_id=event.boot_id)


def _excluded_by_others(event: Event, _: State) -> Touching:
    """Return another party's exclusion, at the time when it was written: the event repeats after each start of the
    daemon. Its reason is not kept with the job.
    """
    since, at = event.data.get("since"), event.at
    if isinstance(since, int | float) and 0 < since < at.wall:
        at = Stamp(at.boottime - (at.wall - since), float(since))
    touch = Touch(what="excluded_by_others", detail=_clean(str(event.data.get("actuator") or "")), at=at)
    return Touching(touch=touch, boot_id=event.boot_id)


def _boot(event: Event, _: State) -> Touching:
    return Touching(touch=Touch(what="boot", at=event.at), boot_id=event.boot_id)


_KINDS: Mapping[str, Callable[[Event, State], Touching | None]] = {
    EventKind.XID: _xid,
    EventKind.SXID: _sxid,
    EventKind.RISING: _finding,
    EventKind.SUBSIDED: _finding,
    EventKind.RAISED: _finding,
    EventKind.CLEARED: _finding,
    EventKind.ACKNOWLEDGED: _finding,
    EventKind.RESET: _reset,
    EventKind.OOM_KILL: _oom,
    EventKind.KERNEL_LINE: _line,
    EventKind.NOTICED: _notice,
    EventKind.NOTICE_ENDED: _notice,
    EventKind.SIGNALLED: _of_job("signalled"),
    EventKind.SAVED: _of_job("saved"),
    EventKind.REQUEUED: _of_job("requeued"),
    EventKind.EXCLUDED: _excluded,
    EventKind.EXCLUDED_BY_OTHERS: _excluded_by_others,
    EventKind.BOOT: _boot,
}
TOUCHING = frozenset(_KINDS)
"""Kinds of events that may touch a job."""
