"""The fake NVML library, asked through the real nvidia-ml-py in a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from support.fake_nvml_library import FakeNvml, FakeNvmlError, Generation, build_library, compiler, nvml_header
from support.nvml_client import NvmlClient, field, nvml_client

NOT_SUPPORTED, NOT_FOUND, VERSION_MISMATCH = 3, 6, 25
TEMPERATURE = "nvmlDeviceGetTemperature(gpu({}), 0)"


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml.build(tmp_path)


@pytest.fixture
def client(fake: FakeNvml) -> Iterator[NvmlClient]:
    with nvml_client(fake) as running:
        yield running


# --- The library -----------------------------------------------------------------------------------------------------

LAYOUTS = {
    "nvmlPciInfo_t": pynvml.nvmlPciInfo_t,
    "nvmlUtilization_t": pynvml.c_nvmlUtilization_t,
    "nvmlMemory_t": pynvml.c_nvmlMemory_t,
    "nvmlMemory_v2_t": pynvml.c_nvmlMemory_v2_t,
    "nvmlBAR1Memory_t": pynvml.c_nvmlBAR1Memory_t,
    "nvmlProcessInfo_t": pynvml.c_nvmlProcessInfo_v3_t,
    "nvmlViolationTime_t": pynvml.c_nvmlViolationTime_t,
    "nvmlFieldValue_t": pynvml.c_nvmlFieldValue_t,
    "nvmlEccSramErrorStatus_v1_t": pynvml.c_nvmlEccSramErrorStatus_v1_t,
    "nvmlRowRemapperHistogramValues_t": pynvml.c_nvmlRowRemapperHistogramValues,
    "nvmlGpuFabricInfo_v2_t": pynvml.c_nvmlGpuFabricInfo_v2_t,
    "nvmlGpuFabricInfo_v3_t": pynvml.c_nvmlGpuFabricInfo_v3_t,
    "nvmlTemperature_v1_t": pynvml.c_nvmlTemperature_v1_t,
    "nvmlMarginTemperature_v1_t": pynvml.c_nvmlMarginTemperature_v1_t,
    "nvmlDeviceAttributes_t": pynvml.c_nvmlDeviceAttributes,
    "nvmlEventData_t": pynvml.c_nvmlEventData_t,
    "nvmlGpmMetric_t": pynvml.c_nvmlGpmMetric_t,
    "nvmlGpmMetricsGet_t": pynvml.c_nvmlGpmMetricsGet_t,
    "nvmlGpmSupport_t": pynvml.c_nvmlGpmSupport_t,
    "nvmlGridLicensableFeature_t": pynvml.c_nvmlGridLicensableFeature_v4_t,
    "nvmlGridLicensableFeatures_t": pynvml.c_nvmlGridLicensableFeatures_v4_t,
}


def test_structures_of_nvidia_ml_py_are_laid_out_as_in_the_vendors_header(tmp_path: Path) -> None:
    offsets = [
        (name, field_name, getattr(structure, field_name).offset)
        for name, structure in LAYOUTS.items()
        for field_name, *_ in structure._fields_
    ]
    checks = [f"_Static_assert(offsetof({name}, {member}) == {at}, {member!r});" for name, member, at in offsets]
    checks += [
        f"_Static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, {name!r});"
        for name, structure in LAYOUTS.items()
    ]
    source = tmp_path / "layouts.c"
    source.write_text("#include <stddef.h>\n#include <nvml.h>\n" + "\n".join(checks).replace("'", '"'))
    command = [compiler(), "-fsyntax-only", "-isystem", str(nvml_header().parent), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_library_is_built_once_and_found_again(tmp_path: Path) -> None:
    library = build_library(tmp_path)
    built = library.stat().st_mtime_ns
    assert build_library(tmp_path) == library
    assert library.stat().st_mtime_ns == built
    assert [file.name for file in library.parent.iterdir()] == ["libnvidia-ml.so.1"]


def test_without_a_compiler_the_build_error_names_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FakeNvmlError, match="gcc is missing"):
        FakeNvml.build(tmp_path)


def test_without_the_header_the_build_error_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.files", lambda _: [])
    with pytest.raises(FakeNvmlError, match="nvidia-nvml-dev"):
        nvml_header()


def test_a_library_opened_by_path_is_the_one_nvidia_ml_py_then_finds_by_name(fake: FakeNvml) -> None:
    with nvml_client(fake, initialise=False) as client:
        client.ask(f"CDLL({str(fake.library)!r})._name")
        client.ask("nvmlInit()")
        assert client.ask("nvmlDeviceGetCount()") == 8


# --- A healthy node --------------------------------------------------------------------------------------------------

CALLS = [
    "nvmlSystemGetDriverVersion()",
    "nvmlSystemGetNVMLVersion()",
    "nvmlSystemGetCudaDriverVersion()",
    "nvmlSystemGetCudaDriverVersion_v2()",
    "nvmlDeviceGetSerial(gpu(0))",
    "nvmlDeviceGetVbiosVersion(gpu(0))",
    "nvmlDeviceGetTemperatureV(gpu(0), 0)",
    *(f"nvmlDeviceGetTemperatureThreshold(gpu(0), {threshold})" for threshold in range(4)),
    "nvmlDeviceGetMarginTemperature(gpu(0))",
    "nvmlDeviceGetPowerUsage(gpu(0))",
    "nvmlDeviceGetPowerManagementLimit(gpu(0))",
    "nvmlDeviceGetPowerManagementLimitConstraints(gpu(0))",
    "nvmlDeviceGetPowerManagementDefaultLimit(gpu(0))",
    "nvmlDeviceGetEnforcedPowerLimit(gpu(0))",
    "nvmlDeviceGetTotalEnergyConsumption(gpu(0))",
    *(f"nvmlDeviceGet{which}ClockInfo(gpu(0), {clock})" for which in ("", "Max") for clock in range(4)),
    "nvmlDeviceGetPerformanceState(gpu(0))",
    "nvmlDeviceGetCurrentClocksEventReasons(gpu(0))",
    "nvmlDeviceGetCurrentClocksThrottleReasons(gpu(0))",
    "nvmlDeviceGetSupportedClocksEventReasons(gpu(0))",
    *(f"nvmlDeviceGetViolationStatus(gpu(0), {policy})" for policy in range(6)),
    "nvmlDeviceGetUtilizationRates(gpu(0))",
    "nvmlDeviceGetEncoderUtilization(gpu(0))",
    "nvmlDeviceGetDecoderUtilization(gpu(0))",
    "nvmlDeviceGetMemoryInfo(gpu(0))",
    "nvmlDeviceGetBAR1MemoryInfo(gpu(0))",
    "nvmlDeviceGetEccMode(gpu(0))",
    *(f"nvmlDeviceGetTotalEccErrors(gpu(0), {error}, {counter})" for error in (0, 1) for counter in (0, 1)),
    *(f"nvmlDeviceGetMemoryErrorCounter(gpu(0), 0, 0, {location})" for location in (2, 7)),
    "filled(nvmlDeviceGetSramEccErrorStatus, gpu(0), c_nvmlEccSramErrorStatus_v1_t())",
    "nvmlDeviceGetRemappedRows(gpu(0))",
    "nvmlDeviceGetRowRemapperHistogram(gpu(0))",
    "nvmlDeviceGetPcieReplayCounter(gpu(0))",
    *(f"nvmlDeviceGet{which}PcieLink{part}(gpu(0))" for which in ("Curr", "Max") for part in ("Generation", "Width")),
    "nvmlDeviceGetNvLinkState(gpu(0), 17)",
    "nvmlDeviceGetNvLinkVersion(gpu(0), 17)",
    *(f"nvmlDeviceGetNvLinkErrorCounter(gpu(0), 17, {counter})" for counter in range(5)),
    "nvmlDeviceGetNvLinkRemoteDeviceType(gpu(0), 17)",
    "filled(nvmlDeviceGetGpuFabricInfo, gpu(0), c_nvmlGpuFabricInfo_t())",
    "filled(nvmlDeviceGetGpuFabricInfoV, gpu(0), c_nvmlGpuFabricInfo_v2_t())",
    "filled(nvmlDeviceGetGpuFabricInfoV, gpu(0), c_nvmlGpuFabricInfo_v3_t())",
    "nvmlDeviceGetPersistenceMode(gpu(0))",
    "nvmlDeviceGetMigMode(gpu(0))",
    "nvmlDeviceGetMaxMigDeviceCount(gpu(0))",
    "nvmlDeviceGetInforomConfigurationChecksum(gpu(0))",
    "nvmlDeviceValidateInforom(gpu(0))",
    "nvmlDeviceGetGridLicensableFeatures(gpu(0))",
    "nvmlDeviceGetComputeRunningProcesses(gpu(0))",
    "nvmlDeviceGetSupportedEventTypes(gpu(0))",
]
FIELDS = [*range(1, 7), *range(74, 80), 82, 83, 91, 94, 95, *range(138, 146), *range(161, 167), *range(173, 184)]
FIELDS += [*range(185, 199), 230, 269, 270, 271]


def test_every_call_of_a_sweep_is_answered_by_an_h100(client: NvmlClient) -> None:
    failed = [(call, code) for call in CALLS if (code := client.code(call)) != 0]
    assert failed == []


def test_every_field_of_a_sweep_is_answered_by_an_h100(client: NvmlClient) -> None:
    values = client.ask(f"nvmlDeviceGetFieldValues(gpu(0), {FIELDS})")
    assert [value["fieldId"] for value in values if value["nvmlReturn"] != 0] == []


def test_gpus_differ_in_all_that_identifies_them(fake: FakeNvml, client: NvmlClient) -> None:
    fake.write(gpus=16)
    for call in ("UUID", "Serial", "MinorNumber", "Index"):
        assert len({client.ask(f"nvmlDeviceGet{call}(gpu({index}))") for index in range(16)}) == 16
    slots = [client.ask(f"nvmlDeviceGetPciInfo(gpu({index}))") for index in range(16)]
    assert [slot["busId"] for slot in slots] == sorted({slot["busId"] for slot in slots})
    assert (slots[0]["domain"], slots[0]["bus"], slots[0]["device"]) == (0, 0x1B, 0)
    assert (slots[0]["busId"], slots[0]["busIdLegacy"]) == ("00000000:1B:00.0", "0000:1B:00.0")


def test_a_gpu_is_found_by_uuid_and_by_any_spelling_of_its_pci_address(client: NvmlClient) -> None:
    uuid = client.ask("nvmlDeviceGetUUID(gpu(5))")
    bus_id = client.ask("nvmlDeviceGetPciInfo(gpu(5))")["busId"]
    for lookup in (f"UUID({uuid!r})", f"PciBusId({bus_id!r})", f"PciBusId({bus_id[4:].lower()!r})"):
        assert client.ask(f"nvmlDeviceGetIndex(nvmlDeviceGetHandleBy{lookup})") == 5
    assert client.code("nvmlDeviceGetHandleByUUID('GPU-0')") == NOT_FOUND


def test_an_h100_sxm_is_believable(client: NvmlClient) -> None:
    assert client.ask("nvmlDeviceGetName(gpu(0))") == "NVIDIA H100 80GB HBM3"
    assert client.ask("nvmlSystemGetDriverVersion()").startswith("570.")
    memory = client.ask("nvmlDeviceGetMemoryInfo(gpu(0), version=nvmlMemory_v2)")
    assert memory["reserved"] + memory["free"] + memory["used"] == memory["total"] == 81559 << 20
    temperature, maximum = client.ask(TEMPERATURE.format(0)), client.ask("nvmlDeviceGetTemperatureThreshold(gpu(0), 3)")
    assert 40 < temperature < maximum
    assert client.ask("filled(nvmlDeviceGetGpuFabricInfoV, gpu(0), c_nvmlGpuFabricInfo_v3_t())")["state"] == 3
    links = [client.ask(f"nvmlDeviceGetNvLinkState(gpu(0), {link})") for link in range(18)]
    assert links == [1] * 18
    assert client.code("nvmlDeviceGetNvLinkState(gpu(0), 18)") == NOT_SUPPORTED
    assert field(client, 0, pynvml.NVML_FI_DEV_NVLINK_GET_SPEED, 17) == 26562
    assert field(client, 0, pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT) == -8


@pytest.mark.parametrize(
    ("generation", "supported", "not_supported"),
    [
        ("hopper", {142, 161, 193, 230}, {29, 202, 215}),
        ("blackwell", {142, 193, 202, 215, 222}, {29, 38, 161}),
        ("ampere", {38, 142, 161}, {29, 193, 202}),
        ("volta", {7, 29, 30, 31, 38}, {142, 193, 202, 230}),
    ],
)
def test_generations_support_different_fields(
    fake: FakeNvml, client: NvmlClient, generation: Generation, supported: set[int], not_supported: set[int]
) -> None:
    fake.write(generation=generation)
    assert {field_id for field_id in supported | not_supported if field(client, 0, field_id) is not None} == supported


def test_only_volta_retires_pages_and_only_its_successors_remap_rows(fake: FakeNvml, client: NvmlClient) -> None:
    assert client.code("nvmlDeviceGetRetiredPages(gpu(0), 1)") == NOT_SUPPORTED
    fake.write(generation="volta").reading(0, "retired_pages_double_bit", 3).reading(0, "retired_pages_pending", 1)
    assert client.ask("nvmlDeviceGetRetiredPages(gpu(0), 1)") == [0x1000, 0x2000, 0x3000]
    assert len(client.ask("nvmlDeviceGetRetiredPages_v2(gpu(0), 1)")) == 3
    assert client.ask("nvmlDeviceGetRetiredPages(gpu(0), 0)") == []
    assert client.ask("nvmlDeviceGetRetiredPagesPendingStatus(gpu(0))") == 1
    assert client.code("nvmlDeviceGetRemappedRows(gpu(0))") == NOT_SUPPORTED
    assert client.code("nvmlDeviceGetMigMode(gpu(0))") == NOT_SUPPORTED


def test_readings_move_unless_the_node_is_frozen(fake: FakeNvml, client: NvmlClient) -> None:
    energy = "nvmlDeviceGetTotalEnergyConsumption(gpu(0))"
    before = client.ask(energy)
    assert client.ask(energy) > before
    fake.write(frozen=True)
    calls = [
        energy,
        TEMPERATURE.format(0),
        "nvmlDeviceGetPowerUsage(gpu(0))",
        "nvmlDeviceGetViolationStatus(gpu(0), 0)",
    ]
    with nvml_client(fake) as other:
        assert [client.ask(call) for call in calls] == [other.ask(call) for call in calls]


def test_without_a_control_file_the_node_is_healthy(fake: FakeNvml, client: NvmlClient) -> None:
    fake.write(gpus=2)
    assert client.ask("nvmlDeviceGetCount()") == 2
    fake.control.unlink()
    assert client.ask("nvmlDeviceGetCount()") == 8


def test_calls_before_init_and_after_shutdown_are_refused(fake: FakeNvml) -> None:
    with nvml_client(fake, initialise=False) as client:
        client.ask("nvmlInit()")
        client.ask("nvmlShutdown()")
        assert client.code("nvmlDeviceGetCount()") == 1
        assert client.code("nvmlDeviceGetHandleByIndex(0)") == 1


def test_a_structure_of_another_version_is_refused(client: NvmlClient) -> None:
    assert client.code("nvmlDeviceGetMemoryInfo(gpu(0), version=0x01000028)") == VERSION_MISMATCH


# --- The control file ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("explode 3", "'explode' is not known here"),
        ("gpus 17", "'17' is not a number from 0 to 16"),
        ("gpus", "'gpus' takes at least 1 words more"),
        ("set 3 temprature 95", "'temprature' is not known here"),
        ("set 16 temperature 95", "'16' is not a number from 0 to 15"),
        ("set 3 temperature warm", "'warm' is not a number"),
        ("error 3 nvmlDeviceGetTemprature 15", "no entry point"),
        ("hang 3 nvmlDeviceGetTemperature marker", "not once=PATH"),
        ("link 0 18 active 0", "'18' is not a number from 0 to 17"),
    ],
)
def test_a_line_that_is_no_directive_ends_the_process_with_a_message(fake: FakeNvml, line: str, complaint: str) -> None:
    fake.control.write_text(f"# by hand\n\n  gpus\t4  \n{line}\n")
    client = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1]).nvmlInit_v2()", str(fake.library)]
    environment = {**os.environ, **fake.environment}
    done = subprocess.run(client, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGABRT
    assert f"{fake.control}: line 4: " in done.stderr
    assert complaint in done.stderr


def test_names_the_library_does_not_know_are_refused_at_once(fake: FakeNvml) -> None:
    with pytest.raises(FakeNvmlError, match="nvmlDeviceGetTemprature"):
        fake.error(3, "nvmlDeviceGetTemprature", 15)
    with pytest.raises(FakeNvmlError, match="temprature"):
        fake.reading(3, "temprature", 95)
    with pytest.raises(FakeNvmlError, match="activ is no LINK row"):
        fake.link(3, 0, "activ", 0)
