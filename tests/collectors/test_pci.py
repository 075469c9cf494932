"""The PCI collector on recorded, odd and changing buses."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden_collectors.base import CollectorError, SourceAbsent
from gpuwarden_collectors.pci import PciCollector
from gpuwarden_collectors.pci_facts import PciDevice, PciFacts, PciKind
from gpuwarden_collectors.simulated_pci import h100, write_tree
from support.pci_trees import add_function, unpack

GPU = {"vendor": "0x10de", "device": "0x2330", "class": "0x030200"}
SLOT = "0000:4e:00.0"


def collector_of(sysfs: Path, *, max_functions: int = 16384, again_after: float = 0.0) -> PciCollector:
    return PciCollector(sysfs, max_functions=max_functions, again_after=again_after)


def read_one(sysfs: Path) -> PciDevice:
    (device,) = collector_of(sysfs).read().devices
    return device


def test_a_recorded_bare_metal_server_gives_exactly_its_switches_and_gpus(tmp_path: Path) -> None:
    def switch(bus: str) -> PciDevice:
        return PciDevice(
            slot=f"0000:{bus}:00.0",
            kind=PciKind.SWITCH,
            device_id=0x22A3,
            driver="nvidia-nvswitch",
            responds=True,
            speed=16.0,
            speed_max=16.0,
            width=2,
            width_max=2,
            aer_correctable=0,
            aer_nonfatal=0,
            aer_fatal=0,
        )

    def gpu(bus: str) -> PciDevice:
        return PciDevice(
            slot=f"0000:{bus}:00.0",
            kind=PciKind.GPU,
            device_id=0x2330,
            driver="nvidia",
            responds=True,
            speed=32.0,
            speed_max=32.0,
            width=16,
            width_max=16,
            aer_correctable=0,
            aer_nonfatal=0,
            aer_fatal=0,
        )

    switches = [switch(bus) for bus in ("05", "06", "07", "08")]
    gpus = [gpu(bus) for bus in ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")]
    assert collector_of(unpack("hgx-h100", tmp_path)).read() == PciFacts(devices=(*switches, *gpus))


def test_a_recorded_virtual_machine_has_gpus_whose_link_width_is_unknown(tmp_path: Path) -> None:
    devices = collector_of(unpack("h100-virtual-machine", tmp_path)).read().devices
    assert [device.slot[5:7] for device in devices if device.kind is PciKind.SWITCH] == ["f3", "f4", "f5", "f6"]
    gpus = [device for device in devices if device.kind is PciKind.GPU]
    assert [device.slot[5:7] for device in gpus] == ["a4", "ae", "b8", "c2", "cc", "d6", "e0", "ea"]
    assert {(gpu.speed, gpu.speed_max, gpu.width, gpu.width_max, gpu.aer_fatal, gpu.responds) for gpu in gpus} == {
        (32.0, 32.0, None, None, None, True)
    }


def test_a_host_without_a_pci_bus_has_no_source(tmp_path: Path) -> None:
    with pytest.raises(SourceAbsent, match="no PCI bus"):
        collector_of(tmp_path).read()


def test_a_bus_without_nvidia_functions_is_observed_and_empty(tmp_path: Path) -> None:
    add_function(tmp_path, SLOT, vendor="0x8086", device="0x2330", **{"class": "0x030200"})
    assert collector_of(tmp_path).read() == PciFacts()


@pytest.mark.parametrize(
    ("klass", "kind"),
    [
        ("0x030000", PciKind.GPU),
        ("0x030200", PciKind.GPU),
        ("0x068000", PciKind.SWITCH),
        ("0x040300", PciKind.OTHER),  # audio of a graphics card
        ("0x0c0330", PciKind.OTHER),  # USB of a graphics card
        ("0x060400", PciKind.OTHER),  # root port of a Grace host
    ],
)
def test_the_kind_of_a_function_follows_from_its_class(tmp_path: Path, klass: str, kind: PciKind) -> None:
    add_function(tmp_path, SLOT, vendor="0x10de", device="0x2330", **{"class": klass})
    assert read_one(tmp_path).kind is kind


def test_a_virtual_function_of_a_gpu_is_not_counted_as_a_gpu(tmp_path: Path) -> None:
    folder = add_function(tmp_path, "0000:4e:00.4", **GPU)
    (folder / "physfn").symlink_to("../0000:4e:00.0")
    assert read_one(tmp_path).kind is PciKind.OTHER


@pytest.mark.parametrize(
    ("attribute", "text", "field", "value"),
    [
        ("current_link_speed", "2.5 GT/s PCIe", "speed", 2.5),
        ("current_link_speed", "64.0 GT/s PCIe", "speed", 64.0),
        ("current_link_speed", "8 GT/s", "speed", 8.0),  # kernels before 5.6
        ("current_link_speed", "Unknown speed", "speed", None),
        ("current_link_speed", "Unknown", "speed", None),
        ("current_link_speed", "133 MHz PCI-X", "speed", None),
        ("current_link_speed", "", "speed", None),
        ("max_link_speed", "Unknown", "speed_max", None),
        ("current_link_width", "1", "width", 1),
        ("current_link_width", "0", "width", None),
        ("current_link_width", "63", "width", None),  # the device is gone: all ones in the link status
        ("max_link_width", "255", "width_max", None),
        ("max_link_width", "-1", "width_max", None),
        ("max_link_width", "x16", "width_max", None),
        ("aer_dev_correctable", "Receiver Error 2;Bad TLP 0;TOTAL_ERR_COR 7", "aer_correctable", 7),
        ("aer_dev_correctable", "RxErr 2;BadTLP 0", "aer_correctable", None),
        ("aer_dev_correctable", "TOTAL_ERR_COR", "aer_correctable", None),
        ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 18446744073709551615", "aer_nonfatal", 2**64 - 1),
        ("aer_dev_fatal", "TOTAL_ERR_FATAL -3", "aer_fatal", None),
        ("aer_dev_fatal", "TOTAL_ERR_FATAL ٣x\x00", "aer_fatal", None),
        ("aer_dev_fatal", "A" * 100_000 + ";TOTAL_ERR_FATAL 3", "aer_fatal", None),  # longer than a page: cut
    ],
)
def test_unusual_values_of_an_attribute(
    tmp_path: Path, attribute: str, text: str, field: str, value: float | None
) -> None:
    add_function(tmp_path, SLOT, **GPU, **{attribute: text})
    assert getattr(read_one(tmp_path), field) == value


@pytest.mark.parametrize(
    ("config", "responds"), [("de103023", True), ("ffffffff", False), ("ffff3023", True), ("0100ffff", True)]
)
def test_only_a_configuration_space_of_all_ones_is_no_answer(tmp_path: Path, config: str, responds: bool) -> None:
    add_function(tmp_path, SLOT, **GPU, config=config)
    assert read_one(tmp_path).responds is responds


def test_a_configuration_space_that_cannot_be_read_is_no_evidence(tmp_path: Path) -> None:
    add_function(tmp_path, "0000:01:00.0", **GPU)  # missing
    (add_function(tmp_path, "0000:02:00.0", **GPU) / "config").mkdir()  # open succeeds, read is refused
    (add_function(tmp_path, "0000:03:00.0", **GPU) / "config").write_bytes(b"\xff\xff")  # cut short
    assert [device.responds for device in collector_of(tmp_path).read().devices] == [None, None, None]


def test_a_gpu_that_belongs_to_a_guest_is_listed_and_left_alone(tmp_path: Path) -> None:
    add_function(tmp_path, SLOT, **GPU, driver="vfio-pci", config="ffffffff", current_link_width="16")
    assert read_one(tmp_path) == PciDevice(slot=SLOT, kind=PciKind.GPU, device_id=0x2330, driver="vfio-pci")


@pytest.mark.parametrize("driver", ["nvidia", "nouveau", ""])
def test_the_driver_is_the_one_that_is_bound(tmp_path: Path, driver: str) -> None:
    add_function(tmp_path, SLOT, **GPU, **({"driver": driver} if driver else {}))
    assert read_one(tmp_path).driver == driver


def test_the_ports_above_a_function_are_those_of_its_path(tmp_path: Path) -> None:
    folder = add_function(tmp_path, SLOT, **GPU, config="de103023")
    deep = tmp_path / "devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0" / SLOT
    deep.parent.mkdir(parents=True)
    folder.rename(deep)
    link = tmp_path / "bus/pci/devices" / SLOT
    link.unlink()
    link.symlink_to(f"../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/{SLOT}")
    assert read_one(tmp_path).upstream == ("0000:00:01.0", "0000:01:00.0", "0000:02:08.0")


def test_a_device_that_vanished_after_it_was_listed_is_not_there(tmp_path: Path) -> None:
    folder = add_function(tmp_path, SLOT, **GPU, config="de103023")
    add_function(tmp_path, "0000:5d:00.0", **GPU, config="de103023")
    collector = collector_of(tmp_path)
    assert len(collector.read().devices) == 2
    shutil.rmtree(folder)  # the link in the listing stays: known by then, gone when it is opened
    assert [device.slot for device in collector.read().devices] == ["0000:5d:00.0"]
    assert [device.slot for device in collector_of(tmp_path).read().devices] == ["0000:5d:00.0"]


def test_a_function_without_a_vendor_fails_the_pass(tmp_path: Path) -> None:
    add_function(tmp_path, SLOT, device="0x2330", **{"class": "0x030200"})
    with pytest.raises(CollectorError, match=f"cannot identify .*{SLOT}:"):
        collector_of(tmp_path).read()


def test_what_has_no_pci_address_is_no_function(tmp_path: Path) -> None:
    add_function(tmp_path, "GPU0", **GPU)
    assert collector_of(tmp_path).read() == PciFacts()


def test_a_five_digit_domain_keeps_its_digits(tmp_path: Path) -> None:
    add_function(tmp_path, "10000:e1:00.0", **GPU)
    assert read_one(tmp_path).slot == "10000:e1:00.0"


def test_functions_of_other_vendors_are_not_opened_again(tmp_path: Path) -> None:
    folder = add_function(tmp_path, SLOT, vendor="0x15b3", device="0x1021", **{"class": "0x030200"})
    collector = collector_of(tmp_path)
    assert collector.read() == PciFacts()
    (folder / "vendor").write_text("0x10de\n")  # would be seen if it were read
    assert collector.read() == PciFacts()


def test_another_device_in_a_known_slot_is_seen(tmp_path: Path) -> None:
    add_function(tmp_path, SLOT, vendor="0x15b3", device="0x1021", **{"class": "0x020700"})
    collector = collector_of(tmp_path)
    assert collector.read() == PciFacts()
    link = tmp_path / "bus/pci/devices" / SLOT
    link.rename(tmp_path / "unplugged")  # kept, so that the new link cannot get the inode of the old one
    shutil.rmtree(tmp_path / "devices")
    add_function(tmp_path, SLOT, **GPU)
    assert [device.kind for device in collector.read().devices] == [PciKind.GPU]


def test_more_functions_than_any_host_has_are_refused_whole(tmp_path: Path) -> None:
    for bus in range(4):
        add_function(tmp_path, f"0000:0{bus}:00.0", **GPU)
    assert len(collector_of(tmp_path, max_functions=4).read().devices) == 4
    with pytest.raises(CollectorError, match="more than 3 functions"):
        collector_of(tmp_path, max_functions=3).read()


@pytest.mark.slow
def test_a_function_that_does_not_respond_for_the_time_of_a_reset_is_not_reported(tmp_path: Path) -> None:
    gpu = h100("0000:4e:00.0")
    write_tree(tmp_path, [replace(gpu, responds=False)])
    back = threading.Timer(0.2, write_tree, (tmp_path, [gpu]))
    back.start()
    assert collector_of(tmp_path, again_after=2.0).read().devices == (gpu,)
    back.join()


def test_a_function_that_stays_unresponsive_is_reported(tmp_path: Path) -> None:
    dead = replace(h100("0000:4e:00.0"), responds=False)
    write_tree(tmp_path, [dead])
    assert [device.responds for device in collector_of(tmp_path, again_after=0.1).read().devices] == [False]
