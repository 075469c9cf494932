"""Machines of public issue trackers that tools accused, and what is right to say of each: one row per story.

A story drives a host of `support/hosts.py`. `measure_story` then restarts the daemon on it, which must change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuwarden.health.model import Event, EventKind, Health
from support.hosts import Host

AFTER_RESTART = 150.0
"""Seconds that a story goes on with a restarted daemon: DCGM counts as settled after 90."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """`id` as in the notes of the project, `source` the public record of it, `made` returns the host at the end of the story
    (a function of a module, or a `partial` of one: it is sent to another process).

    `incidents`: how many faults there were at once at most, where that is asked. `expects`: exactly what must be raised in the course of it, as in `warning xid.94`; nothing for a healthy machine. `ends`: the
    health of the node at the end.
    """

    id: str
    source: str
    name: str
    made: Callable[[], Host]
    expects: tuple[str, ...] = ()
    ends: Health = Health.HEALTHY
    incidents: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryResult:
    """`reported`: what was raised, each once; `restarted`: the same of the time after a restart of the daemon."""

    id: str
    reported: tuple[str, ...]
    ended: str
    restarted: tuple[str, ...]
    ended_restarted: str
    incidents: int


def measure_story(story: Story) -> StoryResult:
    host = story.made()
    incidents = host.most_incidents
    reported, ended, before = raised(host.ledger), host.health, len(host.ledger)
    host.restart_daemon()
    host.run(AFTER_RESTART)
    return StoryResult(
        id=story.id, reported=reported, ended=ended.value, restarted=raised(host.ledger[before:]), ended_restarted=host.health.value,
        incidents=incidents,
    )  # fmt: skip


def raised(events: list[Event]) -> tuple[str, ...]:
    texts = (
        f"{event.data['severity']} {event.key.code}{event.key.detail and '.'}{event.key.detail}"
        for event in events
        if event.kind == EventKind.RAISED and event.key is not None
    )
    return tuple(sorted(set(texts)))


def problems(story: Story, result: StoryResult) -> list[str]:
    """Return the differences between `result` and what the story expects."""
    wanted = sorted(story.expects)
    faults = []
    if list(result.reported) != wanted:
        faults.append(f"raised {', '.join(result.reported) or 'nothing'}, wanted {', '.join(wanted) or 'nothing'}")
    if story.incidents not in (None, result.incidents):
        faults.append(f"was {result.incidents} incidents, wanted {story.incidents}")
    if result.ended != story.ends.value:
        faults.append(f"ends {result.ended}, wanted {story.ends.value}")
    if more := sorted(set(result.restarted) - set(wanted)):
        faults.append(f"raised after a restart of the daemon: {', '.join(more)}")
    if result.ended_restarted != story.ends.value:
        faults.append(f"{result.ended_restarted} after a restart of the daemon, wanted {story.ends.value}")
    return faults
