"""Tencent Cloud: the end of spot instances. Its times are UTC+8 but do not name the zone."""

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
from gpuwarden_collectors.facts import Stamp

NAME = "tencent"
ZONE = 8 * 3600.0
"""Offset in seconds east of UTC of its times, which name no zone."""
_BASE = "/latest/meta-data/"
_INSTANCE = re.compile(r"ins-[0-9a-z]{4,40}", re.ASCII)


class Tencent:
    name = NAME

    def __init__(self, metadata: Metadata, clock: Clock, interval: float = 1.0) -> None:
        self._metadata = metadata
        self._clock = clock
        self.questions: Sequence[Question] = (
            Question(name="spot", kind=Kind.INTERRUPTION, ask=self._ask, interval=interval, main=True),
        )

    async def _ask(self) -> Answer:
        try:
            reply = await self._metadata.get(f"{_BASE}spot/termination-time")
        except MetadataError as error:
            return unknown(str(error))
        return spot(reply, self._clock())

    async def confirm(self) -> str:
        return await unconfirmed(self._metadata.get, f"{_BASE}instance-id", _INSTANCE, "Tencent Cloud")

    async def close(self) -> None:
        await self._metadata.close()


def spot(reply: Reply, at: Stamp) -> Answer:
    return spot_at(reply, at, NAME, ZONE)
