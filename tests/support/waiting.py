"""Waiting for what happens by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PATIENCE = 150.0
"""Seconds, for what takes milliseconds on an idle machine."""


async def until(condition: Callable[[], object]) -> None:
    """Return when `condition` holds. Raises TimeoutError after `PATIENCE` seconds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.005)
