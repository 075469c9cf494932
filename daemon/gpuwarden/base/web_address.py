"""Validates addresses of HTTP servers without loading an HTTP client, because configuration is read before."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,2000}")


def address_fault(url: str, *, query: bool = False) -> str:
    """Return the fault of an address, or "". `query`: whether it may have one."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"expected an address such as https://host.example, found {url[:60]!r}: {error}"
    if parts.username is not None or parts.password is not None:
        return "expected an address without user and password, which every user of the host could read: put them into a file"
    plain = _PRINTABLE.fullmatch(url) and not parts.fragment and (query or not parts.query)
    if parts.scheme not in ("http", "https") or not parts.hostname or not plain:
        return f"expected an address such as https://host.example, found {url[:60]!r}"
    return ""
