"""What the fake NVML library may be set to: values, faults, events; seen through the real nvidia-ml-py."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from support.fake_nvml_library import FakeNvml
from support.nvml_client import NvmlClient, field, nvml_client

LOST, RESET_REQUIRED, TIMEOUT, UNKNOWN, NOT_SUPPORTED, NOT_FOUND = 15, 16, 10, 999, 3, 6
TEMPERATURE = "nvmlDeviceGetTemperature(gpu({}), 0)"


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    return FakeNvml.build(tmp_path)


@pytest.fixture
def client(fake: FakeNvml) -> Iterator[NvmlClient]:
    with nvml_client(fake) as running:
        yield running


def wait_until_exists(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.005)


# --- Readings --------------------------------------------------------------------------------------------------------


def test_a_reading_set_in_the_control_file_is_seen_at_the_next_call(fake: FakeNvml, client: NvmlClient) -> None:
    fake.reading(3, "temperature", 95)
    assert client.ask(TEMPERATURE.format(3)) == 95
    assert client.ask("nvmlDeviceGetMarginTemperature(gpu(3))") == -10
    assert client.ask(TEMPERATURE.format(2)) < 95
    assert client.ask(TEMPERATURE.format(3).replace("Temperature", "TemperatureV")) == 95
    fake.clear()
    assert client.ask(TEMPERATURE.format(3)) < 95


def test_a_reading_set_to_none_is_not_supported_by_call_nor_field(fake: FakeNvml, client: NvmlClient) -> None:
    fake.reading("*", "energy_mj", "none")
    assert client.code("nvmlDeviceGetTotalEnergyConsumption(gpu(7))") == NOT_SUPPORTED
    assert field(client, 7, pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION) is None


def test_ecc_totals_are_the_sum_of_their_locations_unless_set(fake: FakeNvml, client: NvmlClient) -> None:
    fake.reading(1, "ecc_uncorrected_volatile_dram", 2).reading(1, "ecc_uncorrected_volatile_sram", 3)
    assert client.ask("nvmlDeviceGetTotalEccErrors(gpu(1), 1, 0)") == 5
    assert client.ask("nvmlDeviceGetMemoryErrorCounter(gpu(1), 1, 0, 7)") == 3
    assert field(client, 1, pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL) == 5
    assert field(client, 1, pynvml.NVML_FI_DEV_ECC_DBE_VOL_DEV) == 2
    assert client.ask("nvmlDeviceGetTotalEccErrors(gpu(1), 1, 1)") == 0
    assert client.code("nvmlDeviceGetMemoryErrorCounter(gpu(1), 1, 0, 0)") == NOT_SUPPORTED
    fake.reading(1, "ecc_uncorrected_volatile", 2**64 - 1)
    assert client.ask("nvmlDeviceGetTotalEccErrors(gpu(1), 1, 0)") == 2**64 - 1


def test_counters_of_one_link_are_found_by_scope_and_summed_over_the_links(fake: FakeNvml, client: NvmlClient) -> None:
    fake.link(0, 4, "replay_errors", 7).link(0, 5, "replay_errors", 1).link(0, 9, "active", 0)
    assert field(client, 0, pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, 4) == 7
    assert field(client, 0, pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL) == 8
    assert client.ask("nvmlDeviceGetNvLinkErrorCounter(gpu(0), 4, 0)") == 7
    assert client.ask("nvmlDeviceGetNvLinkState(gpu(0), 9)") == 0
    assert field(client, 0, pynvml.NVML_FI_DEV_NVLINK_GET_STATE, 9) == 0
    fake.link(0, "*", "data_tx_kib", 10)
    assert field(client, 0, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF) == 180
    assert field(client, 0, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 17) == 10
    assert field(client, 0, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 18) is None


def test_a_gpu_may_have_the_index_of_another(fake: FakeNvml, client: NvmlClient) -> None:
    fake.reading(3, "index", 2)
    assert [client.ask(f"nvmlDeviceGetIndex(gpu({place}))") for place in (2, 3)] == [2, 2]


def test_texts_may_be_anything_even_no_utf8(fake: FakeNvml, client: NvmlClient) -> None:
    fake.text(0, "name", b"NVIDIA \xff\xfe H100").text("*", "driver_version", "535.261.03")
    fake.text(1, "pci_bus_id", "0000000A:C3:00.0")
    client.send("nvmlDeviceGetName(gpu(0))")
    assert client.receive() == {"exception": "UnicodeDecodeError"}
    assert client.ask("nvmlSystemGetDriverVersion()") == "535.261.03"
    pci = client.ask("nvmlDeviceGetPciInfo(gpu(1))")
    assert (pci["domain"], pci["bus"], pci["busId"]) == (10, 0xC3, "0000000A:C3:00.0")


def test_processes_are_sized_and_then_listed(fake: FakeNvml, client: NvmlClient) -> None:
    for pid in (4242, 4343, 4444):
        fake.process(6, pid, 1 << 30)
    fake.process(6, 4545, "none")
    processes = client.ask("nvmlDeviceGetComputeRunningProcesses(gpu(6))")
    assert [(process["pid"], process["usedGpuMemory"]) for process in processes] == [
        *[(4242, 1 << 30), (4343, 1 << 30), (4444, 1 << 30)],
        (4545, None),
    ]
    assert {process["gpuInstanceId"] for process in processes} == {0xFFFFFFFF}
    assert client.ask("nvmlDeviceGetComputeRunningProcesses(gpu(5))") == []


def test_mig_instances_have_ids_names_memory_and_processes_of_their_own(fake: FakeNvml, client: NvmlClient) -> None:
    fake.mig(2, 9, 0, "1g.10gb", 9728).mig(2, 5, 1, "3g.40gb", 40320).process(2, 777, 1 << 20, (5, 1))
    mig = "nvmlDeviceGetMigDeviceHandleByIndex(gpu(2), {})"
    assert client.ask("nvmlDeviceGetMigMode(gpu(2))")[0] == 1
    assert client.ask("nvmlDeviceGetMaxMigDeviceCount(gpu(2))") == 7
    assert client.code(mig.format(2)) == NOT_FOUND
    ids = [
        [client.ask(f"nvmlDeviceGet{kind}InstanceId({mig.format(place)})") for kind in ("Gpu", "Compute")]
        for place in (0, 1)
    ]
    assert ids == [[9, 0], [5, 1]]
    uuids = {client.ask(f"nvmlDeviceGetUUID({mig.format(place)})") for place in (0, 1)}
    assert len(uuids) == 2
    assert all(uuid.startswith("MIG-") for uuid in uuids)
    assert client.ask(f"nvmlDeviceGetName({mig.format(1)})") == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    memory = client.ask(f"nvmlDeviceGetMemoryInfo({mig.format(1)})")
    assert (memory["total"], memory["used"]) == (40320 << 20, 1 << 20)
    assert client.ask(f"nvmlDeviceGetAttributes({mig.format(1)})")["gpuInstanceSliceCount"] == 3
    assert client.ask(f"nvmlDeviceGetComputeRunningProcesses({mig.format(0)})") == []
    assert client.ask(f"nvmlDeviceGetComputeRunningProcesses({mig.format(1)})")[0]["pid"] == 777
    assert client.code(f"nvmlDeviceGetTemperature({mig.format(1)}, 0)") == NOT_SUPPORTED
    assert client.code("nvmlDeviceGetUtilizationRates(gpu(2))") == NOT_SUPPORTED
    assert client.ask("nvmlDeviceGetMigMode(gpu(3))") == [0, 0]
    assert client.code(mig.replace("gpu(2)", "gpu(3)").format(0)) == NOT_FOUND


def test_gpm_gives_metrics_between_two_samples_where_it_is_supported(fake: FakeNvml, client: NvmlClient) -> None:
    fake.reading(0, "gpm_sm_active", 87)
    assert client.ask("nvmlGpmQueryDeviceSupport(gpu(0))")["isSupportedDevice"] == 1
    client.ask("kept.update(one=nvmlGpmSampleAlloc(), two=nvmlGpmSampleAlloc())")
    assert client.code("gpm(kept['one'], kept['two'], 2)") == 2
    client.ask("[nvmlGpmSampleGet(gpu(0), kept[which]) for which in ('one', 'two')] and None")
    assert client.ask("gpm(kept['one'], kept['two'], 2, 7)") == [[0, 87.0], [NOT_SUPPORTED, 0.0]]
    fake.write(generation="ampere")
    assert client.ask("nvmlGpmQueryDeviceSupport(gpu(0))")["isSupportedDevice"] == 0
    assert client.code("nvmlGpmSampleGet(gpu(0), kept['one'])") == NOT_SUPPORTED
    client.ask("[nvmlGpmSampleFree(kept['one']), nvmlGpmSampleFree(kept['two'])]")


def test_gpm_of_an_instance_is_its_own_and_has_no_transfers(fake: FakeNvml, client: NvmlClient) -> None:
    fake.mig(0, 3, 0, "1g.10gb", 9728).reading(0, "gpm_sm_active", 87)
    client.ask("kept.update(one=nvmlGpmSampleAlloc(), two=nvmlGpmSampleAlloc())")
    assert client.code("nvmlGpmMigSampleGet(gpu(0), 4, kept['one'])") == 2
    client.ask("[nvmlGpmMigSampleGet(gpu(0), 3, kept[which]) for which in ('one', 'two')] and None")
    assert client.ask("gpm(kept['one'], kept['two'], 2, 20)") == [[0, 84.0], [NOT_SUPPORTED, 0.0]]
    client.ask("nvmlGpmSampleGet(gpu(0), kept['two'])")
    assert client.code("gpm(kept['one'], kept['two'], 2)") == 2  # one is of the instance, the other of the GPU
    client.ask("[nvmlGpmSampleFree(kept['one']), nvmlGpmSampleFree(kept['two'])]")


# --- Faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [LOST, RESET_REQUIRED, TIMEOUT, UNKNOWN])
def test_a_failing_gpu_fails_every_call_about_it_and_no_other(fake: FakeNvml, client: NvmlClient, code: int) -> None:
    client.ask("kept.update(handle=gpu(3)) and None")
    fake.lost(3, code)
    for call in ("nvmlDeviceGetUUID({})", "nvmlDeviceGetEccMode({})", "nvmlDeviceGetFieldValues({}, [83])"):
        assert client.code(call.format("kept['handle']")) == code
        assert client.code(call.format("gpu(2)")) == 0
    assert client.code("gpu(3)") == code
    assert client.ask("nvmlDeviceGetCount()") == 8


def test_one_call_may_fail_alone_and_the_later_line_wins(fake: FakeNvml, client: NvmlClient) -> None:
    fake.lost(3).error(3, "nvmlDeviceGetHandleByIndex_v2", 0).error(3, "nvmlDeviceGetPciInfo_v3", 0)
    fake.error("*", "nvmlDeviceGetPowerUsage", UNKNOWN)
    assert client.ask("nvmlDeviceGetPciInfo(gpu(3))")["busId"] == "00000000:42:00.0"
    assert client.code(TEMPERATURE.format(3)) == LOST
    assert client.code("nvmlDeviceGetPowerUsage(gpu(0))") == UNKNOWN


def test_one_field_value_may_fail_alone(fake: FakeNvml, client: NvmlClient) -> None:
    fake.error(0, "field:230", LOST)
    values = client.ask("nvmlDeviceGetFieldValues(gpu(0), [83, 230, 9999, 300])")
    assert [value["nvmlReturn"] for value in values] == [0, LOST, 2, NOT_SUPPORTED]


@pytest.mark.parametrize("code", [9, 18, 4])
def test_initialisation_may_fail_and_succeed_later(fake: FakeNvml, code: int) -> None:
    fake.init_error(code)
    with nvml_client(fake, initialise=False) as client:
        assert client.code("nvmlInit()") == code
        fake.clear()
        client.ask("nvmlInit()")
        assert client.ask("nvmlDeviceGetCount()") == 8


def test_a_vanished_gpu_leaves_the_count_and_the_others_move_up(fake: FakeNvml, client: NvmlClient) -> None:
    uuids = [client.ask(f"nvmlDeviceGetUUID(gpu({index}))") for index in range(8)]
    client.ask("kept.update(handle=gpu(3)) and None")
    fake.vanish(3)
    assert client.ask("nvmlDeviceGetCount()") == 7
    assert [client.ask(f"nvmlDeviceGetUUID(gpu({index}))") for index in range(7)] == uuids[:3] + uuids[4:]
    assert client.ask("nvmlDeviceGetIndex(gpu(3))") == 3
    assert client.ask("nvmlDeviceGetMinorNumber(gpu(3))") == 4
    assert client.code("gpu(7)") == 2
    assert client.code("nvmlDeviceGetTemperature(kept['handle'], 0)") == LOST
    assert client.code(f"nvmlDeviceGetHandleByUUID({uuids[3]!r})") == NOT_FOUND
    fake.vanish("*")
    assert client.ask("nvmlDeviceGetCount()") == 0


def test_a_hang_ends_when_the_control_file_no_longer_asks_for_it(fake: FakeNvml, client: NvmlClient) -> None:
    call = "nvmlDeviceGetTemperature"
    fake.hang(3, call).slow(3, call, 1, once=True)
    assert client.ask(TEMPERATURE.format(2)) > 0
    client.send(TEMPERATURE.format(3))
    wait_until_exists(Path(f"{fake.control}.1"))
    fake.reading(3, "power_usage_mw", 1)
    assert not client.answers_within(0.1)
    fake.clear()
    assert client.receive()["value"] > 0


def test_sigterm_ends_a_process_that_hangs(fake: FakeNvml, client: NvmlClient) -> None:
    fake.hang("*", "*", once=True)
    client.send("nvmlDeviceGetCount()")
    wait_until_exists(Path(f"{fake.control}.1"))
    client.process.terminate()
    assert client.process.wait(60) == -signal.SIGTERM


def test_a_hard_hang_survives_sigterm_but_not_sigkill(fake: FakeNvml, client: NvmlClient) -> None:
    fake.hang("*", "nvmlDeviceGetCount_v2", hard=True)
    client.send("nvmlDeviceGetCount()")
    deadline = time.monotonic() + 60
    while not _ignores_sigterm(client.process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    client.process.terminate()
    fake.clear()
    assert client.receive() == {"value": 8}
    assert not _ignores_sigterm(client.process.pid)
    client.process.kill()
    assert client.process.wait(60) == -signal.SIGKILL


def _ignores_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_slow_call_takes_at_least_its_time(fake: FakeNvml, client: NvmlClient) -> None:
    fake.slow("*", "*", 30_000)
    client.ask("__import__('time') and kept.update(clock=__import__('time').monotonic)")
    assert client.ask("[kept['clock'](), nvmlDeviceGetCount(), kept['clock']()]")[1] == 8
    before, _, after = client.ask("[kept['clock'](), nvmlDeviceGetCount(), kept['clock']()]")
    assert after - before >= 0.03


def test_a_crash_asked_for_once_ends_one_process_only(fake: FakeNvml) -> None:
    fake.crash(1, "nvmlDeviceGetTemperature", once=True)
    with nvml_client(fake) as first:
        first.send(TEMPERATURE.format(1))
        with pytest.raises(EOFError):
            first.receive()
        assert first.process.wait(60) == -signal.SIGSEGV
    with nvml_client(fake) as second:
        assert second.ask(TEMPERATURE.format(1)) > 0


# --- Prices ----------------------------------------------------------------------------------------------------------

ENERGY, POWER = pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, pynvml.NVML_FI_DEV_PERF_POLICY_POWER
INFOROM = "cost(lambda: nvmlDeviceValidateInforom(kept['gpu']))"
FIELDS = "cost(lambda: nvmlDeviceGetFieldValues(kept['gpu'], [({}, 0)]))"


def test_calls_and_fields_burn_the_cpu_time_of_an_h100_only_where_that_is_asked_for(
    fake: FakeNvml, client: NvmlClient
) -> None:
    client.ask("kept.update(gpu=gpu(3))")
    assert client.ask(INFOROM) < 30
    fake.write(prices=True)
    assert client.ask(INFOROM) >= 69
    assert client.ask(FIELDS.format(ENERGY)) >= 2.85
    assert client.ask(FIELDS.format(POWER)) < 2.85
    fake.write()
    assert client.ask(INFOROM) < 30


def test_what_is_not_supported_costs_nothing(fake: FakeNvml, client: NvmlClient) -> None:
    client.ask("kept.update(gpu=gpu(3))")
    fake.write(prices=True).reading("*", "inforom_valid", "none").reading("*", "energy_mj", "none")
    assert client.ask(INFOROM) < 30
    assert client.ask(FIELDS.format(ENERGY)) < 2.85
    mixed = f"cost(lambda: nvmlDeviceGetFieldValues(kept['gpu'], [({ENERGY}, 0)] * 100 + [(173, 0)] * 10))"
    assert 1.65 <= client.ask(mixed) < 100  # those that are supported cost, before and behind one that is not


# --- Events ----------------------------------------------------------------------------------------------------------

NEW_SET = (
    "kept.update(set=nvmlEventSetCreate()) or [nvmlDeviceRegisterEvents(gpu(i), 8, kept['set']) for i in {}] and 0"
)
WAIT = "(lambda e: (e.eventType, e.eventData, e.gpuInstanceId))(nvmlEventSetWait_v2(kept['set'], {}))"


def test_an_xid_reaches_each_event_set_that_was_there_before_it_once(fake: FakeNvml, client: NvmlClient) -> None:
    with nvml_client(fake) as other, nvml_client(fake) as late:
        for waiting in (client, other):
            waiting.ask(NEW_SET.format("range(8)"))
            waiting.send(WAIT.format(60_000))
        fake.xid(3, 79).xid(3, 48, (9, 0))
        late.ask(NEW_SET.format("range(8)"))
        for waiting in (client, other):
            assert waiting.receive() == {"value": [8, 79, 0xFFFFFFFF]}
            assert waiting.ask(WAIT.format(60_000)) == [8, 48, 9]
            assert waiting.code(WAIT.format(20)) == TIMEOUT
        assert late.code(WAIT.format(20)) == TIMEOUT
        fake.clear().xid(0, 13)
        assert late.ask(WAIT.format(60_000)) == [8, 13, 0xFFFFFFFF]


def test_an_event_set_gets_events_of_its_gpus_and_supported_types_only(fake: FakeNvml, client: NvmlClient) -> None:
    client.ask(NEW_SET.format("[2]"))
    assert client.code("nvmlDeviceRegisterEvents(gpu(3), 1 << 40, kept['set'])") == NOT_SUPPORTED
    fake.xid(3, 79).xid(2, 31)
    assert client.ask(WAIT.format(60_000))[1] == 31
    assert client.code(WAIT.format(0)) == TIMEOUT
    client.ask("nvmlEventSetFree(kept['set'])")


def test_a_wait_for_events_in_one_thread_does_not_hold_up_calls_in_another(fake: FakeNvml, client: NvmlClient) -> None:
    client.ask(NEW_SET.format("range(8)"))
    client.send("sweep_while_waiting(kept['set'], 2000)")
    for temperature in range(40, 80):
        fake.clear().reading("*", "temperature", temperature)
    answers = client.receive()["value"]
    assert len(answers) == 2000 * 8
    assert {answer for answer in answers if not 40 <= answer < 80} == set()
