"""A service that fails for minutes is polled at its usual interval, and read as soon as it responds."""

from __future__ import annotations

import asyncio
import random
import selectors

import pytest

from gpuwarden_collectors.cloud import aws
from gpuwarden_collectors.cloud.facts import Answer, AnswerKind, Kind, unknown
from gpuwarden_collectors.cloud.source import Question, follow
from support.cloud_replies import HERE, reply


class HurriedLoop(asyncio.SelectorEventLoop):
    """Waits for nothing: its time goes to that of the next timer at once. For what has no sockets."""

    def __init__(self) -> None:
        self.passed = 0.0
        super().__init__(_Hurried(self))

    def time(self) -> float:
        return self.passed


class _Hurried(selectors.DefaultSelector):
    def __init__(self, loop: HurriedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.passed += timeout or 0.0
        return super().select(0.0)


@pytest.mark.parametrize("within", [0.0, 2.0])
def test_after_five_minutes_of_errors_a_notice_is_known_within_one_interval(within: float) -> None:
    """`within`: seconds that each failure takes. All through the storm the service is asked no more often than in peace."""
    loop = HurriedLoop()
    storm, asked, kinds = 300.0, [], []

    async def ask() -> Answer:
        asked.append(loop.time())
        if loop.time() < storm:
            await asyncio.sleep(within)
            return unknown("status 503")
        return aws.spot(reply({"action": "terminate", "time": "2026-11-21T03:02:00Z"}), HERE)

    class Stormy:
        name = "stormy"
        questions = (Question(name="spot", kind=Kind.INTERRUPTION, ask=ask, interval=1.0, main=True),)

        async def confirm(self) -> str:
            return ""

        async def close(self) -> None: ...

    async def until_noticed() -> float:
        noticed = asyncio.Event()

        def receive(_: Question, answer: Answer) -> None:
            kinds.append(answer.kind)
            if answer.kind is AnswerKind.NOTICE:
                noticed.set()

        following = asyncio.create_task(follow(Stormy(), receive, random.Random(1)))
        await noticed.wait()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return loop.time()

    try:
        noticed_at = loop.run_until_complete(until_noticed())
    finally:
        loop.close()
    assert noticed_at - storm <= within + 1.0
    assert set(kinds[:-1]) == {AnswerKind.UNKNOWN}
    assert storm / (within + 1.0) - 1.0 <= len(asked) <= storm + 5.0
