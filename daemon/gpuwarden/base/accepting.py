"""Connections as they are accepted: the one implementation for all listening sockets of the daemon."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

AT_ONCE = 16
"""Connections accepted in one turn of the loop: a crowd that connects again and again leaves turns for those that ask. Measured beside
one client that does so: with 128 no TLS handshake came to its end, with 16 each did.
"""
_EXHAUSTED = 1.0  # seconds until the next try where no connection can be accepted: file descriptors are used up


async def accepted(listener: socket.socket) -> AsyncIterator[tuple[socket.socket, Any]]:
    """Yield each connection with the address of its peer, until cancelled."""
    loop = asyncio.get_running_loop()
    for number in count(1):
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)  # as long as connections are ready nothing below gives others a turn
        try:
            connection = await loop.sock_accept(listener)
        except ConnectionError:  # the peer has left
            continue
        except OSError:
            await asyncio.sleep(_EXHAUSTED)
            continue
        yield connection
