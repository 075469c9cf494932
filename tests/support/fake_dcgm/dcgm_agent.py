"""The calls, with the names and signatures of the bindings of DCGM 4.6.0."""

# ruff: noqa: N802, N803, PLR0917 - these are the names and signatures of the bindings
from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import dcgm_structs  # type: ignore[import-not-found] # found by path, as the real one is
import fake_engine  # type: ignore[import-not-found] # found by path
from dcgm_structs import DCGMError
from fake_state import LOST  # type: ignore[import-not-found] # found by path

Handle = ctypes.c_void_p
_INT64_BLANK, _FP64_BLANK = 0x7FFFFFFFFFFFFFF0, 140737488355328.0
embedded: list[Handle] = []  # one at a time: a second beside it gets no handle


def dcgmFP(name: str) -> Callable[..., int]:
    """A function of the library itself: it gives the return code and writes its answer to the given place."""

    def function(*arguments: Any) -> int:
        try:
            _FUNCTIONS[name](*arguments)
        except DCGMError as error:
            return int(error.value)
        return 0

    if name not in _FUNCTIONS:
        raise DCGMError(-20)
    return function


def dcgmInit() -> None:
    with fake_engine.call("dcgmInit"):
        pass


def dcgmConnect_v3(connection_string: str, connectParams: Any, version: int = 0) -> Handle:
    with fake_engine.call("dcgmConnect_v3") as engine:
        return Handle(fake_engine.connect(engine))


def dcgmDisconnect(dcgm_handle: Handle) -> int:
    """Does not mind a dead connection."""
    with fake_engine.call("dcgmDisconnect") as engine:
        fake_engine.disconnect(engine, str(dcgm_handle.value))
    return 0


def dcgmStartEmbedded(opMode: int) -> Handle:
    with fake_engine.call("dcgmStartEmbedded") as engine:
        if embedded:
            return Handle()
        embedded.append(Handle(fake_engine.connect(engine)))
    return embedded[0]


def dcgmStopEmbedded(dcgm_handle: Handle) -> int:
    if dcgm_handle.value is None:
        raise DCGMError(fake_engine.BADPARAM)
    with fake_engine.call("dcgmStopEmbedded") as engine:
        fake_engine.disconnect(engine, str(dcgm_handle.value))
    embedded.clear()
    return 0


def _version_info(handle: Handle, info: Any) -> None:
    with fake_engine.call("dcgmHostengineVersionInfo", handle) as engine:
        info._obj.rawBuildInfoString = f"version:{engine['version']};arch:x86_64;buildtype:Release".encode()


# --- entities


def dcgmGetAllDevices(dcgm_handle: Handle) -> list[int]:
    with fake_engine.call("dcgmGetAllDevices", dcgm_handle) as engine:
        return list(range(len(engine["gpus"])))


def dcgmGetGpuStatus(dcgm_handle: Handle, gpuId: int) -> int:
    with fake_engine.call("dcgmGetGpuStatus", dcgm_handle) as engine:
        return int(fake_engine.status_of(engine, fake_engine.GPU, gpuId))


def dcgmGetDeviceAttributes(dcgm_handle: Handle, gpuId: int, version: int = 3) -> Any:
    """Nothing for a GPU that there never was, blanks for one that is lost: the driver is asked each time."""
    attributes = dcgm_structs.c_dcgmDeviceAttributes_v3()
    with fake_engine.call("dcgmGetDeviceAttributes", dcgm_handle) as engine:
        gpu = dict(enumerate(engine["gpus"])).get(gpuId)
        blind = engine["blind"]
    name = b"NVIDIA H100 80GB HBM3"
    slot, uuid = (gpu["slot"].encode(), gpu["uuid"].encode()) if gpu else (b"", b"")
    if gpu is None:
        name = b""
    elif blind or gpu["status"] == LOST:
        slot = uuid = name = b"<<<NULL>>>"
    attributes.identifiers.pciBusId, attributes.identifiers.uuid = slot, uuid
    attributes.identifiers.deviceName = name
    return attributes


