"""InfiniBand and RoCE ports as sysfs shows them: are they up, how fast, and what did they count.

Some attributes ask the firmware of the adapter, and a physical function that belongs to somebody else (the ConnectX
functions that the fabric manager of an HGX board uses) refuses with EINVAL, each time with a line in the kernel log.
So an attribute that answered EINVAL is not read again as long as its port exists. Devices whose first refusal is one
too many are excluded by name. Devices that are software on top of an Ethernet device (rxe, siw) are left out: they come and
go as somebody likes.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts
from gpuwarden_collectors.host_files import number, read_text

_COUNTERS = (
    "link_downed",
    "link_error_recovery",
    "symbol_error",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
_HW_COUNTERS = ("local_ack_timeout_err", "rnr_nak_retry_err", "roce_slow_restart")
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec")
_NETDEV = re.compile(r"[^/\s]{1,15}")  # IFNAMSIZ, linux/if.h
_Attribute = tuple[int, str]


class InfinibandCollector:
    """Reads `<sysfs>/class/infiniband`. `exclude`: shell patterns of device names, as in `mlx5_[45]`."""

    def __init__(self, sysfs: Path, *, exclude: Sequence[str] = (), max_ports: int = 512) -> None:
        self._devices = sysfs / "class/infiniband"
        self._netdevs = sysfs / "class/net"
        self._excluded = tuple(map(fnmatch.translate, exclude))
        self._max_ports = max_ports
        self._refused: set[_Attribute] = set()  # by inode of the port's folder and name

    def read(self) -> InfinibandFacts:
        """Every port of every device, ordered by name; a device without ports (a management function) has none.

        May block for as long as firmware does. Raises SourceAbsent without an RDMA stack in the kernel and
        CollectorError when sysfs cannot be read, or lists more ports than any host has.
        """
        ports: list[PortFacts] = []
        here: set[int] = set()
        for folder, inode in islice(self._ports(), self._max_ports + 1):
            here.add(inode)
            if (facts := self._port(folder, inode)) is not None:
                ports.append(facts)
        if len(here) > self._max_ports:
            raise CollectorError(f"{self._devices} lists more than {self._max_ports} ports; check that it is a sysfs")
        self._refused = {attribute for attribute in self._refused if attribute[0] in here}
        return InfinibandFacts(ports=tuple(ports), excluded=self._excluded)

    def _ports(self) -> Iterator[tuple[Path, int]]:
        try:
            devices = sorted(entry.name for entry in self._devices.iterdir())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise SourceAbsent(f"no RDMA devices: {self._devices} does not exist") from error
        except OSError as error:
            raise CollectorError(
                f"cannot list RDMA devices in {self._devices}: {error.strerror}; let gpuwarden read sysfs"
            ) from error
        for device in devices:
            excluded = any(re.match(pattern, device) for pattern in self._excluded)
            if not excluded and not _is_software(self._devices / device):
                yield from _numbered(self._devices / device / "ports")

    def _port(self, folder: Path, inode: int) -> PortFacts | None:
        """None if it vanished meanwhile."""
        state = _text(folder / "state")
        link_layer = _text(folder / "link_layer")
        if not state and not folder.exists():
            return None
        rate = _RATE.match(_text(folder / "rate"))
        counters = {name: self._counter(folder, inode, f"counters/{name}") for name in _COUNTERS}
        counters |= {name: self._counter(folder, inode, f"hw_counters/{name}") for name in _HW_COUNTERS}
        return PortFacts(
            device=folder.parent.parent.name,
            port=int(folder.name),
            link_layer=link_layer,
            state=_word(state),
            physical_state=_word(_text(folder / "phys_state")),
            rate_gbps=float(rate[1]) if rate else None,
            carrier_down=self._carrier_down(folder) if link_layer == "Ethernet" else None,
            **counters,
        )

    def _counter(self, folder: Path, inode: int, name: str) -> int | None:
        if (inode, name) in self._refused:
            return None
        try:
            return number(read_text(folder / name))
        except OSError as error:
            if error.errno == errno.EINVAL:
                self._refused.add((inode, name))
            return None

    def _carrier_down(self, folder: Path) -> int | None:
        """How often the network device of a RoCE port lost its carrier: its `link_downed` does not count."""
        netdev = _text(folder / "gid_attrs/ndevs/0")
        if not _NETDEV.fullmatch(netdev) or netdev in (".", ".."):
            return None
        return number(_text(self._netdevs / netdev / "carrier_down_count"))


def _is_software(device: Path) -> bool:
    """It has no hardware above it in sysfs, or names the Ethernet device below it (`parent`, which rxe has)."""
    try:
        return "/virtual/" in os.readlink(device) or (device / "parent").exists()  # noqa: PTH115 - one call less each pass
    except OSError:
        return False


def _numbered(folder: Path) -> Iterator[tuple[Path, int]]:
    """The ports in the folder, with their inodes: the kernel makes a new one when a device comes back."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.inode()) for entry in entries if number(entry.name) is not None]
    except OSError:
        return
    for name, inode in sorted(found, key=lambda port: int(port[0])):
        yield folder / name, inode


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError:
        return ""


def _word(text: str) -> str:
    """`4: ACTIVE` is `active` (kernel ABI, sysfs-class-infiniband)."""
    return text.rpartition(": ")[2].lower()[:32]
