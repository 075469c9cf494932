"""A response that is handed to its connection piece by piece, so that a client that reads nothing holds a piece and not a copy of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuwarden.publish.web import http as web

PIECE = 32 << 10
"""Bytes. asyncio keeps a copy of what the kernel does not take: 128 connections then hold 4 MiB, whatever the size of their page."""


class Response(web.StreamResponse):
    """A response. Its `body` may be shared with any number of other responses."""

    def __init__(
        self, body: bytes, content_type: str, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status=status, headers={"Content-Type": content_type, **(headers or {})})
        self.body = body
        self.content_length = len(body)

    def pieces(self, method: str) -> Iterator[memoryview]:
        """Yields the pieces of the body that a request of this method is sent, none for HEAD."""
        whole = memoryview(b"" if method == "HEAD" else self.body)
        for start in range(0, len(whole), PIECE):
            yield whole[start : start + PIECE]
