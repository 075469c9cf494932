"""Work in threads of its own."""

from __future__ import annotations

import asyncio

import pytest

from gpuwarden.base.threads import detached
from support.threads import no_thread_can_be_started


async def test_what_work_returns_or_raises_is_in_the_future() -> None:
    assert await detached("work", lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await detached("work", lambda: 1 // 0)


async def test_where_no_thread_can_be_started_the_future_has_the_error() -> None:
    with no_thread_can_be_started():
        begun = detached("work", lambda: 7)
    await asyncio.wait((begun,))
    assert "can't start new thread" in str(begun.exception())
