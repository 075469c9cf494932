"""Polling of the sources of termination notices, whose notices are handled like an operator's.

Sources and their questions are independent: an unknown answer to one does not affect another. On a machine of no known
cloud there is no source, no task and no network traffic.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path

from gpuwarden.base.log import get_logger
from gpuwarden.config.termination import TerminationOptions
from gpuwarden.policy.model import OPERATOR, Notice
from gpuwarden.publish.snapshot import NoticeSource
from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.container import NAME as CONTAINER
from gpuwarden_collectors.cloud.container import Container
from gpuwarden_collectors.cloud.detect import ONLY_SHUTS_DOWN, recognise
from gpuwarden_collectors.cloud.facts import Answer, AnswerKind
from gpuwarden_collectors.cloud.planned import Planned
from gpuwarden_collectors.cloud.registry import CLOUDS
from gpuwarden_collectors.cloud.shutdown import NAME as SHUTDOWN
from gpuwarden_collectors.cloud.shutdown import Shutdown
from gpuwarden_collectors.cloud.sightings import Held, follow, held_before
from gpuwarden_collectors.cloud.source import CloudSource, NamesMachineType, Question
from gpuwarden_collectors.cloud.source import follow as keep_asking
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

log = get_logger()

AGAIN_AFTER = 30.0
"""Seconds of pause after a bug in a source."""
PATIENCE = 10.0
"""Seconds without a good answer, beyond three intervals, after which a source is not up."""

Changed = Callable[[str, Sequence[Notice]], None]
"""Called with a source and all its notices in force."""


def chosen(options: TerminationOptions, sysfs: Path, clock: Clock) -> tuple[CloudSource, ...]:
    """The sources that are configured, or match this machine."""
    named: list[str] = [name for name in options.sources if name != "auto"]
    if "auto" in options.sources:
        here = recognise(sysfs)
        named.append(SHUTDOWN if here in ONLY_SHUTS_DOWN else here)
    made: list[CloudSource] = []
    for name in dict.fromkeys(named):
        cloud = CLOUDS.get(name)
        if cloud is not None:
            made.append(cloud.open(clock, options.of(cloud)))
        elif name == CONTAINER:
            made.append(Container(options.container.window, clock))
        elif name == SHUTDOWN:
            made.append(
                Shutdown(clock, path=str(options.shutdown.bus), hold=options.shutdown.hold, stop=options.shutdown.stop)
            )
    if options.end is not None:
        made.append(Planned(options.end, clock))
    return tuple(made)


@dataclass(slots=True)
class _Polled:
    """The last answer to one question of a source."""

    question: Question
    held: Held = field(default_factory=dict)
    answered: Stamp | None = None
    good: bool = False
    error: str = "not read yet"


class NoticeSources:
    """Reads the sources of notices.

    `changed` is called with all notices of a source, while there are any, and once when the last has ended.
    """

    def __init__(self, sources: Sequence[CloudSource], changed: Changed, *, boot_id: str, clock: Clock) -> None:
        self._sources = {source.name: source for source in sources}
        self._changed = changed
        self._boot_id = boot_id
        self._clock = clock
        self._polled = {source.name: {q.name: _Polled(q) for q in source.questions} for source in sources}
        self._chance = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._tasks: list[asyncio.Task[None]] = []

    def remember(self, notices: Iterable[Notice]) -> None:
        """Keep notices from before the daemon started in force until their source withdraws them; those of an earlier
        boot do not count.

        Notices of a source that is no longer configured are withdrawn, since nothing else would end them before the
        next boot.
        """
        current = [notice for notice in notices if notice.boot_id == self._boot_id]
        for notice in current:
            name = notice.id.partition(":")[0]
            polled = self._polled.get(notice.source, {}).get(name)
            if polled is not None and notice.id not in polled.held:
                polled.held = {**polled.held, **held_before({notice.id: notice})}
        for source in sorted({notice.source for notice in current} - {OPERATOR, *self._sources}):
            self._changed(source, ())

    def run(self) -> None:
        self._tasks = [asyncio.create_task(self._follow(source)) for source in self._sources.values()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(source.close() for source in self._sources.values()), return_exceptions=True)

    def ends_in(self) -> float:
        """Called on SIGTERM: seconds until the container or the machine ends; 0 if SIGTERM is not a notice."""
        container, shutdown = self._sources.get(CONTAINER), self._sources.get(SHUTDOWN)
        if isinstance(container, Container) and container.ends():
            return container.window
        return shutdown.ends_in() if isinstance(shutdown, Shutdown) else 0.0

    @property
    def machine_type(self) -> str:
        """Type of this machine as named by the cloud, such as `Azure/` and its size; "" if unknown, or if the firmware
        names it.
        """
        machine_types = [
            source.machine_type for source in self._sources.values() if isinstance(source, NamesMachineType)
        ]
        return next(filter(None, machine_types), "")

    def shown(self, now: Stamp) -> tuple[NoticeSource, ...]:
        return tuple(_shown(name, list(polled.values()), now) for name, polled in self._polled.items())

    async def _follow(self, source: CloudSource) -> None:
        while True:
            try:
                await keep_asking(source, partial(self._take, source.name), self._chance)
            except Exception:  # a bug in one source must end neither it nor the others
                log.exception("termination source failed unexpectedly", source=source.name)
                await asyncio.sleep(AGAIN_AFTER)

    def _take(self, source: str, question: Question, answer: Answer) -> None:
        polled = self._polled[source][question.name]
        polled.error = answer.error
        polled.good = answer.kind is not AnswerKind.UNKNOWN
        now = self._clock()
        if polled.good:
            polled.answered = now
        before, polled.held = polled.held, follow(polled.held, answer, now)
        if before or polled.held:  # on every answer: the receiver compares, and may have missed the last call
            self._changed(source, self._announced(source))

    def _announced(self, source: str) -> list[Notice]:
        now = self._clock()
        return [
            Notice(
                source=source,
                kind=fact.kind,
                at=now,
                boot_id=self._boot_id,
                reason=fact.reason,
                deadline=fact.deadline,
                id=fact.id,
                hard=fact.hard,
                approval=fact.approval,
            )
            for polled in self._polled[source].values()
            for fact in (announced.notice for announced in polled.held.values())
        ]


def _shown(name: str, polled: Sequence[_Polled], now: Stamp) -> NoticeSource:
    main = [answer for answer in polled if answer.question.main]
    answers = [answer.answered for answer in main]
    last = None if None in answers else min(stamp for stamp in answers if stamp is not None)
    return NoticeSource(
        name=name,
        up=all(_is_up(answer, now) for answer in main),
        kinds=tuple(dict.fromkeys(answer.question.kind.value for answer in polled)),
        error="; ".join(dict.fromkeys(answer.error for answer in polled if answer.error)),
        last=last,
    )


def _is_up(polled: _Polled, now: Stamp) -> bool:
    if polled.answered is None:
        return False
    patience = PATIENCE + 3.0 * polled.question.interval + polled.question.hangs
    return now.boottime - polled.answered.boottime <= patience
