"""The table of readings against the vendor's bindings and against what the (fake) driver answers, value by value."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpuwarden_collectors.facts import GpuAnswer, LinkFacts
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.nvml.calls import _FIELD_VALUE, decode_field
from gpuwarden_collectors.nvml.gpm import _METRIC
from gpuwarden_collectors.nvml.library import Code
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.reader import NvmlReader
from gpuwarden_collectors.nvml.readings import (
    CALLS,
    FIELDS,
    GPM,
    GPM_OF_INSTANCES,
    LINK_FIELDS,
    LINK_SUMS,
    MEMORY_V2,
    VITAL,
    Call,
)
from support.fake_nvml_library import names
from support.nvml_nodes import MINUTE, Node, node_in

READINGS = [attribute.name for attribute in fields(GpuReadings)]
SMALL = {
    "performance_state": 3,
    "fabric_in_cluster": 1,
    "mig_mode": 0,
    "inforom_valid": 1,
    "vgpu_license": 1,
    "confidential_ready": 1,
    **{name: 90 + number for number, name in enumerate(GPM_OF_INSTANCES)},  # per cent
}  # only these values mean something


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    with node_in(tmp_path, monkeypatch) as node:
        yield node


def chain(call: Call | None) -> list[Call]:
    return [] if call is None else [call, *chain(call.otherwise)]


ALL_CALLS = [call for row in (*VITAL, *CALLS) for call in chain(row)]


# --- the table


def test_every_attribute_of_the_readings_has_a_source() -> None:
    sources = [*(name for call in (*VITAL, *CALLS) for name in call.into), *(field.into for field in FIELDS), *GPM]
    assert set(READINGS) == set(sources) | set(LINK_SUMS)
    assert [name for name, count in Counter(sources).items() if count > 1] == []


def test_a_second_choice_fills_nothing_that_the_first_does_not() -> None:
    assert all(set(later.into) <= set(row.into) for row in (*VITAL, *CALLS) for later in chain(row))


def test_the_bindings_know_every_function_of_the_table() -> None:
    assert [
        call.function for call in ALL_CALLS if isinstance(call.function, str) and not hasattr(pynvml, call.function)
    ] == []


def test_the_numbers_are_those_of_the_bindings() -> None:
    assert all(code == getattr(pynvml, f"NVML_ERROR_{code.name}") for code in Code if code is not Code.SUCCESS)
    assert pynvml.nvmlMemory_v2 == MEMORY_V2
    assert all(field.id < pynvml.NVML_FI_MAX for field in FIELDS)
    assert len({(field.id, field.scope) for field in FIELDS}) == len(FIELDS)
    assert set(LINK_FIELDS.values()) <= set(range(pynvml.NVML_FI_MAX))


def test_the_layouts_that_are_unpacked_are_those_of_the_bindings() -> None:
    assert _FIELD_VALUE.size == ctypes.sizeof(pynvml.c_nvmlFieldValue_t)
    assert _METRIC.size == ctypes.sizeof(pynvml.c_nvmlGpmMetric_t)
    value = pynvml.c_nvmlFieldValue_t(fieldId=1, scopeId=2, timestamp=3, latencyUsec=4, valueType=5, nvmlReturn=6)
    value.value.siVal = -7
    *rest, raw = _FIELD_VALUE.unpack_from(value)
    assert (rest, decode_field(5, raw)) == ([1, 2, 3, 4, 5, 6], -7)


@pytest.mark.parametrize(
    ("kind", "member", "stored", "value"),
    [
        (0, "dVal", 41.6, 42),
        (0, "dVal", float("nan"), None),
        (0, "dVal", float("inf"), None),
        (1, "uiVal", 7, 7),
        (1, "uiVal", 0xFFFFFFFF, None),
        (2, "ulVal", 2**63, 2**63),
        (3, "ullVal", 2**64 - 2, 2**64 - 2),
        (3, "ullVal", 2**64 - 1, None),
        (4, "sllVal", -5, -5),
        (5, "siVal", -1, -1),
        (6, "usVal", 65535, 65535),
        (99, "ullVal", 12, 12),
    ],
)
def test_a_field_value_is_read_as_the_type_it_declares(
    kind: int, member: str, stored: float, value: int | None
) -> None:
    union = pynvml.c_nvmlValue_t()
    setattr(union, member, stored)
    assert decode_field(kind, bytes(union)) == value


# --- the values


def test_every_reading_of_the_driver_arrives_in_its_own_attribute(node: Node) -> None:
    expected = {name: SMALL.get(name, 20 + number) for number, name in enumerate(READINGS) if name in names("READING")}
    assert len(expected) > 100
    node.fake.reading(0, "confidential_computing", 1)
    node.fake.add(*(f"set 0 {name} {value}" for name, value in expected.items()))
    node.reader.connect()
    node.read()
    readings = node.gpu().readings
    assert {name: getattr(readings, name) for name in expected} == expected
    assert readings.memory_free_bytes is not None
    assert readings.bar1_free_bytes is not None


def test_nvlink_4_counters_arrive_per_link_and_summed(node: Node) -> None:
    for name, value in {"crc_flit_errors": 3, "crc_data_errors": 5, "replay_errors": 7, "recovery_errors": 11}.items():
        node.fake.link(0, 4, name, value)
    node.fake.link(0, 9, "replay_errors", 100).link(0, 17, "active", 0)
    node.reader.connect()
    gpu = node.gpu()
    assert gpu.links[4] == LinkFacts(
        link=4,
        active=True,
        remote="0000:05:00.0",
        crc_flit_errors=3,
        crc_data_errors=5,
        replay_errors=7,
        recovery_errors=11,
    )
    assert (gpu.links[17].link, gpu.links[17].active, len(gpu.links)) == (17, False, 18)
    assert gpu.readings.nvlink_replay_errors == gpu.readings.nvlink_dl_replay_errors == 107
    assert gpu.readings.nvlink_crc_flit_errors == gpu.readings.nvlink_dl_crc_errors == 3
    assert gpu.readings.nvlink_recovery_errors == gpu.readings.nvlink_dl_recovery_errors == 11
    assert gpu.readings.nvlink_tx_kib is not None
    assert gpu.readings.nvlink5_rx_errors is None


def test_nvlink_5_counters_arrive_per_link_and_summed(node: Node) -> None:
    node.fake.write(gpus=2, generation="blackwell", frozen=True)
    for name in ("rx_errors", "rx_symbol_errors", "recovery_successes", "recovery_failures"):
        node.fake.link(1, 2, name, 40).link(1, 3, name, 2)
    node.reader.connect()
    gpu = node.gpu(1)
    assert gpu.links[2] == LinkFacts(
        link=2, active=True, remote="0000:85:00.0",
        rx_errors=40, rx_symbol_errors=40, recoveries=40, recovery_failures=40,
    )  # fmt: skip
    readings = gpu.readings
    assert readings.nvlink5_rx_errors == readings.nvlink5_rx_symbol_errors == readings.nvlink5_recoveries == 42
    assert readings.nvlink5_recovery_failures == 42
    assert readings.nvlink5_tx_bytes is not None
    assert readings.nvlink_crc_flit_errors is readings.nvlink_dl_replay_errors is None


@pytest.mark.parametrize("generation", ["hopper", "blackwell", "ampere", "volta"])
def test_a_healthy_gpu_of_any_generation_is_read_without_an_error(node: Node, generation: str) -> None:
    node.fake.write(gpus=2, generation=generation)  # type: ignore[arg-type] # pytest gives plain strings
    node.reader.connect()
    node.read()
    for gpu in node.read().gpus:
        assert gpu.errors == ()
        assert gpu.readings.temperature is not None
        assert gpu.readings.power_usage_mw is not None


def test_gpm_metrics_are_there_from_the_second_pass_on(node: Node) -> None:
    node.reader.connect()
    assert node.gpu().readings.gpm_sm_active is None
    assert node.gpu(after=0.05).readings.gpm_sm_active is None  # too soon for the library
    assert node.gpu().readings.gpm_sm_active == pytest.approx(86, abs=9)


def test_gpm_is_read_of_each_gpu_instance_and_its_compute_instances_share_it(node: Node) -> None:
    node.fake.write(frozen=True).mig(0, 1, 0, "1c.3g.40gb", 40448).mig(0, 1, 1, "2c.3g.40gb", 40448)
    node.fake.mig(0, 5, 0, "1g.10gb", 9728).reading(0, "gpm_sm_active", 87).reading(0, "gpm_dram_active", 60)
    node.reader.connect()
    assert {instance.gpm_sm_active for instance in node.gpu().mig} == {None}
    gpu = node.gpu()
    assert [(instance.gpm_sm_active, instance.gpm_dram_active) for instance in gpu.mig] == [
        (86, 59),
        (86, 59),
        (82, 55),
    ]
    assert (gpu.readings.gpm_sm_active, gpu.errors) == (87, ())


def test_a_recreated_instance_is_measured_from_then_on(node: Node) -> None:
    node.fake.write(frozen=True).mig(0, 5, 0, "1g.10gb", 9728).mig(0, 6, 0, "1g.10gb", 9728)
    node.reader.connect()
    node.read()
    assert node.gpu().mig[0].gpm_sm_active is not None
    node.fake.clear().mig(0, 6, 0, "1g.10gb", 9728)
    assert node.gpu().mig[0].gpm_sm_active is not None
    node.fake.clear().mig(0, 5, 0, "3g.40gb", 40448)
    assert node.gpu().mig[0].gpm_sm_active is None
    assert node.gpu().mig[0].gpm_sm_active is not None


def test_gpm_allocates_once_and_a_gpu_without_it_is_asked_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    for name in ("nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmQueryDeviceSupport"):
        monkeypatch.setattr(pynvml, name, _counted(asked, name))
    node.fake.write(gpus=1)
    node.reader.connect()
    for _ in range(5):
        node.read()
    assert asked == {"nvmlGpmSampleAlloc": 2, "nvmlGpmSampleGet": 5, "nvmlGpmQueryDeviceSupport": 1}
    node.fake.write(gpus=1, generation="ampere")
    node.reader.connect()
    asked.clear()
    for _ in range(5):
        node.read()
    assert asked == {"nvmlGpmQueryDeviceSupport": 1}


@pytest.mark.parametrize("code", [Code.GPU_IS_LOST, Code.TIMEOUT, Code.RESET_REQUIRED, Code.UNKNOWN, 4711])
def test_a_gpm_error_costs_its_metrics_for_a_minute_and_does_not_affect_the_gpu(node: Node, code: int) -> None:
    node.fake.write(gpus=1, frozen=True)
    node.reader.connect()
    node.read()
    well = node.gpu()
    node.fake.error(0, "nvmlGpmSampleGet", code)
    sick = node.gpu()
    assert (sick.answer, [(error.call, error.code) for error in sick.errors]) == (GpuAnswer.OK, [("GPM", code)])
    assert sick.readings == replace(well.readings, **dict.fromkeys(GPM))
    node.fake.clear()
    assert (node.gpu().readings.gpm_sm_active, node.gpu().errors) == (None, ())
    node.gpu(after=MINUTE)
    assert node.gpu().readings == well.readings


def test_bindings_that_stumble_over_gpm_cost_the_metrics_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pynvml, "nvmlGpmQueryDeviceSupport")
    node.reader.connect()
    gpu = node.gpu()
    assert (gpu.answer, gpu.errors[0].call, gpu.readings.gpm_sm_active) == (GpuAnswer.OK, "GPM", None)
    assert gpu.readings.temperature is not None


def test_an_instance_whose_gpm_fails_keeps_none_of_the_others_from_theirs(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.fake.write(gpus=1, frozen=True)
    for number in (1, 2, 3):
        node.fake.mig(0, number, 0, "1g.10gb", 9728)
    sample = pynvml.nvmlGpmMigSampleGet

    def failing(handle: object, instance: int, buffer: object) -> object:
        if instance == 1:
            raise pynvml.NVMLError(Code.UNKNOWN)
        return sample(handle, instance, buffer)

    monkeypatch.setattr(pynvml, "nvmlGpmMigSampleGet", failing)
    node.reader.connect()
    for _ in range(2):
        node.read()
    assert [mig_instance.gpm_sm_active is None for mig_instance in node.gpu().mig] == [True, False, False]


@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 102.0, 1e19])
def test_a_share_that_is_none_is_left_out(node: Node, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    get: Callable[..., object] = pynvml.nvmlGpmMetricsGet

    def odd(request: Any) -> None:
        get(request)
        request.metrics[0].value = value

    monkeypatch.setattr(pynvml, "nvmlGpmMetricsGet", odd)
    node.reader.connect()
    node.read()
    readings = node.gpu().readings
    assert (readings.gpm_graphics_active, readings.gpm_sm_active is None) == (None, False)


def test_an_instance_that_reuses_a_number_between_two_passes_is_measured_from_then_on(node: Node) -> None:
    node.fake.write(gpus=1, frozen=True).mig(0, 5, 0, "1g.10gb", 9728)
    node.reader.connect()
    node.read()
    assert node.gpu().mig[0].gpm_sm_active is not None
    node.fake.write(gpus=1, frozen=True).clear().mig(0, 5, 0, "3g.40gb", 40448)
    assert node.gpu().mig[0].gpm_sm_active is None


def test_gpm_frees_every_buffer_whatever_becomes_of_the_gpu(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    for name in ("nvmlGpmSampleAlloc", "nvmlGpmSampleFree"):
        monkeypatch.setattr(pynvml, name, _counted(asked, name))
    node.fake.write(gpus=2).mig(1, 5, 0, "1g.10gb", 9728)
    node.reader.connect()
    changes: tuple[Callable[[], object], ...] = (
        lambda: node.fake.lost(1), node.fake.clear, lambda: node.fake.error(1, "nvmlGpmSampleGet", Code.UNKNOWN),
        node.fake.clear, lambda: node.fake.write(gpus=1), lambda: node.fake.write(gpus=2),
    )  # fmt: skip
    for change in changes:
        node.read()
        change()
        node.read()
    node.reader.close()
    assert asked["nvmlGpmSampleAlloc"] == asked["nvmlGpmSampleFree"] > 6


def test_gpm_can_be_switched_off_and_is_not_called_then(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    for name in ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet"):
        monkeypatch.setattr(pynvml, name, _counted(asked, name))
    node.fake.mig(0, 5, 0, "1g.10gb", 9728)
    reader = NvmlReader(NvmlOptions(library=str(node.fake.library), gpm=False))
    try:
        reader.connect()
        first = reader.read().gpus[0]
    finally:
        reader.close()
    assert (asked, first.answer, len(first.mig)) == ({}, GpuAnswer.OK, 1)


def _counted(counts: Counter[str], name: str) -> Callable[..., object]:
    function = getattr(pynvml, name)

    def counted(*args: object) -> object:
        counts[name] += 1
        return function(*args)

    return counted


def test_the_ready_state_is_read_with_confidential_computing_only(node: Node) -> None:
    node.fake.reading(0, "confidential_ready", 0)
    assert [gpu.readings.confidential_ready for gpu in node.read().gpus] == [None] * 8
    node.reader.close()  # the driver was loaded again
    node.fake.reading(0, "confidential_computing", 1)
    assert [gpu.readings.confidential_ready for gpu in node.read().gpus] == [0] * 8
    node.fake.reading(0, "confidential_ready", 1)
    assert node.gpu(after=125).readings.confidential_ready == 1
    node.fake.error("*", "nvmlSystemGetConfComputeState", pynvml.NVML_ERROR_NOT_SUPPORTED)
    node.reader.close()
    assert (node.gpu().readings.confidential_ready, node.gpu().errors) == (None, ())


@pytest.mark.parametrize("licensed", [0, 1])
def test_a_vgpu_license_is_reported(node: Node, licensed: int) -> None:
    node.fake.reading(0, "vgpu_license", licensed)
    node.reader.connect()
    assert node.gpu().readings.vgpu_license == licensed


@pytest.mark.parametrize(
    ("name", "nonsense"),
    [("temperature", 255), ("temperature_memory", 250), ("temperature_slowdown", 201), ("performance_state", 32)],
)
def test_a_value_that_is_documented_as_invalid_is_no_value(node: Node, name: str, nonsense: int) -> None:
    node.fake.reading(0, name, nonsense)
    node.reader.connect()
    assert getattr(node.gpu().readings, name) is None


def test_a_margin_beyond_the_slowdown_point_is_negative(node: Node) -> None:
    node.fake.reading(0, "temperature_margin", -6)
    node.reader.connect()
    assert node.gpu().readings.temperature_margin == -6


# --- how often


def test_a_threshold_is_asked_every_two_minutes_and_kept_in_between(node: Node) -> None:
    node.reader.connect()
    node.read()
    node.fake.reading(0, "temperature_slowdown", 77).reading(0, "temperature", 61)
    readings = node.gpu().readings
    assert (readings.temperature, readings.temperature_slowdown) == (61, 87)
    assert node.gpu(after=2 * MINUTE).readings.temperature_slowdown == 77


def test_a_threshold_that_could_not_be_read_is_asked_again_in_the_next_pass(node: Node) -> None:
    node.fake.error(0, "nvmlDeviceGetTemperatureThreshold", Code.UNKNOWN)
    node.reader.connect()
    assert node.gpu().readings.temperature_slowdown is None
    node.fake.clear()
    assert node.gpu().readings.temperature_slowdown == 87


def test_link_states_are_read_in_each_pass_and_counters_each_minute(node: Node) -> None:
    node.reader.connect()
    node.read()
    node.fake.link(0, 3, "active", 0).link(0, 4, "replay_errors", 9)
    links = node.gpu().links
    assert (links[3].active, links[4].replay_errors) == (False, 0)
    assert node.gpu(after=MINUTE).links[4].replay_errors == 9


@pytest.mark.parametrize(("state", "active"), [(0, False), (1, True), (2, True)])
def test_a_link_is_down_only_if_the_driver_answers_inactive(node: Node, state: int, *, active: bool) -> None:
    """A link that sleeps is not down: nodes at rest would fail."""
    node.fake.link(0, 3, "active", state)
    node.reader.connect()
    assert node.gpu().links[3].active is active


@pytest.mark.parametrize("older", [False, True])
def test_a_gpu_is_of_a_cluster_if_any_byte_of_its_cluster_uuid_is_set(node: Node, *, older: bool) -> None:
    """A zero UUID is that of a fabric of one node (NCCL, mnnvl.cc)."""
    if older:
        node.fake.reading(0, "fabric_health_summary", "none")  # the structure of version 3 is not known
    node.reader.connect()
    assert node.gpu().readings.fabric_in_cluster == 0
    node.fake.reading(0, "fabric_in_cluster", 0x80).reading(0, "fabric_clique", 32766)
    readings = node.gpu().readings
    assert (readings.fabric_in_cluster, readings.fabric_clique) == (1, 32766)


# --- what is not supported


def test_a_gpu_without_nvlink_has_no_links(node: Node) -> None:
    """An H100 passed through to a guest answers NOT_SUPPORTED for each of its 18 (measured)."""
    node.fake.error(0, "nvmlDeviceGetNvLinkState", Code.NOT_SUPPORTED)
    node.reader.connect()
    gpu = node.gpu()
    assert (gpu.links, gpu.errors) == ((), ())


def test_links_that_are_not_listed_yet_are_asked_for_again_each_minute(node: Node) -> None:
    node.fake.error(0, "nvmlDeviceGetNvLinkState", Code.NOT_SUPPORTED)
    node.reader.connect()
    assert node.gpu().links == ()
    node.fake.clear()
    links = node.gpu(after=MINUTE).links
    assert (len(links), {link.active for link in links}) == (18, {True})
    assert all(link.remote and link.replay_errors == 0 for link in links)


def test_what_a_gpu_does_not_support_is_not_asked_again_until_the_next_connection(node: Node) -> None:
    unsupported = ["temperature_margin", "pcie_replays", "recovery_action", "sram_threshold_exceeded", "fabric_state"]
    for name in unsupported:
        node.fake.reading(0, name, "none")
    node.reader.connect()
    gpu = node.gpu()
    assert (gpu.errors, [getattr(gpu.readings, name) for name in unsupported]) == ((), [None] * 5)
    node.fake.clear()
    assert [getattr(node.gpu().readings, name) for name in unsupported] == [None] * 5
    node.reader.connect()
    assert None not in [getattr(node.gpu().readings, name) for name in unsupported]


@pytest.mark.parametrize("code", [Code.INVALID_ARGUMENT, Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH])
def test_a_call_that_the_driver_does_not_know_is_not_asked_again(node: Node, code: Code) -> None:
    node.fake.error("*", "nvmlDeviceGetMarginTemperature", code).error("*", "field:230", code)
    node.reader.connect()
    assert node.gpu().errors == ()
    node.fake.clear()
    assert node.gpu().readings.temperature_margin is None
    assert node.gpu().readings.recovery_action is None


@pytest.mark.parametrize("code", [Code.INVALID_ARGUMENT, Code.NOT_SUPPORTED])
def test_a_call_that_once_succeeded_is_repeated_whatever_error_it_gives_meanwhile(node: Node, code: Code) -> None:
    node.reader.connect()
    node.read()
    node.fake.error(0, "nvmlDeviceGetRemappedRows", code).error(0, "field:230", code)
    gpu = node.gpu()
    assert (gpu.readings.remapped_rows_failure, gpu.readings.recovery_action) == (None, None)
    assert [error.call for error in gpu.errors] == ["nvmlDeviceGetRemappedRows", "field 230"]
    node.fake.clear().reading(0, "remapped_rows_failure", 1).reading(0, "recovery_action", 2)
    readings = node.gpu().readings
    assert (readings.remapped_rows_failure, readings.recovery_action) == (1, 2)


def test_an_older_driver_is_asked_in_its_own_way(node: Node) -> None:
    for call in ("nvmlDeviceGetTemperatureV", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetCurrentClocksEventReasons"):
        node.fake.error("*", call, Code.FUNCTION_NOT_FOUND)
    node.reader.connect()
    readings = node.gpu().readings
    assert readings.temperature is not None
    assert (readings.memory_total_bytes, readings.memory_reserved_bytes) == (85520809984, None)
    assert readings.clock_event_reasons == 0


def test_a_driver_before_r550_reports_its_fabric_by_the_function_without_a_version(node: Node) -> None:
    node.fake.error("*", "nvmlDeviceGetGpuFabricInfoV", Code.FUNCTION_NOT_FOUND)
    node.fake.reading(0, "fabric_state", 1).reading(0, "fabric_clique", 7)
    node.reader.connect()
    gpu = node.gpu()
    readings = gpu.readings
    assert (readings.fabric_state, readings.fabric_status, readings.fabric_clique) == (1, 0, 7)
    assert (readings.fabric_in_cluster, readings.fabric_health_mask, gpu.errors) == (0, None, ())
    node.fake.reading(0, "fabric_state", 3)
    assert node.gpu().readings.fabric_state == 3, "it is read in each pass"


def test_switching_mig_on_or_off_repeats_every_call(node: Node) -> None:
    node.fake.mig(0, 1, 0, "3g.40gb", 40448).reading(0, "remapped_rows_pending", "none")
    node.reader.connect()
    assert node.gpu().readings.remapped_rows_pending is None
    node.fake.clear()
    node.read()
    assert node.gpu().readings.remapped_rows_pending == 0


def test_another_board_in_a_slot_repeats_every_call(node: Node) -> None:
    node.fake.reading(0, "temperature_margin", "none")
    node.reader.connect()
    assert node.gpu().readings.temperature_margin is None
    node.fake.clear().text(0, "uuid", "GPU-another-board").text(0, "serial", "42")
    gpu = node.gpu()
    assert (gpu.uuid, gpu.serial) == ("GPU-another-board", "42")
    assert gpu.readings.temperature_margin is not None
