"""Requests to a metadata service over HTTP.

Proxy settings of the environment are ignored: a proxy would see the token, and would return another machine's
metadata. Redirects are not followed. A body has at most `BODY_MOST` bytes and is not decompressed. The time limit
covers the whole exchange, so a slow service costs no more than a silent one. Connections are reused: a request costs
two packets, not ten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp

from gpuwarden_collectors.cloud.reply import BODY_MOST, Reply


class MetadataError(Exception):
    """The service gave no complete answer. The message names the request and the cause."""


class Metadata:
    """The metadata service at `endpoint`, as in `http://169.254.169.254`. `timeout` is in seconds."""

    def __init__(self, endpoint: str, timeout: float = 2.0) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.timeout = timeout
        self._session: aiohttp.ClientSession | None = None

    async def get(self, path: str, headers: Mapping[str, str] | None = None, *, within: float | None = None) -> Reply:
        return await self.ask("GET", path, headers, within=within)

    async def ask(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: bytes | None = None,
        within: float | None = None,
    ) -> Reply:
        """Sends a request and returns the reply. `within`: its time limit in seconds. Raises MetadataError."""
        limit = self.timeout if within is None else within
        request = f"{method} {self.endpoint}{path.partition('?')[0]}"
        try:
            async with asyncio.timeout(limit):
                return await self._exchange(method, path, dict(headers or {}), body)
        except TimeoutError as error:
            raise MetadataError(f"{request}: no answer within {limit:g} s") from error
        except (aiohttp.ClientError, OSError, ValueError, AssertionError) as error:
            text = str(error) or type(error).__name__
            raise MetadataError(f"{request}: {text[:120]}") from error

    async def _exchange(self, method: str, path: str, headers: dict[str, str], body: bytes | None) -> Reply:
        session = self._open()
        async with session.request(
            method, self.endpoint + path, headers=headers, data=body, allow_redirects=False
        ) as response:
            received = bytearray()
            async for chunk in response.content.iter_any():
                received += chunk
                if len(received) > BODY_MOST:
                    response.close()
                    raise MetadataError(f"{method} {self.endpoint}{path}: more than {BODY_MOST} bytes")
            encoding = response.headers.get("Content-Encoding", "identity").lower()
            if encoding not in ("identity", ""):
                raise MetadataError(f"{method} {self.endpoint}{path}: compressed, which was not asked for")
            fields = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, bytes(received), fields)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=4, keepalive_timeout=70.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept-Encoding": "identity", "User-Agent": "gpuwarden"},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                trust_env=False,
                auto_decompress=False,
                max_line_size=4096,
                max_field_size=4096,
            )
        return self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
