"""Client and asyncio server of gpuwarden's services that systemd starts for each connection to their socket.

One request a connection: a JSON object on a line. The answer is one such object, or several. All of it is bounded in size and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from gpuwarden.base.json_text import parsed_object

Document = Mapping[str, Any]

CONNECTED_WITHIN = 5.0
REQUEST_WITHIN = 5.0
_LINES_MOST = 10_000


class NoAnswer(Exception):  # noqa: N818 - a state of the host
    """The service gives no answer. The message says why and what to do."""


class NotBegun(NoAnswer):
    """The service cannot be reached: nothing was sent, and nothing began."""


class NoService(NotBegun):
    """There is no such socket."""


# --- who asks


async def answer_of(path: Path, request: Document, within: float, *, unit: str, most: int) -> Document:
    """Send one request and return the first object of its answer. Raises NoAnswer, also for an answer without one."""
    async with contextlib.aclosing(answers_of(path, request, within, unit=unit, most=most)) as answers:
        async for answer in answers:
            return answer
    raise _no_result(path, unit)


async def answers_of(
    path: Path, request: Document, within: float, *, unit: str, most: int
) -> AsyncGenerator[Document, None]:
    """Send one request and yield the objects of its answer, all within so many seconds. Raises NoAnswer.

    `unit`: what the units of the service are called, without what follows `@` or the dot. `most`: bytes of one object.
    """
    loop = asyncio.get_running_loop()
    until = loop.time() + within
    reader, writer = await _connected(path, unit, most)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        for _ in range(_LINES_MOST):
            try:
                async with asyncio.timeout_at(until):
                    line = await reader.readline()
            except TimeoutError:
                raise NoAnswer(f"{path} has not answered within {within:g} s") from None
            except OSError as error:
                raise NoAnswer(f"cannot read the answer of {path}: {error.strerror or error}") from None
            except ValueError:  # it is too long
                raise _no_result(path, unit) from None
            if not line:
                return
            yield _document(path, unit, line)
    finally:
        writer.close()


async def _connected(path: Path, unit: str, most: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    try:
        async with asyncio.timeout(CONNECTED_WITHIN):
            return await asyncio.open_unix_connection(path, limit=most)
    except TimeoutError:
        raise NotBegun(f"{path} does not take connections: systemctl status {unit}.socket") from None
    except FileNotFoundError:
        raise NoService(f"{path} does not exist: systemctl enable --now {unit}.socket") from None
    except OSError as error:
        raise NotBegun(f"cannot use {path}: {error.strerror or error}; systemctl status {unit}.socket") from None


def _document(path: Path, unit: str, line: bytes) -> Document:
    if (document := parsed_object(line)) is None:
        raise _no_result(path, unit)
    return document


def _no_result(path: Path, unit: str) -> NoAnswer:
    return NoAnswer(f"{path} gave no result; see the journal of {unit}@")


# --- who answers

Answered = Callable[[Document, asyncio.StreamReader], Awaitable[Document | None]]
"""Returns the answer to a request; None sends none. A malformed request is passed as an empty one. The reader reaches
its end when the client closes the connection."""


def serve(connection: socket.socket, answered: Answered, *, most: int) -> None:
    """Answer the one request of `connection`. `most`: bytes of a request."""
    asyncio.run(_served(connection, answered, most))


async def _served(connection: socket.socket, answered: Answered, most: int) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=connection, limit=most)
    try:
        answer = await answered(await _request(reader), reader)
        if answer is not None:
            with contextlib.suppress(OSError):
                writer.write(json.dumps(answer).encode())
                await writer.drain()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()  # the rest of a long answer is sent by then


async def _request(reader: asyncio.StreamReader) -> Document:
    """Return the request; empty if it is malformed or does not arrive in time."""
    with contextlib.suppress(TimeoutError, ValueError, RecursionError):
        async with asyncio.timeout(REQUEST_WITHIN):
            request = json.loads(await reader.readline())
            return request if isinstance(request, dict) else {}
    return {}
