"""Imports aiohttp, for servers and for requests without TLS: it has none of the certificates that this host trusts.

When it is imported, aiohttp reads them twice, for the TLS of its client: 50 ms and 2 MiB (docs/develop/decisions.md). The daemon uses
that client for metadata services only, which have no TLS; over TLS it would find that it trusts nobody. To be imported before any thread runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def _trusting_nobody() -> Iterator[None]:
    """Have OpenSSL find no certificates meanwhile, by the variables that it has for that."""
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
    import aiohttp  # noqa: F401 - for what it does once
