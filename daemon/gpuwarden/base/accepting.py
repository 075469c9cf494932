"""Accepts connections, for all listening sockets of the daemon."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

AT_ONCE = 16
"""Connections accepted per iteration of the loop, so that a connection flood does not starve other clients.

Measured with one flooding client: with 128 no TLS handshake completed, with 16 all did.
"""
_EXHAUSTED = 1.0  # seconds until the next attempt if file descriptors are exhausted


async def accepted(listener: socket.socket) -> AsyncIterator[tuple[socket.socket, Any]]:
    """Yield each connection with the address of its peer, until cancelled."""
    loop = asyncio.get_running_loop()
    for number in count(1):
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)  # while connections are ready, nothing below yields to other tasks
        try:
            connection = await loop.sock_accept(listener)
        except ConnectionError:  # the peer has left
            continue
        except OSError:
            await asyncio.sleep(_EXHAUSTED)
            continue
        yield connection
