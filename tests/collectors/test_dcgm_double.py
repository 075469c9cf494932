"""The pretended DCGM has the names, signatures, structures and error numbers of the real bindings, and their quirks."""

from __future__ import annotations

import ctypes
import inspect
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuwarden_collectors.dcgm.bindings import NEEDED, Bindings, open_bindings
from support.dcgm import BINDINGS, LOST, FakeDcgm, engine_process, reading

# Names as in testing/python3 of DCGM 4.6.0 (commit 72fa3fe).
PARAMETERS = {
    "pydcgm.DcgmHandle": "handle ipAddress opMode persistAfterDisconnect unixSocketPath timeoutMs decoratorHandle",
    "dcgm_agent.dcgmFP": "name",
    "dcgm_agent.dcgmInit": "",
    "dcgm_agent.dcgmConnect_v3": "connection_string connectParams version",
    "dcgm_agent.dcgmDisconnect": "dcgm_handle",
    "dcgm_agent.dcgmStartEmbedded": "opMode",
    "dcgm_agent.dcgmStopEmbedded": "dcgm_handle",
    "dcgm_agent.dcgmGetAllDevices": "dcgm_handle",
    "dcgm_agent.dcgmGetGpuStatus": "dcgm_handle gpuId",
    "dcgm_agent.dcgmGetDeviceAttributes": "dcgm_handle gpuId version",
    "dcgm_agent.dcgmGetEntityGroupEntities": "dcgm_handle entityGroup flags",
    "dcgm_agent.dcgmGroupCreate": "dcgm_handle type groupName",
    "dcgm_agent.dcgmGroupDestroy": "dcgm_handle group_id",
    "dcgm_agent.dcgmGroupAddEntity": "dcgm_handle group_id entityGroupId entityId",
    "dcgm_agent.dcgmHealthSet_v2": "dcgm_handle groupId systems updateInterval maxKeepAge",
    "dcgm_agent.dcgmHealthGet": "dcgm_handle groupId",
    "dcgm_agent.dcgmFieldGroupCreate": "dcgm_handle fieldIds fieldGroupName",
    "dcgm_agent.dcgmWatchFields": "dcgm_handle groupId fieldGroupId updateFreq maxKeepAge maxKeepSamples",
    "dcgm_agent.dcgmEntitiesGetLatestValues": "dcgmHandle entities fieldIds flags",
    "dcgm_fields.DcgmFieldGetById": "fieldId",
}
IDENTIFIERS = (
    "version brandName deviceName pciBusId serial uuid vbios inforomImageVersion pciDeviceId pciSubSystemId "
    "driverVersion virtualizationMode"
)
# Structure: its size, and its members
STRUCTURES = {
    "c_dcgmGroupEntityPair_t": (8, "entityGroupId entityId"),
    "c_dcgmDiagErrorDetail_t": (1028, "msg code"),
    "c_dcgmIncidentInfo_t": (1044, "system health error entityInfo"),
    "c_dcgmHealthResponse_v5": (1_069_068, "version overallHealth incidentCount incidents"),
    "c_dcgmVersionInfo_v2": (516, "version rawBuildInfoString"),
    "c_dcgmDeviceIdentifiers_v1": (2064, IDENTIFIERS),
    "c_dcgmFieldValue_v1_value": (4096, "i64 dbl str blob"),
    "c_dcgmFieldValue_v2": (4128, "version entityGroupId entityId fieldId fieldType status unused ts value"),
}
VERSIONS = {"dcgmHealthResponse_version5": 84_955_148, "dcgmVersionInfo_version2": 33_554_948}
GPU_0, GPU_1 = (1, 0), (1, 1)
ALL_SYSTEMS = 0xFFFFFFFF


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDcgm:
    fake = FakeDcgm(tmp_path)
    for name, value in fake.environment.items():
        monkeypatch.setenv(name, value)
    return fake


@pytest.fixture
def dcgm(fake: FakeDcgm) -> Bindings:
    return open_bindings(BINDINGS)


def test_the_double_has_the_names_of_the_real_bindings(dcgm: Bindings) -> None:
    modules = {"pydcgm": dcgm.pydcgm, "dcgm_agent": dcgm.agent, "dcgm_fields": dcgm.fields}
    for name, parameters in PARAMETERS.items():
        module, _, attribute = name.partition(".")
        signature = inspect.signature(getattr(modules[module], attribute))
        assert list(signature.parameters) == parameters.split(), name
    for name, (size, members) in STRUCTURES.items():
        structure = getattr(dcgm.structs, name)
        assert [field[0] for field in structure._fields_] == members.split(), name
        assert ctypes.sizeof(structure) == size, name
    assert {name: getattr(dcgm.structs, name) for name in VERSIONS} == VERSIONS


