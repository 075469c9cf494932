"""How often each reading is read, what that costs the driver, and that no value is older than it may be or of another GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path

import pynvml
import pytest

from gpuwarden_collectors.facts import GpuAnswer, GpuFacts
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.nvml.due import period
from gpuwarden_collectors.nvml.library import Code
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
from gpuwarden_collectors.nvml.readings import (
    CALLS,
    DAY,
    FIELDS,
    HOUR,
    LITTLE,
    MINUTE,
    PASS,
    SETTING,
    VITAL,
    Cadence,
    Call,
    Field,
)
from support.fake_nvml_library import SOURCES
from support.nvml_nodes import Node, node_in

INTERVAL = NvmlOptions().interval
ROWS: tuple[Call | Field, ...] = (*VITAL, *CALLS, *FIELDS)
INFOROM = {"inforom_valid", "inforom_checksum"}
ELSEWHERE = {"inforom_valid", "confidential_ready"}
"""Read once a minute of one GPU, and only with confidential computing: each has tests of its own."""
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE, SW_POWER = 0x08, 0x20, 0x40, 0x80, 0x04


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with node_in(tmp_path, monkeypatch) as node:
        yield node


def attributes(row: Call | Field) -> tuple[str, ...]:
    return row.into if isinstance(row, Call) else (row.into,)


CADENCE: dict[str, Cadence] = {name: row.cadence for row in ROWS for name in attributes(row)}


def read_in(gpu: GpuFacts, now: float) -> set[str]:
    """Return the names of the readings that this pass took, of those that are not taken in each pass."""
    return {name for name, at in gpu.read_at.items() if at == round(now, 3)}


def in_full(gpu: GpuFacts, now: float) -> bool:
    """Nothing in it is older than this pass. What one GPU in a pass is asked for has its own tests."""
    return read_in(gpu, now) | INFOROM == gpu.read_at.keys() | INFOROM


# --- the price


def test_the_prices_of_the_table_are_those_of_the_fake_library() -> None:
    text = (SOURCES / "prices.def").read_text()
    calls = {name: int(price) for name, price in re.findall(r"^PRICE\((\w+),\s*(\d+)\)", text, re.MULTILINE)}
    of_fields = {
        getattr(pynvml, f"NVML_FI_DEV_{name}"): int(price)
        for name, price in re.findall(r"^FIELD_PRICE\((\w+),\s*(\d+)\)", text, re.MULTILINE)
    }
    special = {
        "inforom_valid": "nvmlDeviceValidateInforom", "memory_unrepairable": "nvmlDeviceGetUnrepairableMemoryFlag_v1",
    }  # fmt: skip
    for row in (*VITAL, *CALLS):
        function = row.function if isinstance(row.function, str) else special.get(row.into[0], "")
        assert round(row.price * 1000) == calls.get(function, round(LITTLE * 1000)), function
    assert {field.id: round(field.price * 1000) for field in FIELDS if field.price} == of_fields


BESIDE_THE_TABLE = {
    # ms in each pass of an H100 with 18 links: handle, PCI address, UUID, processes, the one call for all fields, GPM
    "identity, processes, fields": 5 * LITTLE,
    "link states": 18 * LITTLE,
    "GPM": 0.2,
}
LINK_COUNTERS = (2 * 18 + 1) * LITTLE  # ms each minute: two counters of each link, and the fields of all in one call


def h100(name: str) -> bool:
    """An H100 gives this reading (readings.def)."""
    match = re.search(rf"^READING\({name},\s*(\w+|-\d+),", (SOURCES / "readings.def").read_text(), re.MULTILINE)
    return match is None or match[1] != "NO"  # sums over links have no row of their own


def milliseconds_a_pass() -> float:
    def share(cadence: Cadence) -> float:
        return INTERVAL / period(cadence, INTERVAL) if cadence else 1.0

    table = sum(row.price * share(row.cadence) for row in ROWS if h100(attributes(row)[0]))
    return table + sum(BESIDE_THE_TABLE.values()) + LINK_COUNTERS * share(MINUTE)


def test_by_the_table_a_pass_takes_3_ms_of_the_driver_at_most_hourly_and_daily_readings_included() -> None:
    assert 2.0 < milliseconds_a_pass() <= 3.0


def test_without_the_cadences_it_would_take_four_times_that() -> None:
    """The readings of each pass cost 11 ms on an H100, of which 0.9 were of readings that are no longer taken: the prices are about those of the real driver."""
    dear = {DAY, HOUR, SETTING}
    all_the_time = sum(row.price for row in ROWS if h100(attributes(row)[0]) and row.cadence not in dear)
    assert 9.0 < all_the_time + sum(BESIDE_THE_TABLE.values()) < 11.0


@pytest.mark.parametrize("gpus", [1, 8])
def test_ten_minutes_of_passes_cost_what_the_table_gives_and_no_pass_is_a_burst(node: Node, gpus: int) -> None:
    node.fake.write(gpus=gpus, frozen=True)
    node.reader.connect()
    for _ in range(2 * gpus):  # the first is in full, and each GPU has its turn for what takes long
        node.read()
    passes = []
    for _ in range(120):
        before = node.fake.driver_ms()
        node.read()
        passes.append((node.fake.driver_ms() - before) / gpus)
    daily = sum(row.price for row in ROWS if row.cadence in (DAY, HOUR)) / period(HOUR, INTERVAL) * INTERVAL
    assert sum(passes) / 120 + daily <= 3.0
    assert sum(passes) / 120 == pytest.approx(milliseconds_a_pass(), rel=0.05)
    assert max(passes) <= (6.0 if gpus == 1 else 3.5)  # energy alone is 2.85, and cannot be divided


# --- age


@pytest.mark.slow
@pytest.mark.parametrize("interval", [1.0, 5.0, 7.0, 45.0, 90.0])
def test_no_value_grows_older_than_its_cadence(node: Node, interval: float) -> None:
    node.fake.write(gpus=3)
    node.reader = NvmlReader(NvmlOptions(library=str(node.fake.library), interval=interval), clock=lambda: node.now)
    node.reader.connect()
    newest: dict[str, float] = {}
    for _ in range(int(max(600, 12 * interval) / interval)):
        for gpu in node.read(after=interval).gpus:
            for name, at in gpu.read_at.items():
                newest[name] = max(newest.get(name, 0.0), node.now - at)
    assert newest.keys() >= {name for name, cadence in CADENCE.items() if cadence and h100(name)} - ELSEWHERE
    assert [
        name for name, age in newest.items() if age > max(CADENCE.get(name, MINUTE), 0 if interval < 60 else interval)
    ] == []


def test_the_times_are_of_what_is_not_read_in_each_pass_and_of_nothing_else(node: Node) -> None:
    node.reader.connect()
    gpu = node.gpu()
    assert {name for name in gpu.read_at if CADENCE.get(name, MINUTE) is PASS} == set()
    assert {CADENCE[name] for name in ("energy_mj", "pcie_replays", "temperature_margin")} == {MINUTE}
    assert max(cadence for name, cadence in CADENCE.items() if name not in INFOROM and "clock" not in name) == SETTING
    assert all(getattr(gpu.readings, name) is not None for name in gpu.read_at)


def test_between_two_readings_the_last_value_is_kept_with_its_own_time(node: Node) -> None:
    node.reader.connect()
    node.gpu()
    node.fake.reading(0, "energy_mj", 111)
    first: dict[float, tuple[float, int | None]] = {}
    for _ in range(12):
        gpu = node.gpu()
        first.setdefault(gpu.read_at["energy_mj"], (node.now, gpu.readings.energy_mj))
    (earlier, (seen, old)), (later, (at, new)) = first.items()
    assert (old != 111, new, later) == (True, 111, at)
    assert earlier < seen


def test_what_could_not_be_read_again_has_no_value_until_it_can(node: Node) -> None:
    node.reader.connect()
    node.read()
    node.fake.error(0, "field:83", Code.UNKNOWN)
    for _ in range(12):
        gpu = node.gpu()
        if gpu.readings.energy_mj is None:
            break
    assert (gpu.readings.energy_mj, "energy_mj" in gpu.read_at) == (None, False)
    assert [error.call for error in gpu.errors] == ["field 83"]
    node.fake.clear()
    gpu = node.gpu()
    assert (gpu.readings.energy_mj is None, gpu.read_at["energy_mj"]) == (False, node.now)


def test_what_is_not_supported_stays_none_and_what_is_not_read_does_not_become_it(node: Node) -> None:
    node.fake.reading(0, "slowdown_hw_thermal_ns", "none").reading(0, "temperature_margin", "none")
    node.reader.connect()
    for _ in range(30):
        readings = node.gpu().readings
        assert (readings.slowdown_hw_thermal_ns, readings.temperature_margin) == (None, None)
        assert None not in (readings.slowdown_hw_power_brake_ns, readings.energy_mj, readings.pcie_replays)


# --- triggers


@pytest.mark.parametrize(
    ("bits", "read"),
    [
        (HW_THERMAL, {"violation_thermal_ns", "slowdown_hw_thermal_ns"}),
        (SW_THERMAL, {"violation_thermal_ns"}),
        (POWER_BRAKE, {"slowdown_hw_power_brake_ns"}),
        (HW_SLOWDOWN, {"violation_thermal_ns", "slowdown_hw_thermal_ns", "slowdown_hw_power_brake_ns"}),
        (SW_POWER, set[str]()),
    ],
)
def test_violation_counters_are_read_while_the_clocks_are_lowered_and_once_behind_it(
    node: Node, bits: int, read: set[str]
) -> None:
    def triggered(passes: int) -> list[set[str]]:
        counters = {"violation_thermal_ns", "slowdown_hw_thermal_ns", "slowdown_hw_power_brake_ns"}
        return [read_in(node.gpu(), node.now) & counters for _ in range(passes)]

    node.reader.connect()
    assert set.union(*triggered(13)) == {"violation_thermal_ns", "slowdown_hw_thermal_ns", "slowdown_hw_power_brake_ns"}
    node.fake.reading(0, "clock_event_reasons", bits)
    assert [read <= names for names in triggered(15)] == [True] * 15
    node.fake.reading(0, "clock_event_reasons", 0)
    after = triggered(12)
    assert read <= after[0]
    assert sum(len(names) for names in after[1:]) <= 3


def test_the_margin_is_read_in_each_pass_only_near_the_limit(node: Node) -> None:
    def times(temperature: int) -> int:
        node.fake.reading(0, "temperature", temperature)
        return sum("temperature_margin" in read_in(node.gpu(), node.now) for _ in range(22))

    node.reader.connect()
    node.gpu()
    assert times(69) == 2  # the limit of an H100 is 85 here
    assert times(70) == 22
    assert times(91) == 22
    assert times(60) == 3
    node.fake.reading(0, "temperature_gpu_max", "none").reading(0, "temperature_margin", 25)
    node.gpu(after=SETTING)
    assert times(60) == 22


def test_mig_that_is_turned_on_or_off_is_seen_in_the_next_pass(node: Node) -> None:
    node.reader.connect()
    for _ in range(3):
        assert node.gpu().readings.mig_mode == 0
    node.fake.mig(0, 1, 0, "3g.40gb", 40448)
    gpu = node.gpu()
    assert (gpu.readings.mig_mode, len(gpu.mig)) == (1, 1)
    for _ in range(3):
        node.gpu()
    node.fake.clear()
    assert (node.gpu().readings.mig_mode, node.gpu().readings.utilization_gpu is None) == (0, False)


# --- in full


def test_the_first_pass_reads_everything(node: Node) -> None:
    node.fake.reading(0, "confidential_computing", 1)
    node.reader.connect()
    gpu = node.gpu()
    missing = {field.name for field in fields(GpuReadings) if getattr(gpu.readings, field.name) is None}
    assert in_full(gpu, node.now)
    assert {name for name in missing if CADENCE.get(name) and h100(name)} == set()


COMES_BACK: dict[str, Callable[[Node], object]] = {
    "vanished": lambda node: node.fake.vanish(3),
    "lost": lambda node: node.fake.lost(3),
    "lost in the middle": lambda node: node.fake.error(3, "nvmlDeviceGetRemappedRows", Code.GPU_IS_LOST),
    "timed out": lambda node: node.fake.lost(3, Code.TIMEOUT),
    "unknown error": lambda node: node.fake.lost(3, Code.UNKNOWN),
    "nothing vital": lambda node: (
        [
            node.fake.error(3, call.function, Code.UNKNOWN)
            for row in VITAL
            for call in (row, row.otherwise)
            if call is not None and isinstance(call.function, str) and call.function != "nvmlDeviceGetMemoryInfo"
        ]
        + [node.fake.error(3, f"nvmlDeviceGetMemoryInfo{version}", Code.UNKNOWN) for version in ("", "_v2")]
    ),
    "reset required": lambda node: node.fake.lost(3, Code.RESET_REQUIRED),
    "reset required, of some calls": lambda node: node.fake.error(3, "nvmlDeviceGetRemappedRows", Code.RESET_REQUIRED),
}


@pytest.mark.parametrize("how", COMES_BACK)
def test_a_gpu_that_was_away_is_read_in_full_in_its_first_pass(node: Node, how: str) -> None:
    """A reset is recognised by its counters, and those of before would hide it."""
    node.fake.reading(3, "energy_mj", 9_000_000).reading(3, "pcie_replays", 3)
    node.reader.connect()
    for _ in range(4):
        assert node.gpu(3).readings.energy_mj == 9_000_000
    COMES_BACK[how](node)
    for _ in range(2):
        there = {gpu.index: gpu for gpu in node.read().gpus}
        assert how == "vanished" or there[3].answer is not GpuAnswer.OK
    node.fake.clear().reading(3, "energy_mj", 40).reading(3, "pcie_replays", 0)
    gpu = node.gpu(3)
    assert (gpu.answer, gpu.readings.energy_mj, gpu.readings.pcie_replays) == (GpuAnswer.OK, 40, 0)
    assert in_full(gpu, node.now)
    assert not in_full(node.gpu(3), node.now)


CHANGES: dict[str, Callable[[Node], object]] = {
    "another board": lambda node: node.fake.text(3, "uuid", "GPU-another-board"),
    "another handle": lambda node: node.fake.renew(3),
    "counting again": lambda node: node.fake.reading(3, "violation_low_utilization_ns", 5),
    "the library began again": lambda node: node.reader.close(),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_gpu_that_was_replaced_or_reset_between_two_passes_is_read_in_full(node: Node, how: str) -> None:
    node.fake.reading(3, "energy_mj", 9_000_000).reading(3, "violation_low_utilization_ns", 70)
    node.reader.connect()
    for _ in range(4):
        before = node.gpu(3)
    assert not in_full(before, node.now)
    node.fake.reading(3, "energy_mj", 40)
    CHANGES[how](node)
    gpu = node.gpu(3)
    assert gpu.readings.energy_mj == 40
    assert in_full(gpu, node.now)
    assert not in_full(node.gpu(3), node.now)


def test_a_gpu_that_needs_a_reset_shows_nothing_of_before(node: Node) -> None:
    node.reader.connect()
    node.read()
    for row in FIELDS:
        node.fake.error(3, f"field:{row.id}", Code.RESET_REQUIRED)
    gpu = node.gpu(3)
    assert gpu.answer is GpuAnswer.RESET_REQUIRED
    assert {getattr(gpu.readings, row.into) for row in FIELDS if row.into != "nvlink5_recoveries"} == {None}


# --- what takes long


def test_the_inforom_is_checked_each_day_one_gpu_in_a_pass(node: Node) -> None:
    node.fake.write(gpus=3).reading("*", "inforom_valid", 0)
    node.reader.connect()
    valid = [[gpu.readings.inforom_valid for gpu in node.read().gpus] for _ in range(3)]
    assert valid == [[0, None, None], [0, 0, None], [0, 0, 0]]
    node.fake.clear()
    assert {gpu.readings.inforom_valid for _ in range(3) for gpu in node.read().gpus} == {0}
    node.now += 23 * HOUR
    for _ in range(3):
        facts = node.read()
    assert {gpu.readings.inforom_valid for gpu in facts.gpus} == {1}
    assert {gpu.readings.inforom_checksum is None for gpu in facts.gpus} == {False}


def test_a_gpu_that_comes_back_alone_has_its_turn_at_once(node: Node) -> None:
    node.reader.connect()
    for _ in range(9):
        node.read()
    node.fake.vanish(5)
    node.read()
    node.fake.clear()
    gpu = node.gpu(5)
    assert {gpu.read_at[name] for name in gpu.read_at} == {node.now}
    assert gpu.readings.inforom_valid == 1


def test_a_command_of_one_pass_reads_all_of_it_of_every_gpu(node: Node) -> None:
    node.reader = NvmlReader(NvmlOptions(library=str(node.fake.library), in_full=True), clock=lambda: node.now)
    node.reader.connect()
    assert [gpu.readings.inforom_valid for gpu in node.read().gpus] == [1] * 8


def test_an_inforom_that_cannot_be_checked_keeps_no_other_gpu_waiting(node: Node) -> None:
    node.fake.write(gpus=3).error(0, "nvmlDeviceValidateInforom", Code.UNKNOWN)
    node.reader.connect()
    calls = [error.call for _ in range(12) for error in node.gpu().errors]
    assert calls == ["inforom_valid"]  # again after a minute
    assert [gpu.readings.inforom_valid for gpu in node.read().gpus] == [None, 1, 1]


def test_the_window_of_an_instance_is_read_each_minute_and_of_a_new_one_at_once(node: Node) -> None:
    node.fake.write(gpus=1, frozen=True).mig(0, 1, 0, "3g.40gb", 40448)
    node.reader.connect()
    node.read()
    before = node.gpu().mig[0].bar1_used_bytes
    node.fake.reading(0, "bar1_used_bytes", 123).mig(0, 5, 0, "1g.10gb", 9728)
    old, new = node.gpu().mig
    assert (old.bar1_used_bytes, new.bar1_used_bytes) == (before, 123)
    for _ in range(12):
        gpu = node.gpu()
    assert [instance.bar1_used_bytes for instance in gpu.mig] == [123, 123]
