"""Checks that the metadata service is that of the expected cloud, by the form of the instance id."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from gpuwarden_collectors.cloud.metadata import MetadataError
from gpuwarden_collectors.cloud.reply import Reply, ReplyError


async def unconfirmed(get: Callable[[str], Awaitable[Reply]], path: str, pattern: re.Pattern[str], of: str) -> str:
    """Returns why this is not the metadata service of `of`, or "" if the id at `path` matches `pattern`."""
    try:
        reply = await get(path)
        reply.expect()
        named = pattern.fullmatch(reply.text())
    except (MetadataError, ReplyError) as error:
        return f"the metadata service cannot be confirmed: {error}"
    return "" if named else f"what answers at the endpoint names no instance of {of}"
