"""Operators' orders to a running daemon, each with how its trace is found after a restart."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gpuwarden.cli.parser import TRY_AGAIN
from support.daemons import PATIENCE, FakeHost, Json, RunningDaemon, slots
from support.socket_talk import ask

ACK = f"xid.95@gpu/{slots(2)[1]}"


class Runs(Protocol):
    """A host whose daemon has its sockets in `run_dir`."""

    @property
    def run_dir(self) -> Path: ...


@dataclass(frozen=True, slots=True)
class Order:
    """`prepare`: what must be so before it can be given. `kept`: whether a daemon that was started later knows of it."""

    name: str
    request: Json
    prepare: Callable[[FakeHost, RunningDaemon], None]
    kept: Callable[[RunningDaemon], bool]

    def __str__(self) -> str:
        return self.name


def send(host: Runs, request: Json) -> dict[str, Any]:
    return asyncio.run(ask(host.run_dir / "control.sock", request))


def given(host: Runs, request: Json) -> dict[str, Any]:
    """Send an order, and again as long as a busy disk has not taken it."""
    end = time.monotonic() + PATIENCE
    while (answer := send(host, request)).get("code") == TRY_AGAIN:
        assert time.monotonic() < end, answer
    return answer


def events(daemon: RunningDaemon, kind: str) -> list[Json]:
    document = json.loads(daemon.get("/v1/events")[1])
    return [event for event in document["events"] if event["kind"] == kind]


def _nothing(_: FakeHost, daemon: RunningDaemon) -> None:
    daemon.wait_status("healthy")


def _excluded(host: FakeHost, daemon: RunningDaemon) -> None:
    daemon.wait_status("healthy")
    assert given(host, {"verb": "exclude", "reason": "a fan"})["ok"]


def _announced(host: FakeHost, daemon: RunningDaemon) -> None:
    daemon.wait_status("healthy")
    assert given(host, {"verb": "notify-termination", "within": 3600, "reason": "a fan"})["ok"]


def _latched(host: FakeHost, daemon: RunningDaemon) -> None:
    daemon.wait_status("healthy")
    host.xid(1, 95)
    daemon.wait(
        lambda: any(finding["latched"] for finding in json.loads(daemon.get("/v1/findings")[1])["findings"]),
        "the latch",
    )


def _pulled(host: FakeHost, daemon: RunningDaemon) -> None:
    daemon.wait_status("healthy")
    host.plug(2, missing=frozenset({1}))
    host.fake.vanish(1)
    daemon.wait_status("failure", "gpu_missing")


ORDERS = (
    Order("exclude", {"verb": "exclude", "reason": "a fan"}, _nothing, lambda d: "operator" in str(d.heartbeat()["excluded_by"])),
    Order("restore", {"verb": "restore"}, _excluded, lambda d: "operator" not in str(d.heartbeat()["excluded_by"])),
    Order("ack", {"verb": "ack", "finding": ACK}, _latched, lambda d: bool(events(d, "acknowledged"))),
    Order("accept", {"verb": "accept"}, _pulled, lambda d: bool(events(d, "gpu_unpinned"))),
    Order(
        "notify-termination", {"verb": "notify-termination", "within": 3600, "reason": "a fan"}, _nothing,
        lambda d: bool(events(d, "noticed")),
    ),
    Order(
        "notify-termination --cancel", {"verb": "notify-termination", "cancel": True}, _announced,
        lambda d: bool(events(d, "notice_ended")),
    ),
)  # fmt: skip
