"""kubelet's PodResourcesLister: grpclib's server on a Unix socket, with answers as kubelet 1.36.2 gives them (tests/data/kubelet) and as
the proto of v1 allows.

Answers are written here byte by byte, with what gpuwarden does not read beside what it does: topology, packed CPU numbers, memory, and
fields that no version has yet. Each device is in a message of its own, as kubelet's are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpclib.const import Cardinality, Handler, Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError
from grpclib.protocol import H2Protocol
from grpclib.server import Server, Stream

from support.loops import loop_in_thread


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*encoded, value))


def part(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


TOPOLOGY = part(1, number(1, 1))
UNKNOWN = part(90, "of tomorrow") + number(91, 2**63) + b"\xe1\x05" + b"\0" * 8 + b"\xed\x05" + b"\0" * 4
"""A text, a number, 64 and 32 bits (fields 92 and 93), as a later kubelet may send."""


def devices(resource: str, *ids: str) -> list[bytes]:
    return [part(1, resource) + part(2, device_id) + part(3, TOPOLOGY) + UNKNOWN for device_id in ids]


def together(resource: str, *ids: str) -> list[bytes]:
    """Devices in one message, which the proto allows."""
    return [part(1, resource) + b"".join(part(2, device_id) for device_id in ids) + part(3, TOPOLOGY) + UNKNOWN]


def container(name: str, *device_lists: list[bytes], claims: int = 0) -> bytes:
    cpus = part(3, b"".join(varint(n) for n in range(300)))
    memory = part(4, part(1, "memory") + number(2, 1 << 34) + part(3, TOPOLOGY))
    claimed = b"".join(part(5, part(2, f"claim-{n}")) for n in range(claims))
    return (
        part(1, name)
        + b"".join(part(2, device) for some in device_lists for device in some)
        + cpus
        + memory
        + claimed
        + UNKNOWN
    )


def pod(namespace: str, name: str, *containers: bytes) -> bytes:
    return UNKNOWN + part(1, name) + part(2, namespace) + b"".join(part(3, message) for message in containers)


def answer(*pods: bytes) -> bytes:
    return b"".join(part(1, message) for message in pods)


def training(name: str, *ids: str, resource: str = "nvidia.com/gpu") -> bytes:
    """A pod whose container `main` has these devices."""
    return pod("team-a", name, container("main", devices(resource, *ids)), container("sidecar"))


@dataclass
class Kubelet:
    """What it answers may be changed at any time. `status`: an error instead; `hangs`: nothing at all."""

    socket: Path
    response: bytes = b""
    status: Status | None = None
    hangs: bool = False
    compressed: bool = False
    """It says so of its answer, which it may only where the client has offered that."""
    asked: int = 0
    loop: asyncio.AbstractEventLoop | None = None
    _server: _Server | None = None

    def __mapping__(self) -> dict[str, Handler]:
        return {"/v1.PodResourcesLister/List": Handler(self._list, Cardinality.UNARY_UNARY, bytes, bytes)}

    async def _list(self, stream: Stream[Any, Any]) -> None:
        assert await stream.recv_message() == b""
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(3600)
        if self.status is not None:
            raise GRPCError(self.status, "of the test")
        if self.compressed:
            await stream.send_initial_metadata()
            await stream._stream.send_data(b"\1" + len(self.response).to_bytes(4, "big") + self.response)
            return
        await stream.send_message(self.response)

    def start(self) -> None:
        """Listen on a new inode, whatever is there."""
        self.socket.unlink(missing_ok=True)
        self._do(self._begun())

    def stop(self) -> None:
        """Stop like a kubelet that dies: the socket stays, and nobody listens."""
        if self._server is not None:
            self._do(self._ended(self._server))
            self._server = None
        self.socket.touch()

    async def _begun(self) -> None:
        self._server = _Server([self], codec=_Plain())  # on the loop that it is made on
        await self._server.start(path=str(self.socket))

    async def _ended(self, server: _Server) -> None:
        server.close()
        for connection in server.connections:
            connection.connection.close()
        await asyncio.sleep(0.01)  # in the next turns of the loop their sockets are closed
        await server.wait_closed()  # from Python 3.13 on for the connections, too

    def _do(self, work: Any) -> None:
        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(work, self.loop).result(60)


class _Server(Server):
    """Knows its connections, which grpclib leaves open."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.connections: list[H2Protocol] = []

    def _protocol_factory(self) -> H2Protocol:
        self.connections.append(super()._protocol_factory())
        return self.connections[-1]


class _Plain(CodecBase):
    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: Any) -> bytes:
        return message

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


@contextlib.contextmanager
def kubelet(socket: Path, response: bytes = b"") -> Iterator[Kubelet]:
    """Run a kubelet in a thread of its own."""
    with loop_in_thread() as loop:
        made = Kubelet(socket, response, loop=loop)
        made.start()
        try:
            yield made
        finally:
            made.stop()
