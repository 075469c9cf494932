"""Talking to a Unix socket of the daemon, one line of JSON each way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

PATIENCE = 60.0


@asynccontextmanager
async def client(path: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_unix_connection(path, limit=2**20)
        try:
            yield reader, writer
        finally:
            writer.close()


async def ask(path: Path, line: bytes | dict[str, Any]) -> dict[str, Any]:
    async with client(path) as (reader, writer):
        writer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        answer = json.loads(await reader.readline())
    assert isinstance(answer, dict)
    return answer
