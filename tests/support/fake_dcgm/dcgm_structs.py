"""Structures and exceptions with the names and members of the bindings of DCGM 4.6.0, as far as our reader uses them."""

# ruff: noqa: N801, N816 - these are the names of the bindings
from __future__ import annotations

import ctypes
from typing import Any, Self

DCGM_GROUP_MAX_ENTITIES_V2 = 1024
DCGM_MAX_STR_LENGTH = 256
DCGM_OPERATION_MODE_AUTO = 1

CODES = {
    "Ok": 0, "Badparam": -1, "GenericError": -3, "Memory": -4, "NotConfigured": -5, "NotSupported": -6,
    "InitError": -7, "NvmlError": -8, "Pending": -9, "Uninitialized": -10, "Timeout": -11, "VerMismatch": -12,
    "UnknownField": -13, "NoData": -14, "StaleData": -15, "NotWatched": -16, "NoPermission": -17,
    "GpuIsLost": -18, "ResetRequired": -19, "FunctionNotFound": -20, "ConnectionNotValid": -21,
    "GpuNotSupported": -22, "GroupIncompatible": -23, "MaxLimit": -24, "LibraryNotFound": -25,
    "DuplicateKey": -26, "GpuInSyncBoostGroup": -27, "GpuNotInSyncBoostGroup": -28, "RequiresRoot": -29,
    "NvvsError": -30, "InsufficientSize": -31, "FieldUnsupportedByApi": -32, "ModuleNotLoaded": -33,
    "InUse": -34, "GroupIsEmpty": -35, "ProfilingNotSupported": -36, "ProfilingLibraryError": -37,
    "ProfilingMultiPass": -38, "DiagAlreadyRunning": -39, "DiagBadJson": -40, "DiagBadLaunch": -41,
    "DiagUnused": -42, "DiagThresholdExceeded": -43, "InsufficientDriverVersion": -44, "InstanceNotFound": -45,
    "ComputeInstanceNotFound": -46, "ChildNotKilled": -47, "3rdPartyLibraryError": -48,
    "InsufficientResources": -49, "PluginException": -50, "NvvsIsolateError": -51, "NvvsBinaryNotFound": -52,
    "NvvsKilled": -53, "Paused": -54, "AlreadyInitialized": -55, "NvmlNotLoaded": -56, "NvmlDriverTimeout": -57,
    "NvvsNoAvailableTest": -58, "MndiagConnectionNotAvailable": -59, "MndiagConnectionUnauthorized": -60,
    "RemoteSshConnectionFailed": -61, "ChildSpawnFailed": -62, "FileIoError": -63, "ChildSignalReceived": -64,
    "CallerAlreadyStopped": -65, "DiagStopped": -66, "GpusDetached": -67,
}  # fmt: skip
"""The names after `DCGMError_`, of which the bindings make a class each."""
TEXTS = {
    -1: "Bad parameter passed to function", -3: "Generic unspecified error", -5: "Setting not configured",
    -6: "Feature not supported", -11: "Timeout", -14: "No data is available", -18: "GPU is unreachable",
    -21: "The connection to the host engine is not valid any longer", -24: "Max limit reached for the object",
    -25: "DCGM library could not be found", -26: "Duplicate key passed to function",
    -33: "This request is serviced by a module of DCGM that is not currently loaded",
    -36: "Profiling is not supported for this group of GPUs or GPU",
}  # fmt: skip
"""The text of such an error. The library has one for every code; these are the ones that are met."""


class DCGMError(Exception):
    """`DCGMError(-21)` is a DCGMError_ConnectionNotValid; `value` is the number."""

    classes: dict[int, type[DCGMError]] = {}  # noqa: RUF012 - as mutable as the original's

    def __new__(cls, value: int = 0) -> Self:
        kind: Any = DCGMError.classes.get(value, cls) if cls is DCGMError else cls
        error: Self = Exception.__new__(kind)
        return error

    def __init__(self, value: int = 0) -> None:
        super().__init__()
        self.value: int = value

    def __str__(self) -> str:
        return TEXTS.get(self.value, f"DCGM Error with code {self.value}")


for _name, _value in CODES.items():
    DCGMError.classes[_value] = type(f"DCGMError_{_name}", (DCGMError,), {})
    globals()[f"DCGMError_{_name}"] = DCGMError.classes[_value]


class _Structure(ctypes.Structure):
    """Texts are decoded when they are read, strictly."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return value.decode() if isinstance(value, bytes) else value


class _Union(ctypes.Union):
    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return value.decode() if isinstance(value, bytes) else value


def _version(structure: type[ctypes.Structure], number: int) -> int:
    return ctypes.sizeof(structure) | number << 24


class c_dcgmGroupEntityPair_t(_Structure):
    _fields_ = [("entityGroupId", ctypes.c_uint32), ("entityId", ctypes.c_uint32)]


class c_dcgmDiagErrorDetail_t(_Structure):
    _fields_ = [("msg", ctypes.c_char * 1024), ("code", ctypes.c_uint)]


class c_dcgmIncidentInfo_t(_Structure):
    _fields_ = [
        ("system", ctypes.c_uint),
        ("health", ctypes.c_uint32),
        ("error", c_dcgmDiagErrorDetail_t),
        ("entityInfo", c_dcgmGroupEntityPair_t),
    ]


class c_dcgmHealthResponse_v5(_Structure):
    _fields_ = [
        ("version", ctypes.c_uint32),
        ("overallHealth", ctypes.c_uint32),
        ("incidentCount", ctypes.c_uint32),
        ("incidents", c_dcgmIncidentInfo_t * DCGM_GROUP_MAX_ENTITIES_V2),
    ]


dcgmHealthResponse_version5 = _version(c_dcgmHealthResponse_v5, 5)


class c_dcgmVersionInfo_v2(_Structure):
    _fields_ = [("version", ctypes.c_uint32), ("rawBuildInfoString", ctypes.c_char * 512)]


dcgmVersionInfo_version2 = _version(c_dcgmVersionInfo_v2, 2)


class c_dcgmDeviceIdentifiers_v1(_Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("brandName", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("deviceName", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("pciBusId", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("serial", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("uuid", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("vbios", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("inforomImageVersion", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("pciDeviceId", ctypes.c_uint32),
        ("pciSubSystemId", ctypes.c_uint32),
        ("driverVersion", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("virtualizationMode", ctypes.c_uint32),
    ]


class c_dcgmDeviceAttributes_v3(_Structure):
    """The one of its many members that is read."""

    _fields_ = [("version", ctypes.c_uint), ("identifiers", c_dcgmDeviceIdentifiers_v1)]


class c_dcgmFieldValue_v1_value(_Union):
    _fields_ = [
        ("i64", ctypes.c_int64),
        ("dbl", ctypes.c_double),
        ("str", ctypes.c_char * DCGM_MAX_STR_LENGTH),
        ("blob", ctypes.c_byte * 4096),
    ]


class c_dcgmFieldValue_v2(_Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("entityGroupId", ctypes.c_uint),
        ("entityId", ctypes.c_uint),
        ("fieldId", ctypes.c_ushort),
        ("fieldType", ctypes.c_short),
        ("status", ctypes.c_int),
        ("unused", ctypes.c_uint),
        ("ts", ctypes.c_int64),
        ("value", c_dcgmFieldValue_v1_value),
    ]