def test_all_that_the_reader_uses_is_in_the_table_of_real_names() -> None:
    real_names = {*PARAMETERS, *(f"dcgm_structs.{name}" for name in (*STRUCTURES, *VERSIONS, "DCGMError"))}
    assert {f"{module}.{name}" for module, names in NEEDED.items() for name in names} <= real_names


# --- Quirks of the real engine ------------------------------------------------------------------------------------


def refused(dcgm: Bindings, call: Callable[..., Any], *arguments: Any) -> int:
    with pytest.raises(dcgm.structs.DCGMError) as error:
        call(*arguments)
    return int(error.value.value)


def connected(dcgm: Bindings, path: str = "/engine") -> Any:
    return dcgm.pydcgm.DcgmHandle(unixSocketPath=path).handle


def group_of(dcgm: Bindings, handle: Any, *entities: tuple[int, int]) -> Any:
    group = dcgm.agent.dcgmGroupCreate(handle, 1, "same name")
    for entity in entities:
        dcgm.agent.dcgmGroupAddEntity(handle, group, *entity)
    dcgm.agent.dcgmHealthSet_v2(handle, group, ALL_SYSTEMS, 30_000_000, 600.0)
    return group


def checked(dcgm: Bindings, handle: Any, group: Any) -> tuple[int, list[int]]:
    """The overall health, and the codes of the incidents."""
    response = dcgm.structs.c_dcgmHealthResponse_v5()
    response.version = dcgm.structs.dcgmHealthResponse_version5
    assert dcgm.agent.dcgmFP("dcgmHealthCheck")(handle, group, ctypes.byref(response)) == 0
    incidents = response.incidents[: response.incidentCount]
    return response.overallHealth, [incident.error.code for incident in incidents]


def test_incidents_of_a_lost_gpu_vanish_and_the_check_passes(fake: FakeDcgm, dcgm: Bindings) -> None:
    handle = connected(dcgm)
    group = group_of(dcgm, handle, GPU_0, GPU_1)
    fake.xid(1, 79)
    assert checked(dcgm, handle, group) == (20, [120])
    fake.status(1, LOST)
    assert checked(dcgm, handle, group) == (0, [])
    assert dcgm.agent.dcgmGetGpuStatus(handle, 1) == LOST
    assert dcgm.agent.dcgmGetAllDevices(handle) == [0, 1]
    assert refused(dcgm, dcgm.agent.dcgmGroupAddEntity, handle, group, *GPU_1) == -18


def test_an_engine_without_gpus_passes(fake: FakeDcgm, dcgm: Bindings) -> None:
    fake.set(gpus=[])
    handle = connected(dcgm)
    assert dcgm.agent.dcgmGetAllDevices(handle) == []
    assert checked(dcgm, handle, group_of(dcgm, handle)) == (0, [])


def test_an_xid_stays_through_a_new_connection_until_the_engine_is_restarted(fake: FakeDcgm, dcgm: Bindings) -> None:
    fake.xid(0, 48)
    for _ in range(2):
        handle = connected(dcgm)
        assert checked(dcgm, handle, group_of(dcgm, handle, GPU_0)) == (20, [101])
    fake.restart()
    assert refused(dcgm, dcgm.agent.dcgmGetAllDevices, handle) == -21
    handle = connected(dcgm)
    assert checked(dcgm, handle, group_of(dcgm, handle, GPU_0)) == (0, [])


def test_any_client_switches_the_watches_of_a_group_off(fake: FakeDcgm, dcgm: Bindings) -> None:
    handle = connected(dcgm)
    group = group_of(dcgm, handle, GPU_0)
    assert dcgm.agent.dcgmHealthGet(handle, group) == -1  # signed
    fake.xid(0, 48)
    dcgm.agent.dcgmHealthSet_v2(connected(dcgm), group, 0, 30_000_000, 600.0)
    assert checked(dcgm, handle, group) == (0, [])


def test_one_nanosecond_of_capping_warns_and_link_totals_fail_for_ever(fake: FakeDcgm, dcgm: Bindings) -> None:
    handle = connected(dcgm)
    group = group_of(dcgm, handle, GPU_0)
    fake.field(0, 240, 1)
    assert checked(dcgm, handle, group) == (10, [12])
    fake.field(0, 499, 1)
    assert checked(dcgm, handle, group) == checked(dcgm, handle, group) == (20, [71, 12])


