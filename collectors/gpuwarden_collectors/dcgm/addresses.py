"""Where nv-hostengine listens: as configured, or in one of the usual places if an engine runs there.

Anybody on this host may listen on a free port or make a socket in /tmp, and an engine that lies takes a good node out of
work. An engine that was found, not configured, must therefore belong to root or to the user that we run as.
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
    """The first of `addresses` where an engine that may be trusted listens; a TCP address means a port of this host.

    `net` holds the tables of the kernel (`tcp`, `tcp6`) that say whom a listening port belongs to.
    """
    trusted = {0, os.geteuid()}
    for text in addresses:
        address = parse_address(text)
        owners = _socket_owners(address.path) if address.path else _port_owners(address.port, net)
        if owners and owners <= trusted:
            return address
    return None


def _socket_owners(path: str) -> set[int]:
    """The owner of a socket that somebody listens on. A link is refused: another user may choose its target."""
    try:
        status = os.lstat(path)
        if not stat.S_ISSOCK(status.st_mode):
            return set()
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(_CONNECT_TIME)
            client.connect(path)
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return set()
    except OSError:
        pass  # it is there, be it too busy for us or not for us: connecting in earnest will say so
    return {status.st_uid}


def _port_owners(port: int, net: Path) -> set[int]:
    """Users of the listening sockets of this port, whatever address each is bound to (proc_net_tcp.rst)."""
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
