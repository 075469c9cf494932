"""A response written in pieces, so that a client that reads nothing holds one piece and not a copy of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuwarden.publish.web import http as web

PIECE = 32 << 10
"""Bytes. asyncio copies data that the kernel does not take: at most 4 MiB for 128 connections."""


class Response(web.StreamResponse):
    """A response whose `body` may be shared with other responses."""

    def __init__(
        self, body: bytes, content_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status=status, headers={"Content-Type": content_type, **(headers or {})})
        self.body = body
        self.content_length = len(body)

    def pieces(self, method: str) -> Iterator[memoryview]:
        """Yield the pieces of the body for a request of this method, none for HEAD."""
        whole = memoryview(b"" if method == "HEAD" else self.body)
        for start in range(0, len(whole), PIECE):
            yield whole[start : start + PIECE]
