"""Minimal clients of one HTTP server: one epoll, and only Content-Length is parsed."""

from __future__ import annotations

import select
import socket
import time

BUFFER = 1 << 20


class _Client:
    """A keep-alive connection. `left`: bytes of the present answer that are still to come."""

    __slots__ = ("asked", "left", "request", "socket")

    def __init__(self, port: int, request: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.request = request
        self.left = 0
        self.asked = 0

    def ask(self) -> None:
        self.asked = time.perf_counter_ns()
        self.socket.sendall(self.request)

    def took(self, received: memoryview) -> bool:
        """Return True if the answer is complete."""
        self.left = (self.left or _length(received)) - len(received)
        return self.left == 0


def _length(start: memoryview) -> int:
    """Bytes of the whole answer, from its first piece. Raises RuntimeError for anything but a 200."""
    head, end, _ = bytes(start[:2048]).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 ") or not end:
        raise RuntimeError(f"the server answered {head[:200]!r}")
    return len(head) + len(end) + int(head.partition(b"Content-Length: ")[2].partition(b"\r\n")[0])


def load(port: int, *, clients: int, seconds: float, encoding: str, path: str = "/metrics") -> list[int]:
    """Return the nanoseconds of each request. Each client sends its next request once the response is complete."""
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: {encoding}\r\n\r\n".encode()
    here = {client.socket.fileno(): client for client in (_Client(port, request) for _ in range(clients))}
    buffer = memoryview(bytearray(BUFFER))
    took: list[int] = []
    with select.epoll() as poll:
        end = time.perf_counter_ns() + int(seconds * 1e9)
        for descriptor, client in here.items():
            poll.register(descriptor, select.EPOLLIN)
            client.ask()
        while here:
            for descriptor, _ in poll.poll(10):
                client = here[descriptor]
                received = client.socket.recv_into(buffer)
                if not received:
                    raise RuntimeError("the server closed a connection in mid-response")
                if not client.took(buffer[:received]):
                    continue
                now = time.perf_counter_ns()
                took.append(now - client.asked)
                if now < end:
                    client.ask()
                else:
                    poll.unregister(descriptor)
                    here.pop(descriptor).socket.close()
    return took
