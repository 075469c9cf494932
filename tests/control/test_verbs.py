"""The history that the daemon returns: from the ledger, also for concurrent requests."""

from __future__ import annotations

import asyncio
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpuwarden.base.peer import Peer
from gpuwarden.control.handlers import Verbs
from gpuwarden.health.model import Event, EventKind
from gpuwarden.ledger.store import Entry, Store
from gpuwarden.publish.metrics.exposition import Holder, Renderer
from gpuwarden_collectors.base import host_clock
from support.snapshots import snapshot


def event(wall_offset: float = 0.0) -> Event:
    now = host_clock()
    at = type(now)(now.boottime, now.wall + wall_offset)
    return Event(kind=EventKind.STARTED, at=at, boot_id="b1")


def verbs(ledger: Path, *recent: Event) -> Verbs:
    service: Any = SimpleNamespace(journal=SimpleNamespace(recent=deque(recent)), ledger=SimpleNamespace(commit=None))
    return Verbs(service, ledger, None, host_clock)


async def test_concurrent_requests_all_get_the_whole_history(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "ledger.db", now=0.0)
    store.append([Entry(events=tuple(event(-3600.0) for _ in range(20)))])
    store.close()
    asked = verbs(tmp_path / "ledger.db", event())
    answers = await asyncio.gather(*(asked.events_since(0.0, 100) for _ in range(8)))
    assert [len(answer) for answer in answers] == [20] * 8


async def test_an_operator_is_told_where_the_ledger_is(tmp_path: Path) -> None:
    asked = verbs(tmp_path / "ledger.db")
    asked._service.holder = Holder(Renderer(), snapshot())
    answer = await asked.table()["status"]({}, Peer(1, 0, frozenset({0})))
    assert answer["state_dir"] == str(tmp_path)


async def test_without_a_ledger_events_still_in_memory_are_returned(tmp_path: Path) -> None:
    asked = verbs(tmp_path / "ledger.db", event(-3600.0), event())
    assert len(await asked.events_since(host_clock().wall - 60.0, 100)) == 1
