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

from jeepney import (
    DBusAddress,
    HeaderFields,
    Message,
    MessageType,
    new_error,
    new_method_return,
    new_signal,
)
from jeepney.io.blocking import open_dbus_connection

from support.needs import needed

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
    program = needed("dbus-daemon")
    path, config = folder / "bus", folder / "bus.conf"
    path.unlink(missing_ok=True)
    config.write_text(_CONFIG.format(path=path))
    daemon = subprocess.Popen(
        [program, f"--config-file={config}", "--nofork", "--nopidfile"], stderr=subprocess.DEVNULL
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


_NAME = "org.freedesktop.login1"
_MANAGER = DBusAddress("/org/freedesktop/login1", bus_name=_NAME, interface=f"{_NAME}.Manager")


class Logind(threading.Thread):
    """`refuse`: inhibitors are not given. `delay`: InhibitDelayMaxUSec in seconds."""

    def __init__(self, bus: Path, *, refuse: bool = False, delay: float = 5.0, going_down: bool = False) -> None:
        super().__init__(daemon=True)
        self.refuse = refuse
        self.delay = delay
        self.going_down = going_down
        self.asked: list[str] = []
        self._inhibitors: list[int] = []
        self._lock = threading.Lock()
        self._connection = open_dbus_connection(f"unix:path={bus}", enable_fds=True, auth_timeout=PATIENCE)
        self._connection.bus_proxy.RequestName(_NAME)
        self.start()

    def prepare_for_shutdown(self, *, going_down: bool = True, to: str = "") -> None:
        """`to`: the unique name of the only receiver."""
        self.going_down = going_down
        self.announce("PrepareForShutdown", "b", (going_down,), to)

    def prepare_for_sleep(self, *, to: str = "") -> None:
        """The machine is suspended, or hibernates, and comes back."""
        for begins in (True, False):
            self.announce("PrepareForSleep", "b", (begins,), to)

    def announce(self, member: str, signature: str, body: tuple[object, ...], to: str = "") -> None:
        signal = new_signal(_MANAGER, member, signature, body)
        if to:
            signal.header.fields[HeaderFields.destination] = to
        self._send(signal)

    def inhibited(self) -> int:
        """Return how many hold a shutdown up now: a closed descriptor makes the other end readable."""
        held = [fd for fd in self._inhibitors if not select.select([fd], [], [], 0)[0]]
        return len(held)

    def end(self) -> None:
        with suppress(OSError):
            self._connection.sock.shutdown(socket.SHUT_RDWR)
        self.join(PATIENCE)
        self._connection.close()
        for fd in self._inhibitors:
            os.close(fd)

    def run(self) -> None:
        with suppress(OSError):  # the bus ended, or this
            while True:
                message = self._connection.receive()
                if message.header.message_type is MessageType.method_call:
                    self._answer(message)

    def _answer(self, message: Message) -> None:
        self.asked.append(message.header.fields[HeaderFields.member])
        if self.asked[-1] == "Get":
            values = {
                "InhibitDelayMaxUSec": ("t", int(self.delay * 1e6)),
                "PreparingForShutdown": ("b", self.going_down),
            }
            self._send(new_method_return(message, "v", (values[message.body[1]],)))
        elif self.refuse:
            self._send(new_error(message, "org.freedesktop.DBus.Error.AccessDenied", "s", ("Permission denied",)))
        else:
            own, theirs = os.pipe()
            self._inhibitors.append(own)
            self._send(new_method_return(message, "h", (theirs,)))
            os.close(theirs)

    def _send(self, message: Message) -> None:
        with self._lock:
            self._connection.send(message)
