"""Clients that connect, begin to send something and never end: a process of their own, so that their work is nobody else's.

`python half_open.py PORT COUNT DRIP_HEX SENT_HEX…`: prints a line once all are there; goes on until its standard input ends.
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys

DRIP_EVERY = 0.25  # seconds between two bytes of one client


def main() -> None:
    port, count, drip, *sent = sys.argv[1:]
    clients = []
    for number in range(int(count)):
        client = socket.create_connection(("127.0.0.1", int(port)), timeout=60)
        client.sendall(bytes.fromhex(sent[number % len(sent)]))
        client.setblocking(False)
        clients.append(client)
    sys.stdout.write("here\n")
    sys.stdout.flush()
    while not select.select([sys.stdin], [], [], DRIP_EVERY)[0]:
        for client in clients:
            with contextlib.suppress(OSError):  # it had to make room
                client.send(bytes.fromhex(drip))


if __name__ == "__main__":
    main()
