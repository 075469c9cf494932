"""The InfiniBand collector on recorded, odd and changing ports."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.host_collectors.infiniband import InfinibandCollector
from gpuwarden_collectors.host_facts import PcieLink, PortFacts
from support.trees import plant, unpack

PORT = "class/infiniband/mlx5_0/ports/1"
ROUTE = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n{device} 00000000 010200C0 0003 0 0 0 00000000 0 0 0"
UP = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)"}


def add_port(sysfs: Path, port: str = PORT, **files: str) -> Path:
    plant(sysfs / port, {**UP, **files})
    return sysfs / port


ROOT, SWITCH_UP, SWITCH_DOWN, ADAPTER = "0000:97:01.0", "0000:98:00.0", "0000:99:00.0", "0000:9c:00.0"
GEN5 = {
    "current_link_speed": "32.0 GT/s PCIe",
    "max_link_speed": "32.0 GT/s PCIe",
    "current_link_width": "16",
    "max_link_width": "16",
}


def add_adapter(
    sysfs: Path, *path: str, driver: str = "mlx5_core", of: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """The adapter of the port, at the end of this path of PCI functions; `of`: by function what is not as in generation 5 with 16 lanes."""
    folder = sysfs / "devices/pci0000:97"
    for function in path:
        folder /= function
        plant(folder, {**GEN5, **(of or {}).get(function, {})})
    (sysfs / "bus" / driver).mkdir(parents=True)
    (folder / "driver").symlink_to(sysfs / "bus" / driver)
    (sysfs / PORT).parent.parent.joinpath("device").symlink_to(folder)


def test_an_adapter_has_the_links_of_its_way_to_the_root_port(tmp_path: Path) -> None:
    add_port(tmp_path)
    add_adapter(
        tmp_path,
        ROOT,
        SWITCH_UP,
        SWITCH_DOWN,
        ADAPTER,
        of={ROOT: {"max_link_width": "8", "current_link_width": "8"}, SWITCH_UP: {"current_link_width": "8"}},
    )
    facts = InfinibandCollector(tmp_path).read()
    (port,), (adapter,) = facts.ports, facts.adapters
    assert (port.slot, port.driver) == (ADAPTER, "mlx5_core")
    assert (adapter.slot, adapter.device, adapter.upstream) == (ADAPTER, "mlx5_0", (ROOT, SWITCH_UP, SWITCH_DOWN))
    assert adapter.links == (
        PcieLink(at=ADAPTER, width=16, width_max=16, gtps=32.0, gtps_max=32.0),
        PcieLink(at=SWITCH_UP, width=8, width_max=8, gtps=32.0, gtps_max=32.0),
    )


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("current_link_width", "0"),
        ("current_link_width", "255"),
        ("current_link_speed", "Unknown"),
        ("max_link_width", ""),
    ],
)
def test_what_sysfs_does_not_know_of_a_link_is_none(tmp_path: Path, file: str, content: str) -> None:
    add_port(tmp_path)
    add_adapter(tmp_path, ROOT, ADAPTER, of={ADAPTER: {file: content}})
    (adapter,) = InfinibandCollector(tmp_path).read().adapters
    (link,) = adapter.links
    assert None in (link.width, link.width_max, link.gtps, link.gtps_max)


def test_an_adapter_of_a_virtual_machine_has_no_link_that_can_be_seen(tmp_path: Path) -> None:
    add_port(tmp_path)
    add_adapter(tmp_path, ADAPTER)
    (adapter,) = InfinibandCollector(tmp_path).read().adapters
    assert (adapter.upstream, adapter.links) == ((), ())


def test_links_of_adapters_are_read_once_a_minute_and_at_once_for_another_adapter(tmp_path: Path) -> None:
    now = 0.0
    add_port(tmp_path)
    add_adapter(tmp_path, ROOT, ADAPTER)
    collector = InfinibandCollector(tmp_path, clock=lambda: now)
    widths = []
    for now, width in ((0.0, "16"), (59.0, "8"), (60.0, "8")):  # noqa: B007
        (tmp_path / "devices/pci0000:97" / ROOT / ADAPTER / "current_link_width").write_text(width)
        widths.append(collector.read().adapters[0].links[0].width)
    assert widths == [16, 16, 8]


@pytest.mark.parametrize("folder", ["ports/1/hw_counters", "hw_counters"])
def test_an_efa_port_has_counters_of_its_own_of_the_port_or_of_the_device(tmp_path: Path, folder: str) -> None:
    port = add_port(tmp_path, link_layer="Unknown")
    add_adapter(tmp_path, ADAPTER, driver="efa")
    plant(port.parent.parent / folder, {"no_completion_cmds": "3", "rx_drops": "7", "cmds_err": "0"})
    plant(port / "hw_counters", {"tx_bytes": "12345"})
    facts = read_one(tmp_path)
    assert facts.sent_bytes == 12345
    assert (facts.driver, facts.no_completion_cmds, facts.rx_drops, facts.cmds_err) == ("efa", 3, 7, 0)
    assert facts.unresponsive_remote_events is None


def read_one(sysfs: Path) -> PortFacts:
    (port,) = InfinibandCollector(sysfs).read().ports
    return port


def test_a_recorded_server_gives_exactly_its_ports(tmp_path: Path) -> None:
    def port(device: str, downed: int = 0) -> PortFacts:
        return PortFacts(
            device=device, port=1, link_layer="InfiniBand", state="active", physical_state="linkup", rate_gbps=400.0,
            link_downed=downed, link_error_recovery=0, symbol_error=0, port_rcv_errors=14,
            local_link_integrity_errors=0, excessive_buffer_overrun_errors=15,
            local_ack_timeout_err=0, rnr_nak_retry_err=0, roce_slow_restart=0, seen_down=0,
        )  # fmt: skip

    bond = PortFacts(
        device="mlx5_bond_0", port=1, link_layer="Ethernet", state="active", physical_state="linkup", rate_gbps=200.0,
        link_downed=0, link_error_recovery=0, symbol_error=0, port_rcv_errors=14,
        local_link_integrity_errors=0, excessive_buffer_overrun_errors=15,
        local_ack_timeout_err=0, rnr_nak_retry_err=0, roce_slow_restart=0, carrier_down=2, seen_down=0, default_route=True,
    )  # fmt: skip
    plant(tmp_path, {"proc/1/net/route": ROUTE.format(device="bond0")})
    ports = InfinibandCollector(unpack("infiniband/h100.txt", tmp_path), proc=tmp_path / "proc").read().ports
    assert ports == (
        port("mlx5_0"), port("mlx5_1", 255), *(port(f"mlx5_{n}") for n in (4, 5, 6, 7, 8, 9)), bond,
    )  # fmt: skip


def test_a_host_without_rdma_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="no RDMA devices"):
        InfinibandCollector(tmp_path).read()


@pytest.mark.parametrize(
    ("file", "content", "field", "value"),
    [
        ("state", "1: DOWN", "state", "down"),
        ("state", "5: ACTIVE_DEFER", "state", "active_defer"),
        ("state", "2: INIT", "state", "init"),
        ("state", "", "state", ""),
        ("state", "X" * 9999, "state", "x" * 32),
        ("phys_state", "3: Disabled", "physical_state", "disabled"),
        ("phys_state", "2: Polling", "physical_state", "polling"),
        ("rate", "2.5 Gb/sec (1X SDR)", "rate_gbps", 2.5),
        ("rate", "800 Gb/sec (4X XDR)", "rate_gbps", 800.0),
        ("rate", "unknown", "rate_gbps", None),
        ("rate", "", "rate_gbps", None),
        ("counters/link_downed", "255", "link_downed", 255),
        ("counters/link_downed", "N/A (no PMA)", "link_downed", None),  # iWARP, and some virtual functions
        ("counters/symbol_error", "-1", "symbol_error", None),
        ("counters/symbol_error", "٣", "symbol_error", None),
        ("counters/symbol_error", "9" * 5000, "symbol_error", None),
        ("counters/port_xmit_data", "41600000000", "sent_bytes", 166_400_000_000),
        ("counters/port_xmit_data", "4294967295", "sent_bytes", None),  # 32 bits, and at their maximum
        ("counters/port_xmit_data", "", "sent_bytes", None),
        ("hw_counters/rnr_nak_retry_err", "18446744073709551615", "rnr_nak_retry_err", 2**64 - 1),
    ],
)
def test_unusual_values_of_an_attribute(tmp_path: Path, file: str, content: str, field: str, value: object) -> None:
    add_port(tmp_path, **{file: content})
    assert getattr(read_one(tmp_path), field) == value


@pytest.mark.parametrize("netdev", ["", "../../etc", "..", "eth0/../..", "x" * 99, "gone0"])
def test_a_network_device_that_cannot_be_one_has_no_carrier_count(tmp_path: Path, netdev: str) -> None:
    add_port(tmp_path, link_layer="Ethernet", **{"gid_attrs/ndevs/0": netdev})
    plant(tmp_path, {"class/net/carrier_down_count": "7"})
    assert read_one(tmp_path).carrier_down is None


def roce(root: Path, device: str, netdev: str, *, port: int = 1, gid: bool = True) -> Path:
    """A RoCE port with its network device, linked as sysfs links them."""
    pci = root / f"devices/pci0000:00/{device}"
    plant(pci / f"net/{netdev}", {"dev_port": str(port - 1), "carrier_down_count": "3"})
    add_port(root, f"devices/pci0000:00/{device}/infiniband/{device}/ports/{port}", link_layer="Ethernet")
    verbs = pci / f"infiniband/{device}"
    for link, target in ((verbs / "device", pci), (root / f"class/infiniband/{device}", verbs)):
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(target)
    (root / "class/net").mkdir(parents=True, exist_ok=True)
    (root / f"class/net/{netdev}").symlink_to(pci / f"net/{netdev}")
    if gid:
        plant(verbs / f"ports/{port}/gid_attrs/ndevs", {"0": netdev})
    return verbs


def over_default_route(root: Path, device: str | None) -> dict[str, bool | None]:
    text = ROUTE.partition("\n")[0] if device is None else ROUTE.format(device=device)
    plant(root, {"proc/1/net/route": text})
    ports = InfinibandCollector(root, proc=root / "proc").read().ports
    return {port.name: port.default_route for port in ports}


def test_roce_port_over_which_the_default_route_goes_is_known(tmp_path: Path) -> None:
    roce(tmp_path, "mlx5_0", "eth0")
    roce(tmp_path, "mlx5_1", "eth1", gid=False)
    add_port(tmp_path, "class/infiniband/mlx5_2/ports/1")
    assert over_default_route(tmp_path, "eth0") == {"mlx5_0/1": True, "mlx5_1/1": False, "mlx5_2/1": None}
    assert over_default_route(tmp_path, "eth1") == {"mlx5_0/1": False, "mlx5_1/1": True, "mlx5_2/1": None}
    assert over_default_route(tmp_path, "usb0") == {"mlx5_0/1": False, "mlx5_1/1": False, "mlx5_2/1": None}
    assert set(over_default_route(tmp_path, None).values()) == {None}  # absent for a moment


def test_two_ports_of_one_function_are_distinguished_by_their_network_devices(tmp_path: Path) -> None:
    roce(tmp_path, "mlx4_0", "eth0", port=1, gid=False)
    roce(tmp_path, "mlx4_0", "eth1", port=2, gid=False)
    assert over_default_route(tmp_path, "eth1") == {"mlx4_0/1": False, "mlx4_0/2": True}


def test_default_route_of_a_vlan_over_a_bond_goes_over_the_ports_of_the_bond(tmp_path: Path) -> None:
    roce(tmp_path, "mlx5_0", "eth0")
    roce(tmp_path, "mlx5_1", "eth1")
    roce(tmp_path, "mlx5_2", "eth2")
    plant(tmp_path, {f"class/net/bond0/lower_eth{n}/carrier": "1" for n in (0, 1)})
    plant(tmp_path, {"class/net/bond0.7/lower_bond0/carrier": "1"})
    assert over_default_route(tmp_path, "bond0.7") == {"mlx5_0/1": True, "mlx5_1/1": True, "mlx5_2/1": False}


def test_in_a_container_a_device_of_the_same_name_is_not_the_port_s(tmp_path: Path) -> None:
    roce(tmp_path, "mlx5_0", "eth0")
    (tmp_path / "class/net/eth0").unlink()
    assert over_default_route(tmp_path, "eth0") == {"mlx5_0/1": False}
    plant(tmp_path, {"devices/virtual/net/eth0/carrier": "1"})
    (tmp_path / "class/net/eth0").symlink_to(tmp_path / "devices/virtual/net/eth0")
    assert over_default_route(tmp_path, "eth0") == {"mlx5_0/1": False}


def test_bond_that_is_one_rdma_device_is_known_by_its_gid(tmp_path: Path) -> None:
    roce(tmp_path, "mlx5_bond_0", "eth0", gid=False)
    plant(tmp_path, {"class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0": "bond0"})
    plant(tmp_path, {"devices/virtual/net/bond0/bonding/mode": "802.3ad 4"})
    (tmp_path / "class/net/bond0").symlink_to(tmp_path / "devices/virtual/net/bond0")
    assert over_default_route(tmp_path, "bond0") == {"mlx5_bond_0/1": True}


@pytest.mark.parametrize(
    ("text", "guid"),
    [
        ("b83f:d203:00c7:7e5a", "b83f:d203:00c7:7e5a"),
        ("0000:0000:0000:0000", ""),
        ("b83f:d203", ""),
        ("../../etc/passwd", ""),
    ],
)
def test_an_adapter_is_known_by_its_guid_wherever_it_is(tmp_path: Path, text: str, guid: str) -> None:
    folder = add_port(tmp_path)
    plant(folder.parent.parent, {"node_guid": text})
    assert read_one(tmp_path).guid == guid


def test_a_bond_that_is_one_rdma_device_stands_for_the_functions_below_it(tmp_path: Path) -> None:
    functions = [f"0000:5e:00.{n}" for n in (0, 1)]
    for n, function in enumerate(functions):
        pci = tmp_path / f"devices/pci0000:5d/{function}"
        plant(pci / f"net/eth{n}", {"dev_port": "0"})
        plant(tmp_path, {f"class/net/eth{n}/address": "", f"devices/virtual/net/bond0/lower_eth{n}/carrier": "1"})
        (tmp_path / f"class/net/eth{n}/device").symlink_to(pci)
    plant(tmp_path, {"devices/virtual/net/bond0/bonding/mode": "802.3ad 4"})
    (tmp_path / "class/net/bond0").symlink_to(tmp_path / "devices/virtual/net/bond0")
    verbs = tmp_path / f"devices/pci0000:5d/{functions[0]}/infiniband/mlx5_bond_0"
    add_port(
        tmp_path,
        str((verbs / "ports/1").relative_to(tmp_path)),
        link_layer="Ethernet",
        **{"gid_attrs/ndevs/0": "bond0"},
    )
    (verbs / "device").symlink_to(verbs.parent.parent)
    (tmp_path / "class/infiniband").mkdir()
    (tmp_path / "class/infiniband/mlx5_bond_0").symlink_to(verbs)
    [port] = InfinibandCollector(tmp_path, proc=tmp_path).read().ports
    assert (port.slot, port.merged) == (functions[0], (functions[1],))


def test_passes_count_how_often_they_saw_a_port_go_down(tmp_path: Path) -> None:
    folder = add_port(tmp_path)
    collector = InfinibandCollector(tmp_path, proc=tmp_path)
    seen = []
    for state in ("4: ACTIVE", "1: DOWN", "2: INIT", "4: ACTIVE", "", "4: ACTIVE", "1: DOWN"):
        plant(folder, {"state": state})
        seen += [port.seen_down for port in collector.read().ports]
    assert seen == [0, 1, 1, 1, 1, 1, 2]


def test_an_excluded_device_is_never_touched(tmp_path: Path) -> None:
    add_port(tmp_path)
    state = add_port(tmp_path, "class/infiniband/mlx5_5/ports/1") / "state"
    state.unlink()
    os.mkfifo(state)  # a reader that opens it hangs
    ports = InfinibandCollector(tmp_path, exclude=["mlx5_[45]"]).read().ports
    assert [port.name for port in ports] == ["mlx5_0/1"]


def refusing() -> Path:
    """A file that can be opened and answers a read with EINVAL, as the counters of a restricted function do."""
    for path in (Path("/dev/autofs"), Path("/proc/self/attr/keycreate"), Path("/dev/loop-control")):
        try:
            path.read_bytes()
        except OSError as error:
            if error.errno == 22:
                return path
    pytest.skip("no file here answers EINVAL")


def test_a_counter_that_was_refused_is_not_asked_for_again(tmp_path: Path) -> None:
    folder = add_port(tmp_path, **{"counters/symbol_error": "5"})
    counter = folder / "counters/link_downed"
    counter.symlink_to(refusing())
    collector = InfinibandCollector(tmp_path)
    collector.read()
    counter.unlink()
    counter.write_text("3\n")  # would be seen if it were read
    (port,) = collector.read().ports
    assert (port.link_downed, port.symbol_error) == (None, 5)


def test_a_port_that_came_back_is_read_again(tmp_path: Path) -> None:
    folder = add_port(tmp_path, **{"counters/symbol_error": "5"})
    (folder / "counters/link_downed").symlink_to(refusing())
    collector = InfinibandCollector(tmp_path)
    collector.read()
    folder.rename(tmp_path / "unplugged")  # kept, so that the new folder cannot get the inode of the old one
    add_port(tmp_path, **{"counters/link_downed": "3"})
    (port,) = collector.read().ports
    assert port.link_downed == 3


def test_a_counter_that_only_failed_once_is_asked_again(tmp_path: Path) -> None:
    folder = add_port(tmp_path)
    (folder / "counters/link_downed").mkdir(parents=True)  # EISDIR
    collector = InfinibandCollector(tmp_path)
    collector.read()
    (folder / "counters/link_downed").rmdir()
    (folder / "counters/link_downed").write_text("3\n")
    assert [port.link_downed for port in collector.read().ports] == [3]


def test_an_adapter_that_is_gone_takes_its_ports_along(tmp_path: Path) -> None:
    add_port(tmp_path)
    add_port(tmp_path, "class/infiniband/mlx5_1/ports/1")
    collector = InfinibandCollector(tmp_path)
    assert len(collector.read().ports) == 2
    shutil.rmtree(tmp_path / "class/infiniband/mlx5_1")
    assert [port.name for port in collector.read().ports] == ["mlx5_0/1"]


def test_ports_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        add_port(tmp_path, f"class/infiniband/mlx5_0/ports/{number}")
    assert [port.port for port in InfinibandCollector(tmp_path).read().ports] == [1, 2, 10]


def test_more_ports_than_any_host_has_are_refused_whole(tmp_path: Path) -> None:
    for number in range(3):
        add_port(tmp_path, f"class/infiniband/mlx5_0/ports/{number}")
    with pytest.raises(CollectorError, match="more than 2 ports"):
        InfinibandCollector(tmp_path, max_ports=2).read()


def test_a_device_that_is_software_is_left_out(tmp_path: Path) -> None:
    for device in ("rxe0", "rxe1"):
        add_port(tmp_path, f"class/infiniband/{device}/ports/1", state="4: ACTIVE")
    (tmp_path / "devices/virtual/infiniband").mkdir(parents=True)
    (tmp_path / "class/infiniband/rxe0").rename(tmp_path / "devices/virtual/infiniband/rxe0")
    (tmp_path / "devices/pci0000:00").mkdir()
    (tmp_path / "class/infiniband/rxe1").rename(tmp_path / "devices/pci0000:00/rxe1")
    (tmp_path / "class/infiniband/rxe0").symlink_to("../../devices/virtual/infiniband/rxe0")
    (tmp_path / "class/infiniband/rxe1").symlink_to("../../devices/pci0000:00/rxe1")
    collector = InfinibandCollector(tmp_path)
    assert [port.name for port in collector.read().ports] == ["rxe1/1"]
    (tmp_path / "class/infiniband/rxe1/parent").write_text("eth0")
    assert collector.read().ports == ()


def test_virtual_functions_of_an_adapter_of_this_host_are_left_out(tmp_path: Path) -> None:
    for device, function in (("mlx5_0", "0000:9c:00.0"), ("mlx5_18", "0000:9c:00.2"), ("mlx5_1", "0000:9d:00.0")):
        add_port(tmp_path, f"class/infiniband/{device}/ports/1")
        folder = tmp_path / "devices/pci0000:97" / function
        folder.mkdir(parents=True)
        (tmp_path / "class/infiniband" / device / "device").symlink_to(folder)
    (folder.parent / "0000:9c:00.2/physfn").symlink_to("../0000:9c:00.0")
    facts = InfinibandCollector(tmp_path, exclude=["mlx5_9"]).read()
    assert [port.name for port in facts.ports] == ["mlx5_0/1", "mlx5_1/1"]
    assert [name for name in ("mlx5_18", "mlx5_9") if any(re.match(p, name) for p in facts.excluded)] == ["mlx5_9"]


def test_the_fast_path_below_a_network_device_of_hyper_v_is_left_out(tmp_path: Path) -> None:
    """Azure takes it away while it services a host; a machine that starts on another host may have none, or another driver's."""
    roce(tmp_path, "mlx5_0", "enP1s1")
    roce(tmp_path, "mlx5_1", "eth1")
    plant(tmp_path, {"devices/vmbus/0d3a/net/eth0/address": "", "bus/vmbus/drivers/hv_netvsc/uevent": ""})
    (tmp_path / "devices/vmbus/0d3a/driver").symlink_to(tmp_path / "bus/vmbus/drivers/hv_netvsc")
    (tmp_path / "devices/vmbus/0d3a/net/eth0/device").symlink_to(tmp_path / "devices/vmbus/0d3a")
    (tmp_path / "class/net/enP1s1/master").symlink_to(tmp_path / "devices/vmbus/0d3a/net/eth0")
    assert [port.name for port in InfinibandCollector(tmp_path, proc=tmp_path).read().ports] == ["mlx5_1/1"]
