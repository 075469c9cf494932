"""EC2: interruption of spot instances, rebalance recommendations, scheduled maintenance, scale-in of a group.

The service announces neither a termination by a user or the API nor the end of a Capacity Block: see docs/use/termination.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import (
    NONE,
    REASON_MOST,
    Answer,
    AnswerKind,
    Kind,
    TerminationNotice,
    answer,
    clean,
    identity,
    unknown,
)
from gpuwarden_collectors.cloud.instance_id import unconfirmed
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError
from gpuwarden_collectors.cloud.reply import Reply, ReplyError, choice_of, listing, mapping, text_of, time_of
from gpuwarden_collectors.cloud.source import Question
from gpuwarden_collectors.cloud.tokens import TokenHeaders, TokenMetadata
from gpuwarden_collectors.facts import Stamp

NAME = "aws"
_BASE = "/latest/meta-data"
_HEADERS = TokenHeaders("X-aws-ec2-metadata-token-ttl-seconds", "X-aws-ec2-metadata-token")
_INSTANCE = re.compile(r"i-[0-9a-f]{8,32}")
_ACTIONS = ("terminate", "stop", "hibernate")
_CODES = {
    "instance-stop": True,
    "instance-retirement": True,
    "instance-reboot": True,
    "system-reboot": True,
    "system-maintenance": False,
}
"""Codes of scheduled events, and whether the machine goes down."""
_ENDED = ("[Canceled]", "[Completed]")
_STAYS = re.compile(r"InService|Standby|Detached|Warmed:Running")
_LEAVES = {
    "Terminated": ("Terminated", "the Auto Scaling group terminates this instance"),
    "Warmed:Terminated": ("Terminated", "the Auto Scaling group terminates this instance"),
    "Warmed:Stopped": ("Stopped", "the Auto Scaling group stops this instance, into its warm pool"),
    "Warmed:Hibernated": ("Hibernated", "the Auto Scaling group hibernates this instance, into its warm pool"),
}
"""States in which no job survives, each with its name in the notice and the reason. An instance enters the warm pool on
its first boot, and at a scale-in if the group's reuse policy is set so."""


class Aws:
    """Amazon EC2. `interval` is the seconds between two requests of the main question."""

    name = NAME

    def __init__(self, metadata: Metadata, clock: Clock, interval: float = 1.0) -> None:
        self._session = TokenMetadata(metadata, _HEADERS, clock)
        self._clock = clock
        self._interval = interval

    @property
    def questions(self) -> Sequence[Question]:
        rows = (
            ("spot", Kind.INTERRUPTION, "/spot/instance-action", spot, self._interval, True),
            ("rebalance", Kind.REBALANCE, "/events/recommendations/rebalance", rebalance, 5.0, False),
            ("maintenance", Kind.MAINTENANCE, "/events/maintenance/scheduled", maintenance, 60.0, False),
            ("lifecycle", Kind.SCALE_IN, "/autoscaling/target-lifecycle-state", lifecycle, 2.0, False),
        )
        return [
            Question(name=name, kind=kind, ask=self._reader(path, read), interval=interval, main=main)
            for name, kind, path, read, interval, main in rows
        ]

    def _reader(self, path: str, read: Callable[[Reply, Stamp], Answer]) -> Callable[[], Any]:
        async def ask() -> Answer:
            try:
                reply = await self._session.get(_BASE + path)
            except MetadataError as error:
                return unknown(str(error))
            parsed = read(reply, self._clock())
            if parsed.kind is AnswerKind.UNKNOWN and self._session.error:
                return unknown(f"{parsed.error}; {self._session.error}")
            return parsed

        return ask

    async def confirm(self) -> str:
        why = await unconfirmed(self._session.get, f"{_BASE}/instance-id", _INSTANCE, "EC2")
        return f"{why} {self._session.error}".strip() if why else ""

    async def close(self) -> None:
        await self._session.close()


def spot(reply: Reply, at: Stamp) -> Answer:
    if reply.status == 404:
        return NONE
    try:
        reply.expect()
        document = mapping(reply.json())
        action = choice_of(document, "action", _ACTIONS)
        deadline = reply.deadline(time_of(document, "time"), at)
    except ReplyError as error:
        return unknown(f"spot/instance-action: {error}")
    notice = TerminationNotice(
        source=NAME,
        kind=Kind.INTERRUPTION,
        id=identity("spot", action),
        hard=True,
        deadline=deadline,
        reason=f"spot interruption: {action}",
    )
    return answer((notice,))


def rebalance(reply: Reply, _: Stamp) -> Answer:
    """Parses a rebalance recommendation. Its time is when it was issued, not when the machine ends."""
    if reply.status == 404:
        return NONE
    try:
        reply.expect()
        time_of(mapping(reply.json()), "noticeTime")
    except ReplyError as error:
        return unknown(f"recommendations/rebalance: {error}")
    return answer(
        (
            TerminationNotice(
                source=NAME,
                kind=Kind.REBALANCE,
                id=identity("rebalance", "recommendation"),
                hard=False,
                reason="rebalance recommendation: an interruption has become likely",
            ),
        )
    )


def maintenance(reply: Reply, at: Stamp) -> Answer:
    """Parses scheduled events one by one, so that an unreadable event does not hide the others."""
    if reply.status == 404:
        return NONE
    try:
        reply.expect()
        items = listing(reply.json())
    except ReplyError as error:
        return unknown(f"maintenance/scheduled: {error}")
    by_id: dict[str, TerminationNotice] = {}
    problem = ""
    for item in items[:64]:
        try:
            notice = _event(mapping(item), reply, at)
        except ReplyError as error:
            problem = f"maintenance/scheduled: {error}"
        else:
            if notice is not None and (notice.id not in by_id or _earlier(notice, by_id[notice.id])):
                by_id[notice.id] = notice
    return answer(tuple(by_id.values()), problem)


def _event(item: Any, reply: Reply, at: Stamp) -> TerminationNotice | None:
    state = choice_of(item, "State", ("active", "completed", "canceled"))
    description = item.get("Description")
    text = clean(description, REASON_MOST) if isinstance(description, str) else ""
    if state != "active" or text.startswith(_ENDED):
        return None
    code = choice_of(item, "Code", _CODES)
    deadline = reply.deadline(time_of(item, "NotBefore"), at, past_most=30 * 86_400.0)  # events stay active after that
    return TerminationNotice(
        source=NAME,
        kind=Kind.MAINTENANCE,
        id=identity("maintenance", text_of(item, "EventId")),
        hard=_CODES[code],
        deadline=deadline,
        reason=clean(f"{code}: {text}", REASON_MOST),
    )


def _earlier(notice: TerminationNotice, other: TerminationNotice) -> bool:
    return notice.deadline is not None and other.deadline is not None and notice.deadline < other.deadline


def lifecycle(reply: Reply, _: Stamp) -> Answer:
    """Parses the lifecycle state. The group's hooks determine when the machine ends; the metadata does not show it."""
    if reply.status == 404:
        return NONE
    try:
        reply.expect()
        state = reply.text()
    except ReplyError as error:
        return unknown(f"target-lifecycle-state: {error}")
    if _STAYS.fullmatch(state):
        return NONE
    if state not in _LEAVES:
        return unknown(f"target-lifecycle-state: {state[:40]!r}")
    name, reason = _LEAVES[state]
    return answer(
        (TerminationNotice(source=NAME, kind=Kind.SCALE_IN, id=identity("lifecycle", name), hard=True, reason=reason),)
    )
