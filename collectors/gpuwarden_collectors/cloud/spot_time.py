"""Alibaba Cloud and Tencent Cloud: both announce the end of a spot instance by an answer that consists of one time.

The address of Alibaba's service is in the range that overlay networks use too. Tencent's times are UTC+8 but do not
name the zone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import NONE, Answer, Kind, TerminationNotice, answer, identity, unknown
from gpuwarden_collectors.cloud.instance_id import unconfirmed
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError
from gpuwarden_collectors.cloud.reply import Reply, ReplyError
from gpuwarden_collectors.cloud.source import Question
from gpuwarden_collectors.cloud.times import TimeError, parse_time
from gpuwarden_collectors.cloud.tokens import TokenHeaders, TokenMetadata
from gpuwarden_collectors.facts import Stamp

_BASE = "/latest/meta-data/"


class _SpotTime:
    """The part that both share.

    `instance`: the form of an instance's id; `of`: the service, for messages; `zone`: the offset in seconds east of UTC
    of a time without a zone.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    instance: ClassVar[re.Pattern[str]]
    of: ClassVar[str]
    zone: ClassVar[float | None] = None

    def __init__(self, metadata: Metadata, clock: Clock, interval: float = 1.0) -> None:
        self._session: Metadata | TokenMetadata = metadata
        self._clock = clock
        self.questions: Sequence[Question] = (
            Question(name="spot", kind=Kind.INTERRUPTION, ask=self._ask, interval=interval, main=True),
        )

    async def _ask(self) -> Answer:
        try:
            reply = await self._session.get(_BASE + self.path)
        except MetadataError as error:
            return unknown(str(error))
        return self.spot(reply, self._clock())

    async def confirm(self) -> str:
        return await unconfirmed(self._session.get, f"{_BASE}instance-id", self.instance, self.of)

    async def close(self) -> None:
        await self._session.close()

    @classmethod
    def spot(cls, reply: Reply, at: Stamp) -> Answer:
        """Parses the end of a spot machine; a status 404 or an empty answer means no notice."""
        if reply.status == 404:
            return NONE
        try:
            reply.expect()
            text = reply.text()
            if not text:
                return NONE
            deadline = reply.deadline(parse_time(text, cls.zone), at)
        except (ReplyError, TimeError) as error:
            return unknown(f"spot/termination-time: {error}")
        name, kind, reason = identity("spot", "termination"), Kind.INTERRUPTION, "spot interruption"
        notice = TerminationNotice(source=cls.name, kind=kind, id=name, hard=True, deadline=deadline, reason=reason)
        return answer((notice,))


class Tencent(_SpotTime):
    name = "tencent"
    path = "spot/termination-time"
    instance = re.compile(r"ins-[0-9a-z]{4,40}", re.ASCII)
    of = "Tencent Cloud"
    zone = 8 * 3600.0


class Alibaba(_SpotTime):
    """A service with a token for each request. Its times name their zone."""

    name = "alibaba"
    path = "instance/spot/termination-time"
    instance = re.compile(r"(?:i|eci|hbm)-[0-9a-z]{8,40}", re.ASCII)
    of = "ECS"
    headers = TokenHeaders("X-aliyun-ecs-metadata-token-ttl-seconds", "X-aliyun-ecs-metadata-token")

    def __init__(self, metadata: Metadata, clock: Clock, interval: float = 1.0) -> None:
        self._tokens = TokenMetadata(metadata, self.headers, clock)
        super().__init__(metadata, clock, interval)
        self._session = self._tokens

    async def confirm(self) -> str:
        why = await super().confirm()
        return f"{why} {self._tokens.error}".strip() if why else ""
