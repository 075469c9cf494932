"""The parts of sd_notify(3) and sd_listen_fds(3) that the daemon needs.

Removes all their variables from the environment, so that no child notifies in the daemon's name.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Self

_FIRST_PASSED = 3  # SD_LISTEN_FDS_START
_PASSED_MOST = 16
_WAITING_MOST = 1024
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceManager:
    """The service manager. With an empty `address` nothing is sent.

    `watchdog`: seconds within which systemd expects a keep-alive, 0 for none. `sockets`: passed listening sockets, by
    the names in their units.
    """

    address: str = ""
    watchdog: float = 0.0
    sockets: dict[str, socket.socket] = field(default_factory=dict)

    @classmethod
    def of(cls, environment: MutableMapping[str, str]) -> Self:
        """Read the variables for this process from `environment`, and remove them, also those for other processes."""
        variables = {name: environment.pop(name, "") for name in _VARIABLES}
        here = str(os.getpid())
        timed = variables["WATCHDOG_PID"] in ("", here)
        return cls(
            address=variables["NOTIFY_SOCKET"],
            watchdog=_number(variables["WATCHDOG_USEC"]) / 1e6 if timed else 0.0,
            sockets=_passed(variables) if variables["LISTEN_PID"] == here else {},
        )

    def turn_away(self) -> None:
        """Close connections waiting on the passed sockets: while one waits, systemd restarts the service at once."""
        for listener in self.sockets.values():
            with contextlib.suppress(OSError):  # no more waiting connections
                for _ in range(_WAITING_MOST):
                    listener.accept()[0].close()

    def send(self, *lines: str) -> None:
        """Send lines such as `READY=1`. Never blocks or raises: without a receiver the message is lost."""
        if not self.address:
            return
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        flags = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, flags) as sender:
            sender.sendto("\n".join(lines).encode(), address)


def _passed(variables: dict[str, str]) -> dict[str, socket.socket]:
    """Return passed listening Unix sockets with unique names; ignore all others."""
    count = min(int(_number(variables["LISTEN_FDS"])), _PASSED_MOST)
    names = variables["LISTEN_FDNAMES"].split(":") if variables["LISTEN_FDNAMES"] else []
    passed: dict[str, socket.socket] = {}
    for name, number in zip(names, range(_FIRST_PASSED, _FIRST_PASSED + count), strict=False):
        os.set_inheritable(number, False)
        sock = socket.socket(fileno=number)
        if sock.family == socket.AF_UNIX and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            sock.setblocking(False)
            passed[name] = sock
    return passed


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
