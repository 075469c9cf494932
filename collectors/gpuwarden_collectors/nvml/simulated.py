"""Simulated GPUs with the interface of pynvml, as far as the collector uses it.

Constants, structures and exceptions are pynvml's own. Functions in the table of readings return the state of the
simulated GPU; other functions are defined here. Any other function returns "not supported".
"""
# ruff: noqa: N802 - the names are NVML's

from __future__ import annotations

import ctypes
import signal
import time
from collections.abc import Callable, Container, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NoReturn

import pynvml

from gpuwarden_collectors.file_changes import FileChanges
from gpuwarden_collectors.nvml.readings import CALLS, FIELDS, GPM, LINK_COUNTERS, LINK_FIELDS, VITAL, Call
from gpuwarden_collectors.nvml.simulated_faults import FAULTS, Fault, FaultsFile, faults_file, first_time
from gpuwarden_collectors.nvml.simulated_gpu import (
    LINKS,
    NAME,
    SimulatedGpu,
    simulated_gpu,
    simulated_slot,
    simulated_uuid,
)

_LOOK = 1.0  # seconds after which the faults file is read again even without an inotify event
_ANY = 0xFFFFFFFF

_ROWS: dict[tuple[Any, ...], Call] = {(row.function, *row.args): row for row in (*VITAL, *CALLS)}
_FUNCTIONS = frozenset(row.function for row in _ROWS.values())
_FIELD_NAMES = {field.id: field.into for field in FIELDS}
_LINK_FIELD_NAMES = {number: name for name, number in LINK_FIELDS.items()}
_SWITCHES = ("05", "06", "85", "86")  # PCI buses of the devices at the other ends of links
_LINK_COUNTER_NAMES = {number: name for name, number in LINK_COUNTERS.items()}
_GPM_NAMES = {number: name for name, number in GPM.items()}


def boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SimulatedNvml:
    """A pynvml with `gpus` simulated GPUs and the faults in the folder `directory` ("" for none).

    `clock` returns seconds since boot.
    """

    def __init__(self, gpus: int, directory: str, clock: Callable[[], float] = boot_seconds) -> None:
        self._count = gpus
        self._directory = Path(directory)
        self._file = FaultsFile(self._directory) if directory else None
        self._clock = clock
        self._gpus: list[SimulatedGpu] = []
        self._samples: dict[int, SimulatedGpu] = {}
        self._sample_numbers = count(0x1000)
        self._term_was: int | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTIONS:
            return lambda handle, *args: self._answer(name, handle, *args)
        value = getattr(pynvml, name)
        return _not_supported if isinstance(value, FunctionType) else value

    # --- the library and the list of devices

    def nvmlInit(self) -> None:
        self._apply_faults()

    def nvmlShutdown(self) -> None:
        self._samples.clear()

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlSystemGetNVMLVersion(self) -> str:
        return "13.580.65.06"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        self._apply_faults()
        return len(self._listed())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        listed = self._listed()
        if index >= len(listed):
            _fail(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        handle = _handle(listed[index].number)
        time.sleep(self._gpu(handle, identify=True).delay)
        return handle

    # --- one device

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        slot = simulated_slot(self._gpu(handle, identify=True).number)
        return SimpleNamespace(busId=f"0000{slot}".upper())

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return simulated_uuid(self._gpu(handle, identify=True).number)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        self._gpu(handle, identify=True)
        return NAME

    def nvmlDeviceGetSerial(self, handle: Any) -> str:
        return f"1650023{self._gpu(handle, identify=True).number:06d}"

    def nvmlDeviceGetVbiosVersion(self, handle: Any) -> str:
        self._gpu(handle, identify=True)
        return "96.00.89.00.01"

    def nvmlDeviceGetInforomImageVersion(self, handle: Any) -> str:
        self._gpu(handle, identify=True)
        return "G520.0200.00.05"

    def nvmlDeviceGetBoardPartNumber(self, handle: Any) -> str:
        self._gpu(handle, identify=True)
        return "692-2G520-0200-000"

    def nvmlDeviceGetMinorNumber(self, handle: Any) -> int:
        return self._gpu(handle, identify=True).number

    def nvmlDeviceValidateInforom(self, handle: Any) -> None:
        if not self._gpu(handle).values["inforom_valid"]:
            _fail(pynvml.NVML_ERROR_CORRUPTED_INFOROM)

    def nvmlDeviceGetGridLicensableFeatures(self, handle: Any) -> Any:
        self._gpu(handle)
        return SimpleNamespace(isGridLicenseSupported=0)

    def nvmlDeviceGetSramEccErrorStatus(self, handle: Any, status: Any) -> None:
        # The only access to the structure behind a byref() argument.
        status._obj.bThresholdExceeded = self._gpu(handle).values["sram_threshold_exceeded"]  # noqa: SLF001

    def _nvmlGetFunctionPointer(self, _: str) -> Any:
        """Returns the only function that is called without its binding: the flag for unrepairable memory."""

        def get(handle: Any, words: Any) -> int:
            words._obj[0] = self._gpu(handle).values["memory_unrepairable"]  # noqa: SLF001 - as above
            return 0

        return get

    def nvmlDeviceGetGpuFabricInfoV(self, handle: Any, info: Any) -> None:
        values, structure = self._gpu(handle).values, info._obj  # noqa: SLF001 - as above
        structure.state = values["fabric_state"]
        structure.status = values["fabric_status"]
        structure.cliqueId = values["fabric_clique"]
        structure.healthMask = values["fabric_health_mask"]
        structure.healthSummary = values["fabric_health_summary"]

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any) -> list[Any]:
        gpu = self._gpu(handle)
        return [SimpleNamespace(pid=pid, gpuInstanceId=_ANY, computeInstanceId=_ANY) for pid in gpu.pids]

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: Sequence[tuple[int, int]]) -> Any:
        gpu = self._gpu(handle)
        array = (pynvml.c_nvmlFieldValue_t * len(fields))()
        for element, (number, scope) in zip(array, fields, strict=True):
            value = _field(gpu, number, scope)
            element.fieldId, element.scopeId = number, scope
            element.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
            element.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if value is None else pynvml.NVML_SUCCESS
            element.value.ullVal = value or 0
        return array

    # --- NVLink

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:
        return self._link(handle, link)["active"]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Any, link: int) -> Any:
        self._link(handle, link)
        return SimpleNamespace(busId=f"00000000:{_SWITCHES[link % len(_SWITCHES)]}:00.0")

    def nvmlDeviceGetNvLinkErrorCounter(self, handle: Any, link: int, counter: int) -> int:
        return self._link(handle, link)[_LINK_COUNTER_NAMES[counter]]

    # --- GPM: a sample is the GPU as it was

    def nvmlGpmQueryDeviceSupport(self, handle: Any) -> Any:
        self._gpu(handle)
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> Any:
        return ctypes.cast(ctypes.c_void_p(next(self._sample_numbers)), pynvml.c_nvmlGpmSample_t)

    def nvmlGpmSampleGet(self, handle: Any, sample: Any) -> None:
        self._samples[_number(sample)] = self._gpu(handle)

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        self._samples.pop(_number(sample), None)

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        gpu = self._samples[_number(request.sample2)]
        for metric in request.metrics[: request.numMetrics]:
            metric.value = gpu.values[_GPM_NAMES[metric.metricId]]

    # --- events

    def nvmlEventSetCreate(self) -> set[int]:
        return set()

    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, events: set[int]) -> None:
        if types & pynvml.nvmlEventTypeXidCriticalError:
            events.add(_number(handle))

    def nvmlEventSetFree(self, events: set[int]) -> None:
        events.clear()

    def nvmlEventSetWait_v2(self, events: set[int], milliseconds: int) -> Any:
        until = time.monotonic() + milliseconds / 1000
        with closing(FileChanges(faults_file(self._directory))) as changes:
            while (left := until - time.monotonic()) > 0:
                changes.forget()
                if fault := self._happens("xid", events):
                    return SimpleNamespace(
                        device=_handle(fault.gpu),
                        eventType=pynvml.nvmlEventTypeXidCriticalError,
                        eventData=fault.number,
                        gpuInstanceId=_ANY,
                        computeInstanceId=_ANY,
                    )
                changes.wait(min(left, _LOOK))
        return _fail(pynvml.NVML_ERROR_TIMEOUT)

    def _happens(self, name: str, gpus: Container[int | None]) -> Fault | None:
        """Returns a pending one-time fault of these GPUs, and marks it as happened; None without one."""
        for fault in self._faults():
            if fault.name == name and fault.gpu in gpus and first_time(self._directory, fault):
                return fault
        return None

    # --- making and querying the simulated state

    def _faults(self) -> tuple[Fault, ...]:
        return self._file.read() if self._file is not None else ()

    def _listed(self) -> list[SimulatedGpu]:
        return [gpu for gpu in self._gpus if gpu.listed]

    def _apply_faults(self) -> None:
        """Computes the present state of the GPUs, with all faults. Raises NVMLError for a driver fault."""
        now, faults = self._clock(), self._faults()
        gpus = [simulated_gpu(number, now) for number in range(self._count)]
        for fault in faults:
            kind = FAULTS[fault.name]
            if kind.driver_error:
                _fail(kind.driver_error)
            if kind.effect is not None and fault.gpu is not None and fault.gpu < self._count:
                kind.effect(gpus[fault.gpu], fault.number or 0, max(now - fault.at, 0.0))
        self._gpus = gpus

    def _gpu(self, handle: Any, *, identify: bool = False) -> SimulatedGpu:
        """Returns the GPU of a handle. `identify`: the call reads its identity. Raises the NVMLError of its faults."""
        number = _number(handle)
        gpu = self._gpus[number]
        if gpu.stall:
            self._stall(number)
            gpu = self._gpus[number]
        if gpu.error and not (identify and gpu.identified):
            _fail(gpu.error)
        return gpu

    def _stall(self, number: int) -> None:
        """Blocks until the fault is cleared."""
        with closing(FileChanges(faults_file(self._directory))) as changes:
            while stall := self._gpus[number].stall:
                if stall == "crash" and self._happens("crash", {number}):
                    signal.raise_signal(signal.SIGSEGV)
                if stall == "hang-hard" and self._term_was is None:
                    self._term_was = _handle_term(_IGNORE)
                changes.wait(_LOOK)
                changes.forget()
                self._apply_faults()
        if self._term_was is not None:
            _handle_term(self._term_was)
            self._term_was = None

    def _link(self, handle: Any, link: int) -> dict[str, int]:
        gpu = self._gpu(handle)
        if link >= LINKS:
            _fail(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return gpu.links[link]

    def _answer(self, function: str, handle: Any, *args: int) -> Any:
        """Returns the result of a function in the table of readings."""
        gpu = self._gpu(handle)
        row = _ROWS.get((function, *args))
        values = [gpu.values.get(name) for name in row.into] if row else [None]
        if row is None or None in values:
            return _not_supported()
        if not row.parts:
            return values[0]
        return values if row.parts == "[]" else SimpleNamespace(**dict(zip(row.parts.split(), values, strict=True)))


def _field(gpu: SimulatedGpu, number: int, scope: int) -> int | None:
    if number in _LINK_FIELD_NAMES and scope < LINKS:
        return gpu.links[scope].get(_LINK_FIELD_NAMES[number])
    return gpu.values.get(_FIELD_NAMES.get(number, ""))


def _fail(code: int) -> NoReturn:
    raise pynvml.NVMLError(code)


def _not_supported(*_: Any) -> NoReturn:
    _fail(pynvml.NVML_ERROR_NOT_SUPPORTED)


def _handle(number: int | None) -> Any:
    """A device handle that is never dereferenced: its address is the number of the GPU plus one."""
    return ctypes.cast(ctypes.c_void_p((number or 0) + 1), pynvml.c_nvmlDevice_t)


def _number(handle: Any) -> int:
    return (ctypes.cast(handle, ctypes.c_void_p).value or 0) - 1


_IGNORE = 1  # SIG_IGN


def _handle_term(disposition: int) -> int:
    """Sets the disposition of SIGTERM by libc: Python's works only in the main thread. Returns the old one."""
    libc_signal = ctypes.CDLL(None).signal
    libc_signal.restype = ctypes.c_void_p
    return libc_signal(int(signal.SIGTERM), ctypes.c_void_p(disposition)) or 0
