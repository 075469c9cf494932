"""Detects other processes on a GPU through NVML's process lists, before the test, at every chunk and after it.

A call takes 0.04 to 0.1 ms on H100; a process is listed some 150 ms after its fork, once its context exists
(measured). Utilisation would show only the test's own load. NVML lists an MPS server, not its clients.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pynvml

from gpuwarden_collectors.active_test.facts import Obstacle
from gpuwarden_collectors.active_test.obstructed import Obstructed
from gpuwarden_collectors.driver_libraries import load
from gpuwarden_collectors.nvml.library import LIBRARY
from gpuwarden_collectors.nvml.processes import list_processes
from gpuwarden_collectors.process_stat import process_stat

_COMPUTE = "nvmlDeviceGetComputeRunningProcesses_v3"
_OTHERS = ("nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3")
_REASONS = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
_NOT_SUPPORTED, _FUNCTION_NOT_FOUND = 3, 13  # nvmlReturn_t
_IDLE = 0x1  # nvmlClocksEventReasonGpuIdle
_HOST_PIDS = 0xEFFFFFFC  # PROC_PID_INIT_INO of linux/proc_ns.h: the inode of the first PID namespace
_LISTED_WITHIN = 5.0  # seconds until NVML must list this process
_NAMED = 3


def open_nvml(path: str) -> Any:
    """Returns nvidia-ml-py with this library, or with the driver's own if it is empty. Raises Obstructed."""
    try:
        pynvml.nvmlLib = load(LIBRARY, path)
        pynvml.nvmlInit()
    except (OSError, pynvml.NVMLError) as error:
        raise Obstructed(
            f"processes on GPUs cannot be listed: NVML does not start: {error}; install the driver",
            Obstacle.UNSUPPORTED,
        ) from error
    return pynvml


class Others:
    """The other processes on one GPU, and its temperature.

    Processes with the parent `parent` belong to the same test. `temperature` and `temperature_most` are the first and
    the highest in °C; `reasons` has the slowdown reason bits of all checks except 0x1 (idle).
    """

    def __init__(self, nvml: Any, uuid: str, parent: int, proc: str = "/proc") -> None:
        """Raises Obstructed if NVML does not show other processes on this GPU to this process."""
        self._nvml, self._uuid, self._parent, self._proc = nvml, uuid, parent, proc
        if not _in_hosts_namespace(proc):
            raise self._unseen(
                "this process has a PID namespace of its own, in which NVML omits all processes outside it"
            )
        self._handle = self._asked(nvml.nvmlDeviceGetHandleByUUID, uuid)
        self.temperature: int | None = None
        self.temperature_most: int | None = None
        self.reasons = 0

    def check(self, obstacle: Obstacle = Obstacle.DISTURBED) -> None:
        """Raises Obstructed if another process is on the GPU."""
        self._observe()
        strangers = sorted(pid for pid in self._processes() if not self._own(pid))
        if strangers:
            names = ", ".join(self._name(pid) for pid in strangers[:_NAMED])
            more = f" and {len(strangers) - _NAMED} more" if len(strangers) > _NAMED else ""
            raise Obstructed(
                f"{self._uuid} is not tested: in use by process {names}{more}; test it when nobody uses it", obstacle
            )

    def check_view(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Wait until NVML lists this process, which has a context. Raises Obstructed if it does not.

        In that case NVML would not list other processes either.
        """
        until = clock() + _LISTED_WITHIN
        while os.getpid() not in self._processes():
            if clock() > until:
                raise self._unseen("NVML does not list this test on it, so that other processes would not be seen")
            time.sleep(0.02)

    def _unseen(self, why: str) -> Obstructed:
        return Obstructed(f"{self._uuid} is not tested: {why}; test in the host's PID namespace", Obstacle.UNSUPPORTED)

    def _processes(self) -> set[int]:
        pids = {process.pid for process in self._asked(list_processes, self._nvml, _COMPUTE, self._handle)}
        for name in _OTHERS:
            processes = self._asked(list_processes, self._nvml, name, self._handle, optional=True)
            pids.update(process.pid for process in processes)
        return pids

    def _asked(self, function: Callable[..., Any], *arguments: Any, optional: bool = False) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            if optional and error.value in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND):
                return ()
            raise Obstructed(
                f"{self._uuid} is not tested: NVML does not report which processes use it: {error} ({error.value}); see its findings"
            ) from error

    def _own(self, pid: int) -> bool:
        if pid == os.getpid():
            return True
        stat = process_stat(self._proc, pid)
        return stat is not None and stat.parent == self._parent

    def _name(self, pid: int) -> str:
        stat = process_stat(self._proc, pid)
        return str(pid) if stat is None else f"{pid} ({stat.name.decode(errors='replace')})"

    def _observe(self) -> None:
        with suppress(self._nvml.NVMLError):  # informative only
            now = self._nvml.nvmlDeviceGetTemperature(self._handle, 0)
            self.temperature = now if self.temperature is None else self.temperature
            self.temperature_most = max(now, self.temperature_most or now)
        name = next((name for name in _REASONS if hasattr(self._nvml, name)), "")
        with suppress(self._nvml.NVMLError):
            self.reasons |= getattr(self._nvml, name)(self._handle) & ~_IDLE if name else 0


def _in_hosts_namespace(proc: str) -> bool:
    """True if this process is in the host's PID namespace, or the kernel has no PID namespaces.

    The driver translates PIDs into the caller's PID namespace and omits processes without a PID there
    (`_gpuConvertPid` in open-gpu-kernel-modules).
    """
    try:
        return (Path(proc) / "self" / "ns" / "pid").stat().st_ino == _HOST_PIDS
    except FileNotFoundError:
        return True
