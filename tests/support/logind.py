"""A logind of the tests on a message bus of their own: the bus is the real one, logind answers what it is asked and takes inhibitors."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gpuwarden_collectors.cloud import dbus_wire as wire
from gpuwarden_collectors.cloud.dbus_wire import Message

PATIENCE = 60.0
_CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>session</type><listen>unix:path={path}</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*" eavesdrop="false"/><allow own="*"/><allow user="*"/>
<allow receive_sender="*"/></policy></busconfig>
"""


@contextmanager
def message_bus(folder: Path) -> Iterator[Path]:
    """The socket of a dbus-daemon."""
    path, config = folder / "bus", folder / "bus.conf"
    path.unlink(missing_ok=True)
    config.write_text(_CONFIG.format(path=path))
    daemon = subprocess.Popen(
        ["dbus-daemon", f"--config-file={config}", "--nofork", "--nopidfile"], stderr=subprocess.DEVNULL
    )
    end = time.monotonic() + PATIENCE
    while not _listens(path):
        assert daemon.poll() is None, "dbus-daemon did not start"
        assert time.monotonic() < end
        time.sleep(0.01)
    try:
        yield path
    finally:
        daemon.kill()
        daemon.wait()


def _listens(path: Path) -> bool:
    """The socket is there before anybody listens on it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe, suppress(OSError):
        probe.connect(str(path))
        return True
    return False


class Logind(threading.Thread):
    """`refuse`: inhibitors are not given. `delay`: InhibitDelayMaxUSec in seconds."""

    def __init__(self, bus: Path, *, refuse: bool = False, delay: float = 5.0, going_down: bool = False) -> None:
        super().__init__(daemon=True)
        self.refuse = refuse
        self.delay = delay
        self.going_down = going_down
        self.asked: list[str] = []
        self._inhibitors: list[int] = []
        self._ends = False
        self._serial = 0
        self._named = threading.Event()
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(bus))
        self._socket.sendall(b"\0AUTH EXTERNAL " + str(os.geteuid()).encode().hex().encode() + b"\r\n")
        assert self._socket.recv(512).startswith(b"OK")
        self._socket.sendall(b"NEGOTIATE_UNIX_FD\r\n")
        assert self._socket.recv(512).startswith(b"AGREE")
        self._socket.sendall(b"BEGIN\r\n")
        for member, signature, values in (("Hello", "", ()), ("RequestName", "su", ("org.freedesktop.login1", 0))):
            self._send(
                wire.call(
                    self._next(), "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", member,
                    signature, values,
                )
            )  # fmt: skip
        self.start()
        assert self._named.wait(PATIENCE)

    def prepare_for_shutdown(self, *, going_down: bool = True, to: str = "") -> None:
        """`to`: the unique name of the only one who is told."""
        self.going_down = going_down
        self._announce("PrepareForShutdown", going_down, to)

    def prepare_for_sleep(self, *, to: str = "") -> None:
        """The machine is suspended, or hibernates, and comes back."""
        for begins in (True, False):
            self._announce("PrepareForSleep", begins, to)

    def _announce(self, member: str, begins: bool, to: str) -> None:
        fields = {
            1: ("o", "/org/freedesktop/login1"), 2: ("s", "org.freedesktop.login1.Manager"), 3: ("s", member),
        }  # fmt: skip
        if to:
            fields[6] = ("s", to)
        self._send(wire.pack(wire.SIGNAL, self._next(), fields, "b", (begins,)))

    def inhibited(self) -> int:
        """How many hold a shutdown up now: a closed descriptor makes ours readable."""
        held = [fd for fd in self._inhibitors if not select.select([fd], [], [], 0)[0]]
        return len(held)

    def end(self) -> None:
        self._ends = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.join(PATIENCE)
        self._socket.close()
        for fd in self._inhibitors:
            os.close(fd)

    def run(self) -> None:
        data = b""
        while not self._ends:
            try:
                more = self._socket.recv(1 << 16)
            except OSError:
                return
            if not more:
                return
            data += more
            while len(data) >= wire.HEAD and len(data) >= (size := wire.length(data[: wire.HEAD])):
                message, data = wire.unpack(data[:size]), data[size:]
                if message.reply_to == 2:  # the answer to RequestName
                    self._named.set()
                if message.kind == wire.METHOD_CALL:
                    self._answer(message)

    def _answer(self, message: Message) -> None:
        self.asked.append(message.member)
        fields: dict[int, tuple[str, Any]] = {5: ("u", message.serial), 6: ("s", message.sender)}
        if message.member == "Get":
            values = {
                "InhibitDelayMaxUSec": ("t", int(self.delay * 1e6)),
                "PreparingForShutdown": ("b", self.going_down),
            }
            kind, value = values[message.body[1]]
            body = b"\x01" + kind.encode() + b"\0" + (b"\0" * 5 if kind == "t" else b"\0")
            body += value.to_bytes(8 if kind == "t" else 4, "little")
            head = wire.pack(wire.METHOD_RETURN, self._next(), {**fields, 8: ("g", "v")})
            self._send(head[:4] + len(body).to_bytes(4, "little") + head[8:] + body)
        elif self.refuse:
            error = {**fields, 4: ("s", "org.freedesktop.DBus.Error.AccessDenied")}
            self._send(wire.pack(wire.ERROR, self._next(), error, "s", ("Permission denied",)))
        else:
            ours, theirs = os.pipe()
            self._inhibitors.append(ours)
            reply = wire.pack(wire.METHOD_RETURN, self._next(), {**fields, 9: ("u", 1)}, "h", (0,))
            with self._lock:
                socket.send_fds(self._socket, [reply], [theirs])
            os.close(theirs)

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _send(self, data: bytes) -> None:
        with self._lock:
            self._socket.sendall(data)
