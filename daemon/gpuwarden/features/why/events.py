"""Selects the data of job events that leave the daemon: for everyone who can connect, and in notifications."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpuwarden.config.notify import Group
from gpuwarden.features.why.memory import record_of
from gpuwarden.features.why.model import Cause, Certainty, JobKind, job_subject
from gpuwarden.health.model import Event, EventKind, Evidence, Key

_PUBLIC = ("cause", "certainty", "code", "slot")
"""Data without the name of a user or a job, and without a text that may contain one."""
_CAUSES = frozenset({Cause.HARDWARE, Cause.HOST, Cause.FABRIC, Cause.NOTICE, Cause.OTHER_NODE})
"""Causes that are notified: those for which the job's owner is not responsible. Most failed jobs fail by themselves."""
_NOTIFIED = (
    "cause",
    "certainty",
    "sentence",
    "code",
    "slot",
    "serial",
    "state",
    "exit_code",
    "signal",
    "user",
    "job_name",
)
"""Data of a job's end that are notified."""


def _nameless(event: Event) -> Event:
    """Return the event without names. The name of a pod counts as one, since its user chose it."""
    is_pod = event.key is not None and event.key.subject.part.startswith(f"{JobKind.POD}/")
    key = Key("job", job_subject(JobKind.POD)) if is_pod else event.key
    return replace(event, key=key, data=_of(event, _PUBLIC))


def _ended(event: Event) -> Evidence | None:
    """Return the data of an end that are notified; None if it is not notified."""
    record = record_of(event)
    if record is None or record.answer.cause not in _CAUSES:
        return None
    is_doubtful = record.end.may_be_well and record.answer.certainty is Certainty.POSSIBLE
    return None if is_doubtful else _of(event, _NOTIFIED)


def _of(event: Event, names: tuple[str, ...]) -> Evidence:
    return {name: value for name, value in event.data.items() if name in names}


NAMELESS: Mapping[EventKind, Callable[[Event], Event]] = dict.fromkeys(
    (EventKind.JOB_BEGUN, EventKind.JOB_USED, EventKind.JOB_ENDED), _nameless
)
NOTIFIED: Mapping[EventKind, tuple[Group, Callable[[Event], Evidence | None]]] = {EventKind.JOB_ENDED: ("job", _ended)}
