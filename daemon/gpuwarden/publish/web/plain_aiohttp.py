"""Imports aiohttp for servers and for requests without TLS, without the trusted certificates of this host.

At import aiohttp reads them twice for its client: 50 ms and 2 MiB (docs/develop/decisions.md). The daemon uses that
client only for metadata services, which have no TLS; with TLS it would trust no server. Import before any thread runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _trusting_nobody() -> Iterator[None]:
    """Hide the trusted certificates from OpenSSL meanwhile, through its environment variables."""
    places = ("SSL_CERT_FILE", "SSL_CERT_DIR")
    before = {name: os.environ[name] for name in places if name in os.environ}
    os.environ.update(dict.fromkeys(places, os.devnull))
    try:
        yield
    finally:
        for name in places:
            del os.environ[name]
        os.environ.update(before)


with _trusting_nobody():
    import aiohttp  # noqa: F401 - for its side effects at the first import
