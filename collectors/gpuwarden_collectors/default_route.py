"""Finds the network devices of the host's default route: the route's device, and all devices below it.

The kernel lists the main table in hexadecimal: IPv4 in `net/route`, IPv6 in `net/ipv6_route` (net/ipv4/fib_trie.c,
net/ipv6/route.c). IPv6 is only used without an IPv4 default route, because hosts accept an IPv6 default route from
any router advertisement. The lowest metric wins. sysfs links a bond, VLAN or bridge to its lower devices.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpuwarden_collectors.host_files import read_bytes

_ROUTES_READ = 1 << 18  # bytes of a list; IPv4's default route is its first line
_DEVICES_MOST = 256
_UP, _REJECT = 0x1, 0x200  # RTF_UP, RTF_REJECT of linux/route.h
_LOWER = "lower_"

_Route = tuple[int, str]
"""Metric and device."""


class DefaultRoute:
    """The devices of the host's default route.

    `proc` is the host's: process 1 is in the host's network namespace, even if this process is not.
    """

    def __init__(self, proc: Path, sysfs: Path) -> None:
        self._lists = (proc / "1/net", proc / "net")
        self._netdevs = os.fspath(sysfs / "class/net")

    def carriers(self) -> frozenset[str] | None:
        """Returns the names of the devices; None if no default route exists or the routes cannot be read."""
        for name, parse in (("route", _ipv4), ("ipv6_route", _ipv6)):
            routes = sorted(parse(self._lines(name)))
            if routes:
                return frozenset(self._below(device for metric, device in routes if metric == routes[0][0]))
        return None

    def _lines(self, name: str) -> list[list[str]]:
        for folder in self._lists:
            try:
                text = read_bytes(folder / name, _ROUTES_READ)
            except OSError:
                continue
            return [line.split() for line in text.decode("ascii", "replace").splitlines()]
        return []

    def _below(self, devices: Iterable[str]) -> set[str]:
        """Returns the devices and, recursively, their lower devices."""
        reached: set[str] = set()
        ahead = [device for device in devices if _is_name(device)]
        while ahead and len(reached) < _DEVICES_MOST:
            device = ahead.pop()
            if device not in reached:
                reached.add(device)
                ahead += [name for name in lower_devices(f"{self._netdevs}/{device}") if _is_name(name)]
        return reached


def lower_devices(folder: str) -> Iterator[str]:
    """Yields the names of the lower devices (bond members, …) of the network device with this sysfs folder."""
    try:
        with os.scandir(folder) as entries:
            yield from [entry.name.removeprefix(_LOWER) for entry in entries if entry.name.startswith(_LOWER)]
    except OSError:
        return


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..", "*") and "/" not in text and len(text) < 16  # IFNAMSIZ


def _ipv4(lines: Iterable[list[str]]) -> Iterator[_Route]:
    """Parses lines `Iface Destination Gateway Flags RefCnt Use Metric Mask …`."""
    for line in lines:
        if len(line) >= 8 and line[1] == line[7] == "0" * 8 and _is_used(line[3]) and line[6].isdecimal():
            yield int(line[6]), line[0]


def _ipv6(lines: Iterable[list[str]]) -> Iterator[_Route]:
    """Parses lines `Destination Prefix Source Prefix Next-hop Metric RefCnt Use Flags Iface`, all hexadecimal."""
    for line in lines:
        if len(line) == 10 and line[0] == "0" * 32 and line[1] == "00" and _is_used(line[8]) and line[9] != "lo":
            yield _hexadecimal(line[5]), line[9]


def _is_used(flags: str) -> bool:
    return _hexadecimal(flags) & (_UP | _REJECT) == _UP


def _hexadecimal(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0
