"""InfiniBand and RoCE ports from sysfs: state, speed and counters.

Reading some attributes queries the adapter's firmware. A physical function that belongs to another owner (the ConnectX
functions that the fabric manager of an HGX board uses) refuses with EINVAL, and the kernel logs a line each time.
Therefore an attribute that returned EINVAL is not read again while its port exists; `exclude` avoids even the first
refusal. Software devices on top of Ethernet (rxe, siw) are ignored, because administrators add and remove them.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from gpuwarden_collectors.adapters import adapter, driver_of, pci_path
from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.default_route import DefaultRoute, lower_devices
from gpuwarden_collectors.host_facts import AdapterFacts, InfinibandFacts, PortFacts
from gpuwarden_collectors.host_files import number, read_text, text_or_empty
from gpuwarden_collectors.options import PolledOptions, bounded
from gpuwarden_collectors.spec import CollectorSpec

_COUNTERS = tuple(
    """
    link_downed link_error_recovery symbol_error port_rcv_errors local_link_integrity_errors
    excessive_buffer_overrun_errors""".split()
)
_HW_COUNTERS = ("local_ack_timeout_err", "rnr_nak_retry_err", "roce_slow_restart")
_EFA_COUNTERS = tuple(
    "no_completion_cmds cmds_err rx_drops unresponsive_remote_events impaired_remote_conn_events".split()
)
_SENT, _WORD = "counters/port_xmit_data", 4
"""The counter of sent data, in words of four bytes (kernel ABI, sysfs-class-infiniband)."""
_SENT_MOST = 2**32 - 1
"""Maximum of the 32-bit counter of old adapters, where it stops (InfiniBand specification, PortCounters)."""
_EFA_SENT = "hw_counters/tx_bytes"
_EFA = "efa"
_GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
_RATE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec")
_NETDEV = re.compile(r"[^/\s]{1,15}")  # IFNAMSIZ, linux/if.h
_ADAPTERS_EACH = 60.0  # seconds
_NETDEVS_MOST = 64  # of one function: with SR-IOV switching it has one per virtual function
_UNREAD, _ACTIVE = "", "active"
_Attribute = tuple[int, str]


@dataclass(frozen=True, slots=True)
class InfinibandOptions(PolledOptions):
    """InfiniBand and RoCE ports of the host."""

    interval: float = bounded(10.0, 1.0, 60.0)
    exclude: tuple[str, ...] = ()
    """Devices to ignore, as shell patterns of their names, such as `mlx5_[45]`. Their ports are not read, and no longer expected if they were ever up."""


class InfinibandCollector:
    """Reads `<sysfs>/class/infiniband`, and the routes in `proc`. `exclude`: shell patterns of device names, as in `mlx5_[45]`."""

    def __init__(
        self,
        sysfs: Path,
        *,
        proc: Path = Path("/proc"),
        exclude: Sequence[str] = (),
        max_ports: int = 512,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._devices = sysfs / "class/infiniband"
        self._netdevs = sysfs / "class/net"
        self._excluded = tuple(map(fnmatch.translate, exclude))
        self._default_route = DefaultRoute(proc, sysfs)
        self._max_ports = max_ports
        self._clock = clock
        self._paths: dict[int, tuple[tuple[str, ...], str, str]] = {}  # by inode of the port's folder
        self._adapters: tuple[AdapterFacts, ...] | None = None
        self._adapters_due = 0.0
        self._refused: set[_Attribute] = set()  # by inode of the port's folder and name
        self._seen: dict[int, tuple[str, int]] = {}  # by that inode: the last state, and how often the port went down

    def read(self) -> InfinibandFacts:
        """Reads every port of every device, ordered by name. A management function has no ports.

        May block in the adapter's firmware. Raises SourceAbsent without an RDMA stack in the kernel, and CollectorError
        if sysfs cannot be read or lists implausibly many ports.
        """
        ports: list[PortFacts] = []
        here: set[int] = set()
        carriers = self._default_route.carriers()
        for folder, inode in islice(self._ports(), self._max_ports + 1):
            here.add(inode)
            if (facts := self._port(folder, inode, carriers)) is not None:
                ports.append(facts)
        if len(here) > self._max_ports:
            raise CollectorError(f"{self._devices} lists more than {self._max_ports} ports; check that it is a sysfs")
        self._refused = {attribute for attribute in self._refused if attribute[0] in here}
        self._paths = {inode: path for inode, path in self._paths.items() if inode in here}
        self._seen = {inode: seen for inode, seen in self._seen.items() if inode in here}
        return InfinibandFacts(ports=tuple(ports), adapters=self._read_adapters(ports), excluded=self._excluded)

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
            folder = self._devices / device
            excluded = any(re.match(pattern, device) for pattern in self._excluded)
            if not excluded and not any(is_left_out(folder) for is_left_out in _LEFT_OUT):
                yield from _numbered(folder / "ports")

    def _port(self, folder: Path, inode: int, carriers: frozenset[str] | None) -> PortFacts | None:
        """Reads one port; returns None if it disappeared meanwhile."""
        state = _state_name(text_or_empty(folder / "state"))
        link_layer = text_or_empty(folder / "link_layer")
        if not state and not folder.exists():
            return None
        rate = _RATE.match(text_or_empty(folder / "rate"))
        path, driver, guid = self._adapter(folder, inode)
        counters = self._efa_counters(folder, inode) if driver == _EFA else self._counters(folder, inode)
        ethernet = link_layer == "Ethernet"
        carrier_down, default_route = self._of_netdev(folder, carriers) if ethernet else (None, None)
        return PortFacts(
            device=folder.parent.parent.name,
            port=int(folder.name),
            slot=path[-1] if path else "",
            guid=guid,
            merged=self._merged(folder, path[-1]) if ethernet and path else (),
            driver=driver,
            link_layer=link_layer,
            state=state,
            physical_state=_state_name(text_or_empty(folder / "phys_state")),
            rate_gbps=float(rate[1]) if rate else None,
            carrier_down=carrier_down,
            seen_down=self._seen_down(inode, state),
            sent_bytes=self._sent(folder, inode, driver),
            default_route=default_route,
            **counters,
        )

    def _seen_down(self, inode: int, state: str) -> int:
        before, times = self._seen.get(inode, (_UNREAD, 0))
        times += before == _ACTIVE and state not in (_ACTIVE, _UNREAD)
        self._seen[inode] = (state or before, times)
        return times

    def _counters(self, folder: Path, inode: int) -> dict[str, int | None]:
        counters = {name: self._counter(folder, inode, f"counters/{name}") for name in _COUNTERS}
        return counters | {name: self._counter(folder, inode, f"hw_counters/{name}") for name in _HW_COUNTERS}

    def _sent(self, folder: Path, inode: int, driver: str) -> int | None:
        if driver == _EFA:
            return self._counter(folder, inode, _EFA_SENT)
        words = self._counter(folder, inode, _SENT)
        return None if words is None or words == _SENT_MOST else _WORD * words

    def _efa_counters(self, folder: Path, inode: int) -> dict[str, int | None]:
        """Reads the EFA counters. Those about commands belong to the device since Linux 5.14, to its port before."""
        of_port = {name: self._counter(folder, inode, f"hw_counters/{name}") for name in _EFA_COUNTERS}
        return {
            name: self._counter(folder, inode, f"../../hw_counters/{name}") if value is None else value
            for name, value in of_port.items()
        }

    def _adapter(self, folder: Path, inode: int) -> tuple[tuple[str, ...], str, str]:
        """Returns the PCI path, driver and GUID of the adapter; none of them changes while the port exists."""
        if inode not in self._paths:
            device = folder.parent.parent / "device"
            guid = text_or_empty(folder.parent.parent / "node_guid")
            valid_guid = guid if _GUID.fullmatch(guid) and guid.strip("0:") else ""
            self._paths[inode] = (pci_path(device), driver_of(device), valid_guid)
        return self._paths[inode]

    def _read_adapters(self, ports: Sequence[PortFacts]) -> tuple[AdapterFacts, ...]:
        """Reads the adapters once a minute, and when an adapter appears or disappears."""
        devices = {port.slot: port.device for port in ports if port.slot}
        now = self._clock()
        if (
            self._adapters is None
            or set(devices) != {each.slot for each in self._adapters}
            or now >= self._adapters_due
        ):
            self._adapters = tuple(adapter(self._devices / name, name) for name in dict.fromkeys(devices.values()))
            self._adapters_due = now + _ADAPTERS_EACH
        return self._adapters

    def _counter(self, folder: Path, inode: int, name: str) -> int | None:
        if (inode, name) in self._refused:
            return None
        try:
            return number(read_text(folder / name))
        except OSError as error:
            if error.errno == errno.EINVAL:
                self._refused.add((inode, name))
            return None

    def _of_netdev(self, folder: Path, carriers: frozenset[str] | None) -> tuple[int | None, bool | None]:
        """Returns how often a RoCE port's network device lost its carrier, and whether the default route uses it.

        `link_downed` does not count these losses.
        """
        names = self._netdev_names(folder)
        lost = number(text_or_empty(self._netdevs / names[0] / "carrier_down_count")) if names else None
        over_it = None if carriers is None else any(name in carriers and self._is_its(name) for name in names)
        return lost, over_it

    def _netdev_names(self, folder: Path) -> Sequence[str]:
        by_gid = text_or_empty(folder / "gid_attrs/ndevs/0")
        if _NETDEV.fullmatch(by_gid) and by_gid not in (".", ".."):
            return (by_gid,)
        netdevs = folder.parent.parent / "device/net"
        try:
            with os.scandir(netdevs) as entries:
                names = sorted(entry.name for entry in islice(entries, _NETDEVS_MOST))
        except OSError:
            return ()
        port = int(folder.name) - 1  # some adapters have one function for both ports
        return [name for name in names if (number(text_or_empty(netdevs / name / "dev_port")) or 0) == port]

    def _merged(self, folder: Path, slot: str) -> tuple[str, ...]:
        """Returns the other functions of a bond, whose ports the driver merges into one RDMA device (RoCE LAG)."""
        (name, *_) = self._netdev_names(folder) or ("",)
        if not name or not (self._netdevs / name / "bonding").exists():
            return ()
        paths = [pci_path(self._netdevs / below / "device") for below in lower_devices(f"{self._netdevs}/{name}")]
        return tuple(sorted({path[-1] for path in paths if path} - {slot}))

    def _is_its(self, name: str) -> bool:
        """True if the interface belongs to the adapter, and is not one of the same name in another network namespace.

        In a container `eth0` belongs to no adapter. A bond is accepted although sysfs links it to no adapter.
        """
        path = self._netdevs / name
        return path.exists() and ("/virtual/" not in os.path.realpath(path) or (path / "bonding").exists())


def _is_virtual_function(device: Path) -> bool:
    """True if the device is a virtual function and its physical function is visible, too."""
    return (device / "device/physfn").exists()


def _is_fast_path(device: Path) -> bool:
    """True if the device is the fast path below a Hyper-V network device (Azure's accelerated networking).

    The network device works without it: the host removes it during servicing, and after a restart on another host it
    may have another driver, or not exist.
    """
    return any(driver_of(netdev / "master/device") == "hv_netvsc" for netdev in (device / "device/net").glob("*"))


def _is_software(device: Path) -> bool:
    """True if sysfs shows the device as virtual, or as built on an Ethernet device (`parent`, as for rxe)."""
    try:
        return "/virtual/" in os.readlink(device) or (device / "parent").exists()  # noqa: PTH115 - one call less each pass
    except OSError:
        return False


_LEFT_OUT = (_is_virtual_function, _is_fast_path, _is_software)


def _numbered(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yields the ports in the folder with their inodes. A device that returns gets new inodes."""
    try:
        with os.scandir(folder) as entries:
            ports = [(entry.name, entry.inode()) for entry in entries if number(entry.name) is not None]
    except OSError:
        return
    for name, inode in sorted(ports, key=lambda port: int(port[0])):
        yield folder / name, inode


def _state_name(text: str) -> str:
    """Returns the state's name: `4: ACTIVE` is `active` (kernel ABI, sysfs-class-infiniband)."""
    return text.rpartition(": ")[2].lower()[:32]


SPEC = CollectorSpec(
    facts=InfinibandFacts,
    options=InfinibandOptions,
    reader=lambda host, options: InfinibandCollector(host.sysfs, proc=host.proc, exclude=options.exclude),
    source="sysfs: state, rate and error counters of InfiniBand, RoCE and EFA ports; PCIe links of their adapters; no virtual functions of an "
    "adapter of this host",
)
