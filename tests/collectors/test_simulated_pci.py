"""The simulated PCI bus: what is written is what the collector reads, at every instant."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwarden_collectors.pci import PciCollector
from gpuwarden_collectors.pci_facts import PciDevice, PciFacts, PciKind
from gpuwarden_collectors.simulated_pci import h100, remove_device, write_device, write_tree

GPUS = tuple(h100(f"0000:{bus:02x}:00.0") for bus in range(0x10, 0x18))

speeds = st.none() | st.sampled_from([2.5, 8.0, 16.0, 32.0, 64.0])
widths = st.none() | st.sampled_from([1, 2, 4, 8, 16])
counters = st.none() | st.integers(0, 2**64 - 1)
any_device = st.builds(
    PciDevice,
    slot=st.integers(0, 255).map(lambda bus: f"0000:{bus:02x}:00.0"),
    kind=st.sampled_from(PciKind),
    device_id=st.integers(0, 0xFFFF),
    driver=st.sampled_from(["", "nvidia", "nouveau"]),
    responds=st.sampled_from([True, False, None]),
    speed=speeds,
    speed_max=speeds,
    width=widths,
    width_max=widths,
    aer_correctable=counters,
    aer_nonfatal=counters,
    aer_fatal=counters,
)


def collector_of(sysfs: Path, *, max_functions: int = 16384, again_after: float = 0.0) -> PciCollector:
    return PciCollector(sysfs, max_functions=max_functions, again_after=again_after)


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(st.lists(any_device, unique_by=lambda device: device.slot, max_size=4))
def test_what_is_written_is_read(devices: list[PciDevice]) -> None:
    with TemporaryDirectory() as root:
        write_tree(Path(root), devices)
        expected = PciFacts(devices=tuple(sorted(devices, key=lambda device: device.slot)))
        assert collector_of(Path(root)).read() == expected


def test_a_tree_written_again_holds_exactly_the_new_devices(tmp_path: Path) -> None:
    write_tree(tmp_path, GPUS)
    write_tree(tmp_path, GPUS[2:5])
    assert collector_of(tmp_path).read().devices == GPUS[2:5]


def test_an_empty_tree_is_an_empty_bus(tmp_path: Path) -> None:
    write_tree(tmp_path, ())
    assert collector_of(tmp_path).read() == PciFacts()


def test_a_device_that_stops_answering_reads_all_ones(tmp_path: Path) -> None:
    write_tree(tmp_path, GPUS)
    collector = collector_of(tmp_path)
    collector.read()
    write_device(tmp_path, replace(GPUS[3], responds=False))
    assert (tmp_path / "bus/pci/devices" / GPUS[3].slot / "config").read_bytes()[:4] == b"\xff\xff\xff\xff"
    assert [device.responds for device in collector.read().devices] == [True] * 3 + [False] + [True] * 4


def test_a_removed_device_is_gone_and_can_come_back(tmp_path: Path) -> None:
    write_tree(tmp_path, GPUS)
    collector = collector_of(tmp_path)
    remove_device(tmp_path, GPUS[0].slot)
    remove_device(tmp_path, GPUS[0].slot)
    assert collector.read().devices == GPUS[1:]
    write_device(tmp_path, GPUS[0])
    assert collector.read().devices == GPUS


def test_a_device_rewritten_many_times_leaves_no_heap_behind(tmp_path: Path) -> None:
    for count in range(20):
        write_tree(tmp_path, [replace(GPUS[0], aer_correctable=count)])
    assert len(list((tmp_path / "devices" / GPUS[0].slot).iterdir())) == 1


def test_nobody_sees_half_a_device_while_it_is_rewritten_and_removed(tmp_path: Path) -> None:
    healthy, sick = GPUS[0], replace(GPUS[0], responds=False, width=4, speed=2.5, aer_fatal=9)
    write_tree(tmp_path, GPUS)
    stop = threading.Event()

    def writer() -> None:
        while not stop.is_set():
            for device in (sick, healthy):
                write_device(tmp_path, device)
            remove_device(tmp_path, healthy.slot)

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        collector = collector_of(tmp_path)
        seen = [collector.read().devices for _ in range(300)]
    finally:
        stop.set()
        thread.join()
    assert all(devices[-7:] == GPUS[1:] for devices in seen)
    assert {devices[:-7] for devices in seen} <= {(), (healthy,), (sick,)}
