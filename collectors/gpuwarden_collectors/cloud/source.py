"""Polls the questions of a source concurrently, each at its own interval.

An interval starts with the request: a hanging request is repeated at once after its answer, and a service that
answers at once instead of hanging is not queried more often than once per `interval`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, runtime_checkable

from gpuwarden_collectors.backoff import Backoff
from gpuwarden_collectors.cloud.facts import Answer, AnswerKind, Kind, unknown
from gpuwarden_collectors.dataclass import dataclass

RETRY_FIRST, RETRY_MOST = 0.25, 1.0
"""Seconds from a failed request to its retry. Short: the first answer of a recovering service may announce an end."""
CONFIRM_MOST = 30.0
"""Most seconds between attempts to confirm the service, which may start after this daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request that a source repeats."""

    name: str
    """Short name, unique in its source."""
    kind: Kind
    """The kind of end that it announces."""
    ask: Callable[[], Coroutine[Any, Any, Answer]]
    """Makes the request; never raises."""
    interval: float
    """Seconds from the beginning of one request to the next."""
    hangs: float = 0.0
    """Seconds that the answer may take beyond the usual timeout."""
    main: bool = False
    """True: the source counts as down while this question has no answer."""


class CloudSource(Protocol):
    """A source of answers.

    `confirm` returns why it is not the expected cloud, or why it does not answer; "" if it is and does.
    """

    name: str

    @property
    def questions(self) -> Sequence[Question]: ...
    async def confirm(self) -> str: ...
    async def close(self) -> None: ...


@runtime_checkable
class NamesMachineType(Protocol):
    """A source whose service reports the machine type, where the firmware does not contain it."""

    machine_type: str
    """The machine type; "" until the source is confirmed."""


OnAnswer = Callable[[Question, Answer], None]


async def follow(source: CloudSource, on_answer: OnAnswer, chance: random.Random) -> None:
    """Asks the questions of `source` until cancelled and calls `on_answer` with every answer.

    Until the service is confirmed, `on_answer` gets an unknown answer for every main question.
    """
    backoff = Backoff(RETRY_FIRST, CONFIRM_MOST, spread=(0.8, 1.2), chance=chance)
    while error := await source.confirm():
        for question in source.questions:
            if question.main:
                on_answer(question, unknown(error))
        await asyncio.sleep(backoff.failed())
    async with asyncio.TaskGroup() as group:
        for question in source.questions:
            group.create_task(_poll(question, on_answer, chance))


async def _poll(question: Question, on_answer: OnAnswer, chance: random.Random) -> None:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(min(question.interval, 1.0) * chance.random() * 0.5)  # spreads a fleet's requests
    backoff = Backoff(RETRY_FIRST, RETRY_MOST if question.main else max(RETRY_MOST, question.interval))
    while True:
        begun = loop.time()
        answer = await question.ask()
        on_answer(question, answer)
        if answer.kind is AnswerKind.UNKNOWN:
            await asyncio.sleep(backoff.failed())
        else:
            backoff.succeeded()
            await asyncio.sleep(max(0.0, begun + question.interval - loop.time()))