def dcgmGetEntityGroupEntities(dcgm_handle: Handle, entityGroup: int, flags: int) -> list[int]:
    with fake_engine.call("dcgmGetEntityGroupEntities", dcgm_handle) as engine:
        if entityGroup in engine["unloaded"]:
            raise DCGMError(fake_engine.MODULE_NOT_LOADED)
        if entityGroup == fake_engine.GPU:
            return [number for number, gpu in enumerate(engine["gpus"]) if gpu["status"] in fake_engine.ACTIVE]
        return [number for kind, number in engine["others"] if kind == entityGroup]


# --- groups


def dcgmGroupCreate(dcgm_handle: Handle, type: int, groupName: str) -> Handle:  # noqa: A002 - its name
    with fake_engine.call("dcgmGroupCreate", dcgm_handle) as engine:
        return _made(engine, "groups", dcgm_handle, {"name": groupName, "entities": [], "mask": 0, "since": {}})


def _made(engine: Any, kind: str, handle: Handle, content: dict[str, Any]) -> Handle:
    if len(engine[kind]) >= fake_engine.MOST[kind]:
        raise DCGMError(fake_engine.MAX_LIMIT)
    number = fake_engine.new_id(engine)
    engine[kind][str(number)] = content | {"client": str(handle.value)}
    return Handle(number)


def dcgmGroupDestroy(dcgm_handle: Handle, group_id: Handle) -> int:
    """Destroy a group, whoever made it."""
    with fake_engine.call("dcgmGroupDestroy", dcgm_handle) as engine:
        fake_engine.group_of(engine, group_id)
        del engine["groups"][str(group_id.value)]
    return 0


def dcgmGroupAddEntity(dcgm_handle: Handle, group_id: Handle, entityGroupId: int, entityId: int) -> int:
    with fake_engine.call("dcgmGroupAddEntity", dcgm_handle) as engine:
        entities = fake_engine.group_of(engine, group_id)["entities"]
        status = fake_engine.status_of(engine, entityGroupId, entityId)
        if status not in fake_engine.ACTIVE or [entityGroupId, entityId] in entities:
            refusals = {4: fake_engine.GPU_IS_LOST, 2: fake_engine.GPU_NOT_SUPPORTED}
            raise DCGMError(refusals.get(status, fake_engine.BADPARAM))
        entities.append([entityGroupId, entityId])
    return 0


# --- health


def dcgmHealthSet_v2(dcgm_handle: Handle, groupId: Handle, systems: int, updateInterval: int, maxKeepAge: float) -> int:
    with fake_engine.call("dcgmHealthSet_v2", dcgm_handle) as engine:
        group = fake_engine.group_of(engine, groupId)
        if (
            any(kind != fake_engine.GPU for kind, _ in group["entities"])
            and "dcgmHealthSet_v2 of others" in engine["codes"]
        ):
            raise DCGMError(engine["codes"]["dcgmHealthSet_v2 of others"])
        fake_engine.set_watches(engine, group, systems)
    return 0


def dcgmHealthGet(dcgm_handle: Handle, groupId: Handle) -> int:
    with fake_engine.call("dcgmHealthGet", dcgm_handle) as engine:
        return ctypes.c_int32(fake_engine.group_of(engine, groupId)["mask"]).value


def _health_check(handle: Handle, group: Handle, response: Any) -> None:
    """The code of a check that failed in part comes with its incidents."""
    answer = response._obj
    if answer.version != dcgm_structs.dcgmHealthResponse_version5:
        raise DCGMError(-12)
    with fake_engine.call("dcgmHealthCheck", handle) as engine:
        incidents = list(fake_engine.incidents(engine, fake_engine.group_of(engine, group)))
        part = engine["codes"].get("part of dcgmHealthCheck")
    for place, (system, health, code, text, kind, number) in enumerate(incidents[: len(answer.incidents)]):
        incident = answer.incidents[place]
        incident.system, incident.health, incident.error.code = system, health, code
        incident.error.msg = text.encode(errors="surrogateescape")[:1023]
        incident.entityInfo.entityGroupId, incident.entityInfo.entityId = kind, number
    answer.incidentCount = min(len(incidents), len(answer.incidents))
    answer.overallHealth = max((health for _, health, *_ in incidents), default=0)
    if part is not None:
        raise DCGMError(part)


