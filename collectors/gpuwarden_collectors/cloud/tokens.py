"""Session tokens of AWS (IMDSv2) and Alibaba: a PUT returns a token that is sent with every request.

If the service returns none (with a hop limit of 1, the reply does not reach a container), requests are sent without.
A rejected token is fetched again once.
"""

from __future__ import annotations

import asyncio
import re

from gpuwarden_collectors.base import Clock
from gpuwarden_collectors.cloud.metadata import Metadata, MetadataError
from gpuwarden_collectors.cloud.reply import Reply
from gpuwarden_collectors.dataclass import dataclass

PATH = "/latest/api/token"
TTL = 21_600
_MARGIN = 60.0
_WITHOUT_FOR = 60.0
"""Seconds until a token is requested again after the service returned none."""
_TOKEN = re.compile(r"[\x21-\x7e]{1,1024}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TokenHeaders:
    ttl: str
    token: str


class TokenMetadata:
    """The metadata service with tokens: `get` sends one. Raises MetadataError."""

    def __init__(self, metadata: Metadata, names: TokenHeaders, clock: Clock) -> None:
        self._metadata = metadata
        self._names = names
        self._clock = clock
        self._token = ""
        self._good_until = float("-inf")
        self._lock = asyncio.Lock()
        self.error = ""

    async def get(self, path: str) -> Reply:
        token = await self._current()
        reply = await self._ask(path, token)
        if reply.status != 401:
            return reply
        return await self._ask(path, await self._renewed(token))

    async def close(self) -> None:
        await self._metadata.close()

    async def _ask(self, path: str, token: str) -> Reply:
        return await self._metadata.get(path, {self._names.token: token} if token else {})

    async def _current(self) -> str:
        async with self._lock:
            if self._clock().boottime >= self._good_until:
                await self._fetch()
            return self._token

    async def _renewed(self, refused: str) -> str:
        async with self._lock:
            if self._token == refused:  # otherwise another task has already fetched a new one
                await self._fetch()
            return self._token

    async def _fetch(self) -> None:
        """Fetches a token; sets it to "" if the service returns none."""
        self._token, self.error, good_for = "", "", _WITHOUT_FOR
        try:
            reply = await self._metadata.ask(
                "PUT", PATH, {self._names.ttl: str(TTL)}, within=min(1.0, self._metadata.timeout)
            )
        except MetadataError as error:
            self.error = f"no token: {error}"
        else:
            text = reply.body.decode("ascii", "replace").strip(" ") if reply.status == 200 else ""
            if _TOKEN.fullmatch(text):
                self._token, good_for = text, self._lifetime(reply) - _MARGIN
            else:
                self.error = f"no token: PUT {PATH} gave status {reply.status} and nothing usable"
        self._good_until = self._clock().boottime + max(good_for, 1.0)

    def _lifetime(self, reply: Reply) -> float:
        """Seconds for which a token is used, from the reply's TTL header.

        An invalid value counts as 300 s; if the token expires earlier, a 401 renews it.
        """
        text = reply.headers.get(self._names.ttl.lower(), str(TTL))
        return float(min(int(text), TTL)) if text.isascii() and text.isdigit() and len(text) < 9 else 300.0
