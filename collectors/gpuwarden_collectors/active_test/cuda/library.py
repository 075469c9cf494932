"""The functions of libcuda.so.1 that the test calls, with their argument types. No CUDA toolkit is needed."""

from __future__ import annotations

from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

from gpuwarden_collectors.active_test.cuda.errors import call_failed, function_absent, library_absent
from gpuwarden_collectors.driver_libraries import load

LIBRARY = "libcuda.so.1"

CUuuid = c_ubyte * 16
_HANDLE = POINTER(c_void_p)
_DEVICE, _ADDRESS = c_int, c_uint64  # CUdevice, CUdeviceptr

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (POINTER(_DEVICE), c_int),
    "cuDeviceGetUuid": (POINTER(CUuuid), _DEVICE),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, _DEVICE),
    "cuDeviceCanAccessPeer": (POINTER(c_int), _DEVICE, _DEVICE),
    "cuDevicePrimaryCtxSetFlags_v2": (_DEVICE, c_uint),
    "cuDevicePrimaryCtxRetain": (_HANDLE, _DEVICE),
    "cuDevicePrimaryCtxRelease_v2": (_DEVICE,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuCtxEnablePeerAccess": (c_void_p, c_uint),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(_ADDRESS), c_size_t),
    "cuMemFree_v2": (_ADDRESS,),
    "cuMemHostAlloc": (_HANDLE, c_size_t, c_uint),
    "cuMemFreeHost": (c_void_p,),
    "cuMemcpyHtoDAsync_v2": (_ADDRESS, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, _ADDRESS, c_size_t, c_void_p),
    "cuMemcpyDtoH_v2": (c_void_p, _ADDRESS, c_size_t),
    "cuMemsetD8_v2": (_ADDRESS, c_ubyte, c_size_t),
    "cuModuleLoadData": (_HANDLE, c_char_p),
    "cuModuleGetFunction": (_HANDLE, c_void_p, c_char_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuLaunchKernel": (c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p),
    "cuEventCreate": (_HANDLE, c_uint),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
}


class Driver:
    """The driver's functions, called by name.

    `gpu` is the GPU that error messages name. A call releases the interpreter lock until it returns.
    """

    def __init__(self, path: str, gpu: str) -> None:
        """Load the library. Raises HostError if the library or one of the functions is absent."""
        self.gpu = gpu
        try:
            library = load(LIBRARY, "" if path == LIBRARY else path)
        except OSError as error:
            raise library_absent(path, error) from error
        self._functions: dict[str, Any] = {}
        for name, arguments in _FUNCTIONS.items():
            function = getattr(library, name, None)
            if function is None:
                raise function_absent(path, name)
            function.argtypes, function.restype = arguments, c_int
            self._functions[name] = function

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the library. If it fails, raises the subclass of CudaError for its error code."""
        code = self._functions[name](*arguments)
        if code:
            raise call_failed(name, code, self.gpu)
