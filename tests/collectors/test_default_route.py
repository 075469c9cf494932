"""Which devices carry the default route: of lists as kernels print them, and of a real network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuwarden_collectors.default_route import DefaultRoute
from support.needs import needed, root_rights
from support.trees import plant

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT"
ZERO, ANY = "0" * 32, "0" * 8


def ipv4(device: str, *, metric: int = 0, flags: str = "0003", to: str = ANY, mask: str = ANY) -> str:
    return f"{device}\t{to}\t010200C0\t{flags}\t0\t0\t{metric}\t{mask}\t0\t0\t0"


def ipv6(device: str, *, metric: int = 0x400, flags: str = "00000003", to: str = ZERO, prefix: str = "00") -> str:
    return f"{to} {prefix} {ZERO} 00 fe80000000000000000000000000{'0001'} {metric:08x} 00000001 00000000 {flags} {device:>8}"


NO_IPV6 = ipv6("lo", metric=0xFFFFFFFF, flags="00200200")


def carriers(root: Path, *, v4: list[str] | None = None, v6: list[str] | None = None) -> set[str] | None:
    files = {
        "route": None if v4 is None else "\n".join((HEAD, *v4)),
        "ipv6_route": None if v6 is None else "\n".join(v6),
    }
    plant(root, {f"proc/1/net/{name}": text for name, text in files.items() if text is not None})
    devices = DefaultRoute(root / "proc", root / "sys").carriers()
    return None if devices is None else set(devices)


def above(root: Path, device: str, *lower: str) -> None:
    """A device that is made of others."""
    plant(root, {f"sys/class/net/{device}/lower_{name}/carrier": "1" for name in lower})


def test_default_route_is_that_of_the_host_whatever_network_the_reader_lives_in(tmp_path: Path) -> None:
    plant(tmp_path, {"proc/net/route": f"{HEAD}\n{ipv4('eth9')}"})
    assert carriers(tmp_path) == {"eth9"}  # the only list there is
    assert carriers(tmp_path, v4=[ipv4("eth0")]) == {"eth0"}


@pytest.mark.parametrize(
    ("v4", "v6", "expected"),
    [
        ([ipv4("eth0"), ipv4("eth1", to="000200C0", flags="0001", mask="00FFFFFF")], [NO_IPV6], {"eth0"}),
        ([ipv4("eth1", metric=200), ipv4("eth0", metric=100)], [], {"eth0"}),
        ([ipv4("eth0", metric=100), ipv4("eth1", metric=100)], [], {"eth0", "eth1"}),
        ([ipv4("eth0")], [ipv6("eth1", metric=1)], {"eth0"}),  # IPv6 from a switch that announces itself
        ([], [ipv6("eth1"), NO_IPV6], {"eth1"}),
        (None, [ipv6("eth1")], {"eth1"}),
        ([ipv4("*", flags="0201", metric=900)], [], None),  # unreachable
        ([ipv4("eth0", flags="0002")], [], None),  # not up
        ([ipv4("eth0", to=ANY, mask="000000FF")], [], None),
        ([], [ipv6("eth1", to="fd" + ZERO[2:], prefix="40"), NO_IPV6], None),
        ([], [], None),
        (None, None, None),
    ],
)
def test_the_device_with_the_lowest_metric_carries_it(
    tmp_path: Path, v4: list[str] | None, v6: list[str] | None, expected: set[str] | None
) -> None:
    assert carriers(tmp_path, v4=v4, v6=v6) == expected


def test_vlan_on_a_bond_is_carried_by_all_that_it_is_made_of(tmp_path: Path) -> None:
    above(tmp_path, "bond0.100", "bond0")
    above(tmp_path, "bond0", "eth0", "eth1")
    above(tmp_path, "eth0")
    assert carriers(tmp_path, v4=[ipv4("bond0.100")]) == {"bond0.100", "bond0", "eth0", "eth1"}


def test_devices_below_each_other_end(tmp_path: Path) -> None:
    above(tmp_path, "a", "b", *(f"port{n}" for n in range(400)))
    above(tmp_path, "b", "a")
    devices = carriers(tmp_path, v4=[ipv4("a")])
    assert devices is not None
    assert 2 <= len(devices) <= 256


@pytest.mark.parametrize(
    "line", ["", "x", "eth0 " * 3, ipv4("../../etc"), ipv4("."), ipv4("x" * 40), ipv4("eth0", flags="zz"), "\xff" * 999]
)
def test_a_line_of_another_form_names_no_device(tmp_path: Path, line: str) -> None:
    assert not carriers(tmp_path, v4=[line], v6=[line])


REAL = """
set -e
mount -t sysfs sysfs /sys
ip link add name port0 type veth peer name port1
ip link add br0 type bridge
ip link set port0 master br0
for device in port0 port1 br0; do ip link set $device up; done
ip address add 10.0.0.2/24 dev br0
ip route add unreachable default metric 900
ip route add default via 10.0.0.1 dev br0 metric 100
exec "$0" -c 'from pathlib import Path; from gpuwarden_collectors.default_route import DefaultRoute
print(*sorted(DefaultRoute(Path("/proc"), Path("/sys")).carriers()))'
"""


def test_a_real_bridge_is_carried_by_its_port() -> None:
    root_rights()
    needed("ip")
    needed("mount")
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c", REAL, sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Unknown device type" in done.stderr:
        pytest.skip(f"this test makes a bridge and did not run: this kernel cannot: {done.stderr.strip()}")
    assert (done.stdout.split(), done.stderr) == (["br0", "port0"], "")
