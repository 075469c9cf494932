"""Determines where nv-hostengine listens: at the configured address, or at a usual address if an engine runs there.

Any user of this host may listen on a free port or create a socket in /tmp, and a forged engine could take a healthy
node out of service. Therefore an engine that is not configured must belong to root or to this process's user.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.options import DcgmOptions

_PORT = 5555  # dcgm_structs.h: DCGM_HE_PORT_NUMBER
_LISTENING = "0A"  # include/net/tcp_states.h: TCP_LISTEN
_CONNECT_TIME = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """A Unix socket (`path`), or a TCP port of a host."""

    path: str = ""
    host: str = ""
    port: int = _PORT

    def __str__(self) -> str:
        return f"unix://{self.path}" if self.path else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parses `unix:///path`, `host` or `host:port`. Raises CollectorError."""
    if text.startswith("unix:///"):
        return Address(path=text.removeprefix("unix://"))
    host, _, port = text.partition(":")
    if host and (not port or (port.isdecimal() and 0 < int(port) < 65536)) and "/" not in text:
        return Address(host=host, port=int(port or _PORT))
    raise CollectorError(f"collectors.dcgm.address is {text[:100]!r}: expected unix:///path, host or host:port")


def engine_address(options: DcgmOptions) -> Address | None:
    """Returns the address to connect to, or None for an engine inside the worker.

    Raises SourceAbsent if no engine runs, and CollectorError.
    """
    if options.address:
        return parse_address(options.address)
    address = running_engine(options.probe)
    if address is None and not options.embedded:
        raise SourceAbsent(
            f"no nv-hostengine of root or of this user listens at {', '.join(options.probe)}; "
            "start nvidia-dcgm.service, or set collectors.dcgm.address to where it listens"
        )
    return address


def running_engine(addresses: Iterable[str], net: Path = Path("/proc/net")) -> Address | None:
    """The first of `addresses` at which a trusted engine listens. A TCP address means a port of this host.

    `net` is the folder of the kernel's tables (`tcp`, `tcp6`) that list the owners of listening ports.
    Raises CollectorError if this user may not see a socket: it could be an engine.
    """
    trusted = {0, os.geteuid()}
    for text in addresses:
        address = parse_address(text)
        owners = _socket_owners(address.path) if address.path else _port_owners(address.port, net)
        if owners and owners <= trusted:
            return address
    return None


def _socket_owners(path: str) -> set[int]:
    """The owner of a socket on which a process listens. A link is refused: another user may choose its target."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise CollectorError(f"cannot see the socket {path}: {error.strerror}") from error
    try:
        if not stat.S_ISSOCK(status.st_mode):
            return set()
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_CONNECT_TIME)
            client.connect(path)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return set()
    except OSError:
        pass  # busy, or no permission: the real connection attempt reports it
    return {status.st_uid}


def _port_owners(port: int, net: Path) -> set[int]:
    """Owners of the sockets that listen on this port, on any local address (proc_net_tcp.rst)."""
    owners = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (net / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            columns = line.split()
            if columns[3] == _LISTENING and int(columns[1].rpartition(":")[2], 16) == port:
                owners.add(int(columns[7]))
    return owners
