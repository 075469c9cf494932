"""A response written in pieces, so that a client that reads nothing holds one piece and not a copy of the page."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.publish.web import http as web

PIECE = 32 << 10
"""Bytes. asyncio copies data that the kernel does not take: at most 4 MiB for 128 connections."""


class Response(web.StreamResponse):
    """A response whose `body` may be shared with other responses."""

    _send_headers_immediately = False
    """aiohttp's own name: the headers leave with the first piece, in one packet, as those of its `web.Response`."""

    def __init__(
        self, body: bytes, content_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        own = {"Content-Type": content_type, "Content-Length": str(len(body))}
        super().__init__(status=status, headers={**own, **(headers or {})})
        self.body = body

    def pieces(self, method: str) -> list[memoryview]:
        """Return the pieces of the body for a request of this method, at least one; for HEAD it is empty."""
        whole = memoryview(b"" if method == "HEAD" else self.body)
        return [whole[start : start + PIECE] for start in range(0, len(whole) or 1, PIECE)]
