"""One GPU through the driver: context, memory, kernels, copies, times."""

from __future__ import annotations

import ctypes
import uuid
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref, c_float, c_int, c_size_t, c_uint64, c_void_p

from gpuwarden_collectors.active_test.cuda.errors import CudaError, HostError
from gpuwarden_collectors.active_test.cuda.library import CUuuid, Driver

_SCHED_BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC: waiting takes no CPU
_EVENT_BLOCKING_SYNC = 1  # CU_EVENT_BLOCKING_SYNC
_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for the contexts of all GPUs
_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # of CUfunction_attribute
_SMS, _INTEGRATED, _MAJOR, _MINOR, _SHARED_PER_SM = 16, 18, 75, 76, 81  # of CUdevice_attribute
_BUFFER_POINTER, _BUFFER_SIZE = 1, 2  # CU_LAUNCH_PARAM_BUFFER_*: all parameters in one buffer
_NO_MPS = "/dev/null"  # not a folder: connecting to MPS fails, and the process uses the GPU directly

Function = c_void_p


def prepare(environment: MutableMapping[str, str], uuids: Sequence[str]) -> None:
    """Sets what libcuda reads at its start.

    These are the GPUs in this order, no MPS server, and no kernel cache unless one is configured.
    """
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(uuids)
    environment["CUDA_MPS_PIPE_DIRECTORY"] = _NO_MPS
    # With lazy loading a kernel allocates memory at its first launch, when none may be left.
    environment["CUDA_MODULE_LOADING"] = "EAGER"
    if not environment.get("CUDA_CACHE_PATH"):
        environment["CUDA_CACHE_DISABLE"] = "1"  # the default is in the user's home, and code from there would be run