@pytest.mark.parametrize(
    ("action", "incidents"), [(1, [125]), (2, [126]), (3, [127]), (4, [128]), (5, []), (6, []), (7, [])]
)
def test_recovery_actions_beyond_4_give_no_incident(
    fake: FakeDcgm, dcgm: Bindings, action: int, incidents: list[int]
) -> None:
    handle = connected(dcgm)
    fake.field(0, 1523, action)
    assert checked(dcgm, handle, group_of(dcgm, handle, GPU_0))[1] == incidents


def test_one_unknown_field_fails_a_field_group_and_so_does_a_taken_name(fake: FakeDcgm, dcgm: Bindings) -> None:
    handle = connected(dcgm)
    create = dcgm.agent.dcgmFieldGroupCreate
    fake.set(unknown=[1507])
    assert dcgm.fields.DcgmFieldGetById(1507) is None
    assert refused(dcgm, create, handle, [150, 1507], "mine") == -1
    create(handle, [150], "mine")
    assert refused(dcgm, create, handle, [150], "mine") == -26


def test_groups_end_with_their_client_and_62_are_the_most(fake: FakeDcgm, dcgm: Bindings) -> None:
    other, handle = connected(dcgm), connected(dcgm)
    for _ in range(62):
        group_of(dcgm, handle)
    assert refused(dcgm, dcgm.agent.dcgmGroupCreate, other, 1, "one more") == -24
    dcgm.agent.dcgmDisconnect(handle)
    assert group_of(dcgm, other)


def test_a_hung_engine_blocks_and_then_times_out_but_takes_a_connection(fake: FakeDcgm, dcgm: Bindings) -> None:
    handle = connected(dcgm)
    fake.set(hang=True, hang_limit=0.05)
    assert refused(dcgm, dcgm.agent.dcgmGetAllDevices, handle) == -11
    assert connected(dcgm)
    fake.set(hang=False)
    assert dcgm.agent.dcgmGetAllDevices(handle) == [0, 1]


def test_killing_the_process_of_the_engine_ends_the_engine(fake: FakeDcgm, dcgm: Bindings, tmp_path: Path) -> None:
    with engine_process(fake, tmp_path / "socket") as process:
        handle = connected(dcgm)
        fake.set(hang_limit=0.05)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert refused(dcgm, dcgm.agent.dcgmGetAllDevices, handle) == -11
        process.kill()
        process.wait()
        assert refused(dcgm, dcgm.agent.dcgmGetAllDevices, handle) == -21
    with engine_process(fake, tmp_path / "socket"):
        assert refused(dcgm, dcgm.agent.dcgmGetAllDevices, handle) == -21
        assert dcgm.agent.dcgmGetAllDevices(connected(dcgm)) == [0, 1]


def test_a_field_that_is_not_watched_and_one_without_a_sample_have_their_own_status(
    fake: FakeDcgm, dcgm: Bindings
) -> None:
    handle = connected(dcgm)
    pair = dcgm.structs.c_dcgmGroupEntityPair_t(*GPU_0)
    values = dcgm.agent.dcgmEntitiesGetLatestValues(handle, [pair], [150, 230], 0)
    assert [value.status for value in values] == [-16, -16]
    fields = dcgm.agent.dcgmFieldGroupCreate(handle, [150, 230], "mine")
    dcgm.agent.dcgmWatchFields(handle, group_of(dcgm, handle, GPU_0), fields, 1_000_000, 60.0, 1)
    values = dcgm.agent.dcgmEntitiesGetLatestValues(handle, [pair], [150, 230], 0)
    assert (values[0].status, values[0].value.i64, values[1].status) == (0, 40, -14)


def test_the_last_xid_keeps_the_time_at_which_it_was_noted(fake: FakeDcgm) -> None:
    fake.xid(0, 48)
    with reading() as reader:
        first, second = reader.read(), reader.read()
    assert first.gpus[0].readings.last_xid == 48
    assert first.gpus[0].readings.last_xid_at == second.gpus[0].readings.last_xid_at


def test_a_second_engine_inside_one_process_gets_no_handle(fake: FakeDcgm, dcgm: Bindings) -> None:
    first = dcgm.pydcgm.DcgmHandle()
    assert first.isEmbedded
    assert refused(dcgm, dcgm.agent.dcgmGetAllDevices, dcgm.pydcgm.DcgmHandle().handle) == -1
    first.Shutdown()
    after = dcgm.pydcgm.DcgmHandle()
    assert dcgm.agent.dcgmGetAllDevices(after.handle) == [0, 1]
    after.Shutdown()
