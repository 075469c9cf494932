"""Clients that connect, begin a TLS handshake, and connect again: a process of their own, so that their work is nobody else's.

`python flood.py PORT OPEN SENT_HEX`: prints a line after the first OPEN; goes on, each new one in the place of the oldest, until its standard input ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
from collections import deque


def main() -> None:
    port, most, sent = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
    clients: deque[socket.socket] = deque()
    announced = False
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(16):
            if len(clients) >= most:
                clients.popleft().close()
                if not announced:
                    announced = True
                    sys.stdout.write("here\n")
                    sys.stdout.flush()
            client = socket.socket()
            client.setblocking(False)
            with contextlib.suppress(OSError):
                client.connect(("127.0.0.1", port))
            if select.select([], [client], [], 0.05)[1]:
                with contextlib.suppress(OSError):
                    client.send(sent)
            clients.append(client)


if __name__ == "__main__":
    main()
