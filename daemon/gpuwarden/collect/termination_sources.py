"""Who is asked whether this machine is about to end, asked all the time; what they announce goes where an operator's notice goes.

Each source and each of its questions stands for itself: what one does not know changes nothing of what another says.
On a machine of no known cloud there is no source, no task and no packet.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuwarden.base.log import get_logger
from gpuwarden.config.termination import METADATA, MetadataOptions, TerminationOptions
from gpuwarden.policy.model import Notice
from gpuwarden.publish.snapshot import NoticeSource
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.container import NAME as CONTAINER
from gpuwarden_collectors.cloud.container import Container
from gpuwarden_collectors.cloud.detect import ONLY_SHUTS_DOWN, recognise
from gpuwarden_collectors.cloud.facts import Answer, AnswerKind, Kind, TerminationNotice
from gpuwarden_collectors.cloud.planned import Planned
from gpuwarden_collectors.cloud.registry import cloud_source
from gpuwarden_collectors.cloud.shutdown import NAME as SHUTDOWN
from gpuwarden_collectors.cloud.shutdown import Shutdown
from gpuwarden_collectors.cloud.sightings import Held, follow, held_before
from gpuwarden_collectors.cloud.source import CloudSource, Question
from gpuwarden_collectors.cloud.source import follow as keep_asking
from gpuwarden_collectors.facts import Stamp

log = get_logger("gpuwarden")

AGAIN_AFTER = 30.0
"""Seconds after a fault of ours in a source."""
PATIENCE = 10.0
"""Seconds without a good answer, beyond three intervals, after which a source is not up."""

Changed = Callable[[str, Sequence[Notice]], None]
"""(source, all that it announces now)."""


def chosen(options: TerminationOptions, sysfs: Path, clock: Clock) -> tuple[CloudSource, ...]:
    """The sources that are configured, or fit this machine."""
    named: list[str] = [name for name in options.sources if name != "auto"]
    if "auto" in options.sources:
        cloud = recognise(sysfs)
        named.append("shutdown" if cloud in ONLY_SHUTS_DOWN else cloud)
    made: list[CloudSource] = []
    for name in dict.fromkeys(named):
        own: MetadataOptions | None = getattr(options, name) if name in METADATA else None
        if own is not None and own.enabled:
            made.append(cloud_source(name, clock, endpoint=own.endpoint, timeout=own.timeout, interval=own.interval))
        elif name == CONTAINER and options.container.enabled:
            made.append(Container(options.container.window, clock))
        elif name == "shutdown" and options.shutdown.enabled:
            made.append(
                Shutdown(clock, path=str(options.shutdown.bus), hold=options.shutdown.hold, stop=options.shutdown.stop)
            )
    if options.end is not None:
        made.append(Planned(options.end, clock))
    return tuple(made)


@dataclass(slots=True)
class _Asked:
    """One question of one source."""

    question: Question
    held: Held = field(default_factory=dict)
    answered: Stamp | None = None
    good: bool = False
    trouble: str = "not asked yet"


class NoticeSources:
    """`changed` is called with all that a source announces, while that is something, and once when it ended."""

    def __init__(self, sources: Sequence[CloudSource], changed: Changed, *, boot_id: str, clock: Clock) -> None:
        self._sources = {source.name: source for source in sources}
        self._changed = changed
        self._boot_id = boot_id
        self._clock = clock
        self._asked = {source.name: {q.name: _Asked(q) for q in source.questions} for source in sources}
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._tasks: list[asyncio.Task[None]] = []

    def remember(self, notices: Iterable[Notice]) -> None:
        """What was announced before the daemon started stands until its source says otherwise; of an earlier boot, nothing does."""
        for notice in notices:
            if notice.boot_id != self._boot_id:
                continue
            name = notice.id.partition(":")[0]
            asked = self._asked.get(notice.source, {}).get(name)
            fact = _fact(notice)
            if asked is not None and fact is not None and notice.id not in asked.held:
                asked.held = {**asked.held, **held_before({notice.id: fact})}

    def run(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(source)) for source in self._sources.values()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(source.close() for source in self._sources.values()), return_exceptions=True)

    def ends_in(self) -> float:
        """SIGTERM came. Seconds until the container, or the machine, ends with it; 0 where nobody takes it for a notice."""
        container, shutdown = self._sources.get(CONTAINER), self._sources.get(SHUTDOWN)
        if isinstance(container, Container) and container.ends():
            return container.window
        return shutdown.ends_in() if isinstance(shutdown, Shutdown) else 0.0

    def shown(self, now: Stamp) -> tuple[NoticeSource, ...]:
        return tuple(_shown(name, list(asked.values()), now) for name, asked in self._asked.items())

    async def _follow(self, source: CloudSource) -> None:
        while True:
            try:
                await keep_asking(source, lambda q, answer: self._told(source.name, q, answer), self._chance)
            except Exception:  # a fault of ours in one source must end neither it nor the others
                log.exception("a source of termination notices failed unexpectedly", source=source.name)
                await asyncio.sleep(AGAIN_AFTER)

    def _told(self, source: str, question: Question, answer: Answer) -> None:
        asked = self._asked[source][question.name]
        asked.trouble = answer.error
        asked.good = answer.kind is not AnswerKind.UNKNOWN
        if asked.good:
            asked.answered = self._clock()
        before, asked.held = asked.held, follow(asked.held, answer)
        if before or asked.held:  # each time: whoever is told compares, and may have missed the last one
            self._changed(source, self._announced(source))

    def _announced(self, source: str) -> list[Notice]:
        now = self._clock()
        return [
            Notice(
                source=source, kind=fact.kind.value, at=now, boot_id=self._boot_id, reason=fact.reason,
                deadline=fact.deadline, id=fact.id, hard=fact.hard, approval=fact.approval,
            )
            for asked in self._asked[source].values()
            for fact in _notices(asked.held)
        ]  # fmt: skip


def _notices(held: Held) -> list[TerminationNotice]:
    return [sighting.notice for sighting in held.values()]


def _fact(notice: Notice) -> TerminationNotice | None:
    """None for a kind that another version announced."""
    if notice.kind not in tuple(Kind):
        return None
    return TerminationNotice(
        source=notice.source, kind=Kind(notice.kind), id=notice.id, hard=notice.hard, deadline=notice.deadline,
        reason=notice.reason, approval=notice.approval,
    )  # fmt: skip


def _shown(name: str, asked: Sequence[_Asked], now: Stamp) -> NoticeSource:
    main = [one for one in asked if one.question.main]
    answers = [one.answered for one in main]
    last = None if None in answers else min(stamp for stamp in answers if stamp is not None)
    return NoticeSource(
        name=name,
        up=all(_is_up(one, now) for one in main),
        kinds=tuple(dict.fromkeys(one.question.kind.value for one in asked)),
        error="; ".join(dict.fromkeys(one.trouble for one in asked if one.trouble)),
        last=last,
    )


def _is_up(asked: _Asked, now: Stamp) -> bool:
    if asked.answered is None:
        return False
    patience = PATIENCE + 3.0 * asked.question.interval + asked.question.hangs
    return now.boottime - asked.answered.boottime <= patience
