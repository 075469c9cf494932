"""Alibaba Cloud: release of preemptible instances. The address is in the range that overlay networks use too."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.facts import Answer, Kind, unknown
from gpuwarden_collectors.cloud.instance_id import unconfirmed
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError
from gpuwarden_collectors.cloud.reply import Reply
from gpuwarden_collectors.cloud.source import Question
from gpuwarden_collectors.cloud.spot_time import spot_at
from gpuwarden_collectors.cloud.tokens import TokenHeaders, TokenMetadata
from gpuwarden_collectors.facts import Stamp

NAME = "alibaba"
_BASE = "/latest/meta-data/"
_HEADERS = TokenHeaders("X-aliyun-ecs-metadata-token-ttl-seconds", "X-aliyun-ecs-metadata-token")
_INSTANCE = re.compile(r"(?:i|eci|hbm)-[0-9a-z]{8,40}", re.ASCII)


class Alibaba:
    name = NAME

    def __init__(self, metadata: Metadata, clock: Clock, interval: float = 1.0) -> None:
        self._session = TokenMetadata(metadata, _HEADERS, clock)
        self._clock = clock
        self.questions: Sequence[Question] = (
            Question(name="spot", kind=Kind.INTERRUPTION, ask=self._ask, interval=interval, main=True),
        )

    async def _ask(self) -> Answer:
        try:
            reply = await self._session.get(f"{_BASE}instance/spot/termination-time")
        except MetadataError as error:
            return unknown(str(error))
        return spot(reply, self._clock())

    async def confirm(self) -> str:
        why = await unconfirmed(self._session.get, f"{_BASE}instance-id", _INSTANCE, "ECS")
        return f"{why} {self._session.error}".strip() if why else ""

    async def close(self) -> None:
        await self._session.close()


def spot(reply: Reply, at: Stamp) -> Answer:
    return spot_at(reply, at, NAME)
