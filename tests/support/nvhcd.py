"""Clients of `gpuwarden nvhcd`: one that asks once, and those that open streams and reset them as fast as they are taken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.encoding.base import CodecBase

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""With empty settings."""
BATCH = 256
"""Streams that a client opens and resets by one write."""
_RESETS = """
import os, socket, struct, sys
path, uid, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if uid:
    os.setgid(uid)
    os.setuid(uid)

def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload

def header(name, value):
    return b"\\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value  # HPACK: literal, never indexed

ASKS = b"\\x83\\x86" + header(b":authority", b"a") + header(b":path", b"/nvhcd.HealthCheckService/RunHealthCheck") + header(b"content-type", b"application/grpc") + header(b"te", b"trailers")
PREFACE = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, 0, b"")
while True:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(PREFACE)
            for first in range(1, 1 << 30, 512):
                client.sendall(b"".join(frame(1, 4, n, ASKS) + frame(3, 0, n, struct.pack(">I", 8)) for n in range(first, first + 512, 2)))
                try:
                    os.write(count, b".")
                except BlockingIOError:
                    pass
                try:
                    while client.recv(1 << 20, socket.MSG_DONTWAIT):
                        pass
                    break
                except BlockingIOError:
                    pass
    except OSError:
        pass
"""


class Bytes(CodecBase):
    """A codec that leaves messages as they are."""

    __content_subtype__ = "proto"

    def encode(self, message: bytes, message_type: type[bytes]) -> bytes:
        return message

    def decode(self, data: bytes, message_type: type[bytes]) -> bytes:
        return data


async def asked(path: Path, request: bytes = b"", *, method: str = METHOD, patience: float = 60.0) -> bytes:
    """The message of the response to one client of its own, as ft_launcher makes one for each request. Raises GRPCError."""
    async with Channel(path=str(path), codec=Bytes()) as channel:
        ask: UnaryUnaryMethod[bytes, bytes] = UnaryUnaryMethod(channel, method, bytes, bytes)
        return await ask(request, timeout=patience)


class Resets:
    """The number of streams that were opened and reset so far, if it is asked for often enough: its pipe holds 64 Ki batches."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._sent = 0

    @property
    def sent(self) -> int:
        with suppress(BlockingIOError):
            while more := len(os.read(self._count, 1 << 16)):
                self._sent += more * BATCH
        return self._sent


@contextmanager
def resets(path: Path, connections: int, uid: int = 0) -> Iterator[Resets]:
    """Run that many processes of user `uid`, each with one connection; one that is closed is opened again."""
    count, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    words = [sys.executable, "-S", "-c", _RESETS, os.fspath(path), str(uid), str(written)]
    clients = [subprocess.Popen(words, pass_fds=(written,)) for _ in range(connections)]
    try:
        yield Resets(count)
        assert [client.poll() for client in clients] == [None] * connections
    finally:
        for client in clients:
            client.kill()
            client.wait()
        os.close(count)
        os.close(written)
