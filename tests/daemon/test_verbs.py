"""The history that the daemon tells: from the ledger, whoever else asks at the same time."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpuwarden.health.inventory import accept
from gpuwarden.health.model import Event, EventKind
from gpuwarden.health.view import Sight
from gpuwarden.ledger.store import Entry, Store
from gpuwarden.publish.unix_socket import Peer
from gpuwarden.verbs import Verbs
from gpuwarden_collectors.base import host_clock
from support.hosts import slot
from support.whole_hosts import WholeHost, port


def event(wall_offset: float = 0.0) -> Event:
    now = host_clock()
    at = type(now)(now.boottime, now.wall + wall_offset)
    return Event(kind=EventKind.STARTED, at=at, boot_id="b1")


def verbs(ledger: Path, *recent: Event) -> Verbs:
    service: Any = SimpleNamespace(recent=deque(recent))
    return Verbs(service, ledger, None, host_clock)


async def test_many_who_ask_at_once_all_hear_the_whole_history(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "ledger.db", now=0.0)
    store.append([Entry(events=tuple(event(-3600.0) for _ in range(20)))])
    store.close()
    asked = verbs(tmp_path / "ledger.db", event())
    answers = await asyncio.gather(*(asked.events_since(0.0, 100) for _ in range(8)))
    assert [len(answer) for answer in answers] == [20] * 8


async def test_without_a_ledger_what_is_still_in_memory_is_told(tmp_path: Path) -> None:
    asked = verbs(tmp_path / "ledger.db", event(-3600.0), event())
    assert len(await asked.events_since(host_clock().wall - 60.0, 100)) == 1


async def test_what_was_accepted_is_named_by_what_became_less_of_it(tmp_path: Path) -> None:
    host = WholeHost(3)
    host.ports(port("mlx5_0"), port("mlx5_1"))
    host.run(30)
    host.change(1, pcie_width=8)
    host.gpus[2] = replace(host.gpus[2], links=host.gpus[2].links[:4])
    host.ports(port("mlx5_0", rate_gbps=200.0))
    host.run(30)
    events = accept(host.state, Sight.of(host.view, host.rules, host.now))
    desk = SimpleNamespace(accept_inventory=lambda _: events)
    service: Any = SimpleNamespace(desk=desk, record=lambda _: None, recent=deque(), hook_asked=lambda: None)
    asked = Verbs(service, tmp_path / "ledger.db", None, host_clock)
    assert await asked.table()["accept"]({}, Peer(pid=1, uid=0, groups=frozenset())) == {
        "given_up": ["mlx5_1/1"], "slower": ["mlx5_0/1"], "fewer_links": [slot(2)], "narrower": [slot(1)],
    }  # fmt: skip