class Device:
    """The visible GPU number `ordinal`. The constructor creates its primary context and makes it current.

    Sizes are bytes, times seconds, addresses those of the GPU. Every method raises CudaError.
    """

    def __init__(self, driver: Driver, ordinal: int, expected: str) -> None:
        """Raises HostError also if the UUID of this GPU is not `expected`."""
        self._driver = driver
        handle, raw_uuid, context = c_int(), CUuuid(), c_void_p()
        driver.call("cuDeviceGet", byref(handle), ordinal)
        driver.call("cuDeviceGetUuid", byref(raw_uuid), handle)
        self.uuid = f"GPU-{uuid.UUID(bytes=bytes(raw_uuid))}"
        if self.uuid != expected:
            raise HostError(
                f"CUDA gives {self.uuid} where {expected} was asked for: CUDA_VISIBLE_DEVICES has no effect here; "
                "test outside of containers that set it"
            )
        self._handle = handle
        self.capability = self._attribute(_MAJOR), self._attribute(_MINOR)
        self.sms = self._attribute(_SMS)
        self.shared_per_sm = self._attribute(_SHARED_PER_SM)
        self.integrated = bool(self._attribute(_INTEGRATED))
        driver.call("cuDevicePrimaryCtxSetFlags_v2", handle, _SCHED_BLOCKING_SYNC)
        driver.call("cuDevicePrimaryCtxRetain", byref(context), handle)
        self._context = context
        self.select()
        self._start, self._end = self._event(), self._event()

    def _attribute(self, number: int) -> int:
        value = c_int()
        self._driver.call("cuDeviceGetAttribute", byref(value), number, self._handle)
        return value.value

    def _event(self) -> c_void_p:
        event = c_void_p()
        self._driver.call("cuEventCreate", byref(event), _EVENT_BLOCKING_SYNC)
        return event

    def select(self) -> None:
        """Makes the context of this GPU the current one: later allocations and launches are on this GPU."""
        self._driver.call("cuCtxSetCurrent", self._context)

    def release(self) -> None:
        """Frees the context and all that is in it. The device cannot be used afterwards."""
        self._driver.call("cuDevicePrimaryCtxRelease_v2", self._handle)

    def memory(self) -> tuple[int, int]:
        """Returns free and total memory in bytes."""
        free, total = c_size_t(), c_size_t()
        self._driver.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    @contextmanager
    def allocated(self, size: int) -> Iterator[int]:
        """Allocates memory on this GPU for the block and yields its address. Raises OutOfMemoryError.

        Makes this GPU the current one at the beginning and at the end.
        """
        address = c_uint64()
        self.select()
        self._driver.call("cuMemAlloc_v2", byref(address), size)
        with self._freed("cuMemFree_v2", address):
            yield address.value

    @contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        """Allocates host memory that copies can use directly, and yields its host address."""
        address = c_void_p()
        self._driver.call("cuMemHostAlloc", byref(address), size, _PORTABLE)
        with self._freed("cuMemFreeHost", address):
            yield address.value or 0

    @contextmanager
    def _freed(self, call: str, address: c_uint64 | c_void_p) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(CudaError):  # after a GPU error every call fails, and the first error is the useful one
                self._driver.call(call, address)
            raise
        self.select()
        self._driver.call(call, address)

    def functions(self, text: str, names: Sequence[str]) -> dict[str, Function]:
        """Loads a PTX text, which the driver translates for this GPU, and returns its entries."""
        module = c_void_p()
        self._driver.call("cuModuleLoadData", byref(module), text.encode())
        return {name: self._function(module, name) for name in names}

    def _function(self, module: c_void_p, name: str) -> Function:
        function = c_void_p()
        self._driver.call("cuModuleGetFunction", byref(function), module, name.encode())
        return function

    def allow_shared(self, function: Function, size: int) -> None:
        """Allows a kernel this much dynamic shared memory; required above 48 KiB."""
        self._driver.call("cuFuncSetAttribute", function, _MAX_DYNAMIC_SHARED_SIZE_BYTES, size)

    def launch(self, function: Function, grid: int, block: int, parameters: bytes, shared: int = 0) -> None:
        """Starts a kernel. The driver has taken the parameters when this returns."""
        content, size = ctypes.create_string_buffer(parameters, len(parameters)), c_size_t(len(parameters))
        extra = (c_void_p * 5)(_BUFFER_POINTER, ctypes.addressof(content), _BUFFER_SIZE, ctypes.addressof(size), None)
        self._driver.call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared, None, None, extra)

    def timed(self, start: Callable[[], None]) -> float:
        """Returns the GPU seconds of the kernel or copy that `start` starts, after it has ended."""
        call, milliseconds = self._driver.call, c_float()
        call("cuEventRecord", self._start, None)
        start()
        call("cuEventRecord", self._end, None)
        call("cuEventSynchronize", self._end)
        call("cuEventElapsedTime", byref(milliseconds), self._start, self._end)
        return milliseconds.value / 1000

    def copy_to_device(self, address: int, host: int, size: int) -> None:
        """Starts a copy out of pinned memory."""
        self._driver.call("cuMemcpyHtoDAsync_v2", address, host, size, None)

    def copy_to_host(self, host: int, address: int, size: int) -> None:
        """Starts a copy into pinned memory."""
        self._driver.call("cuMemcpyDtoHAsync_v2", host, address, size, None)

    def read(self, address: int, size: int) -> bytes:
        """Returns `size` bytes from `address`, as they are when all work started before has ended."""
        content = ctypes.create_string_buffer(size)
        self._driver.call("cuMemcpyDtoH_v2", content, address, size)
        return content.raw

    def fill(self, address: int, byte: int, size: int) -> None:
        """Sets every byte of the range to `byte`."""
        self._driver.call("cuMemsetD8_v2", address, byte, size)

    def reach(self, peer: Device) -> bool:
        """Lets kernels of this GPU access the other GPU's memory; returns False where no path allows that."""
        possible = c_int()
        self._driver.call("cuDeviceCanAccessPeer", byref(possible), self._handle, peer._handle)
        if possible.value:
            self.select()
            self._driver.call("cuCtxEnablePeerAccess", peer._context, 0)
        return bool(possible.value)
