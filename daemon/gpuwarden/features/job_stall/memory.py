"""The memory of jobs: the earlier busy minutes of each, by its number or container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuwarden.features.job_stall.past import JobPast
from gpuwarden.health.event_data import read, write
from gpuwarden.health.host.memory import forgotten, host_event
from gpuwarden.health.memory import State
from gpuwarden.health.model import Event, EventKind, Subject
from gpuwarden_collectors.facts import Stamp

JOBS_KEPT = 64
"""More jobs than any host has. Beyond them the oldest is dropped, so that invalid entries cannot fill memory."""
KINDS = frozenset({EventKind.HOST_LEARNED, EventKind.HOST_FORGOTTEN})
Pasts = Mapping[str, JobPast]
EMPTY: Pasts = {}


def job_subject(name: str) -> Subject:
    return Subject("job", part=name)


def learned(name: str, past: JobPast, at: Stamp, boot_id: str) -> Event:
    """Return the event that stores the past of a job."""
    return host_event(EventKind.HOST_LEARNED, job_subject(name), at, boot_id, write(past))


def over(name: str, at: Stamp, boot_id: str) -> Event:
    """Return the event that removes the past of a job that ended."""
    return forgotten(job_subject(name), at, boot_id)


def fold(pasts: Pasts, event: Event, _: State) -> Pasts:
    """Return the pasts after an event of KINDS; the same object if it is about something other than a job."""
    if event.key is None or event.key.subject.kind != "job":
        return pasts
    name = event.key.subject.part
    others = {other: past for other, past in pasts.items() if other != name}
    if event.kind != EventKind.HOST_LEARNED:
        return others
    return dict([*others.items(), (name, read(JobPast, event))][-JOBS_KEPT:])


def events(pasts: Pasts, at: Stamp, state: State) -> Iterator[Event]:
    """Yield the events whose fold gives these pasts."""
    for name, past in pasts.items():
        yield learned(name, past, at, state.boot_id)