# --- fields


def dcgmFieldGroupCreate(dcgm_handle: Handle, fieldIds: Sequence[int], fieldGroupName: str) -> Handle:
    with fake_engine.call("dcgmFieldGroupCreate", dcgm_handle) as engine:
        if not fieldIds or any(field not in fake_engine.KNOWN or field in engine["unknown"] for field in fieldIds):
            raise DCGMError(fake_engine.BADPARAM)
        if any(group["name"] == fieldGroupName for group in engine["field_groups"].values()):
            raise DCGMError(fake_engine.DUPLICATE_KEY)
        return _made(engine, "field_groups", dcgm_handle, {"name": fieldGroupName, "fields": list(fieldIds)})


def dcgmWatchFields(
    dcgm_handle: Handle, groupId: Handle, fieldGroupId: Handle, updateFreq: int, maxKeepAge: float, maxKeepSamples: int
) -> int:
    with fake_engine.call("dcgmWatchFields", dcgm_handle) as engine:
        entities = fake_engine.group_of(engine, groupId)["entities"]
        if str(fieldGroupId.value) not in engine["field_groups"]:
            raise DCGMError(fake_engine.NO_DATA)
        fields = engine["field_groups"][str(fieldGroupId.value)]["fields"]
        if not engine["profiling"] and not set(fields).isdisjoint(fake_engine.PROFILING):
            raise DCGMError(engine["profiling_code"])
        fake_engine.asked_again(engine)
        for kind, number in entities:
            for field in fields:
                where = [fake_engine.NODE, 0] if field in fake_engine.NODE_FIELDS else [kind, number]
                watch = [str(dcgm_handle.value), *where, field]
                if watch not in engine["watched"]:
                    engine["watched"].append(watch)
                fake_engine.note_watches(engine, [(watch[1], watch[2], field)])
    return 0


def dcgmEntitiesGetLatestValues(
    dcgmHandle: Handle, entities: Sequence[Any], fieldIds: Sequence[int], flags: int
) -> Any:
    values = (dcgm_structs.c_dcgmFieldValue_v2 * (len(entities) * len(fieldIds)))()
    with fake_engine.call("dcgmEntitiesGetLatestValues", dcgmHandle) as engine:
        if not values:
            raise DCGMError(fake_engine.BADPARAM)
        if not fake_engine.KNOWN.issuperset(fieldIds):
            raise DCGMError(fake_engine.GENERIC_ERROR)
        watched = {tuple(each) for each in engine["sampled"]}
        wanted = [(entity.entityGroupId, entity.entityId, field) for entity in entities for field in fieldIds]
        for value, (kind, number, field) in zip(values, wanted, strict=True):
            value.entityGroupId, value.entityId, value.fieldId = kind, number, field
            reading = None
            if (kind, number, field) not in watched:
                value.status = fake_engine.NOT_WATCHED
            else:
                try:
                    reading = fake_engine.value_of(engine, kind, number, field)
                except KeyError:
                    value.status = fake_engine.NO_DATA
            _fill(value, field, reading)
            if value.status != 0:
                value.ts = 0
            elif field == fake_engine.LAST_XID and reading is not None:
                value.ts = int(engine["gpus"][number]["noted"] * 1e6)  # no reading, but an event: its sample ages
    return values


def _fill(value: Any, field: int, reading: Any) -> None:
    value.ts = time.time_ns() // 1000
    if field in fake_engine.STRINGS:
        value.fieldType = ord("s")
        value.value.str = ("<<<NULL>>>" if reading is None else reading).encode()
    elif field in fake_engine.DOUBLES:
        value.fieldType = ord("d")
        value.value.dbl = _FP64_BLANK if reading is None else reading
    else:
        value.fieldType = ord("i")
        value.value.i64 = _INT64_BLANK if reading is None else min(reading, sys.maxsize)


_FUNCTIONS: dict[str, Callable[..., None]] = {
    "dcgmHealthCheck": _health_check,
    "dcgmHostengineVersionInfo": _version_info,
}
