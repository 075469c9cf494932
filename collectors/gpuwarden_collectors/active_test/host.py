"""Reads the GPUs before and after a test. Runs in a worker process, because NVML may hang."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuwarden_collectors.active_test.host_facts import GpuSettings, HostFacts
from gpuwarden_collectors.facts import NvmlFacts
from gpuwarden_collectors.nvml.library import open_library
from gpuwarden_collectors.nvml.options import NvmlOptions
from gpuwarden_collectors.nvml.processes import list_processes
from gpuwarden_collectors.nvml.reader import NvmlReader

_PROCESSES_MOST = 64
_CC_ON = 1  # nvmlConfComputeSystemState_t.ccFeature


class HostReader:
    """A `worker.process.Reader`. Each pass reads every counter, so that two passes can be compared."""

    def __init__(self, options: NvmlOptions) -> None:
        self._options = options
        self._reader = NvmlReader(options)
        self._nvml: Any = None

    def connect(self) -> None:
        """Connect to NVML. Raises SourceAbsent in the same cases as NvmlReader."""
        self._reader.connect()
        self._nvml = open_library(self._options)

    def read(self) -> HostFacts:
        """Reads all GPUs once. Does not raise NVML errors: the facts contain them."""
        self._reader.close()  # drops cached readings whose interval is not over
        facts = self._reader.read()
        if facts.problem is not None:
            return HostFacts(nvml=facts)
        return HostFacts(nvml=facts, settings=self._settings(facts), confidential=self._confidential())

    def close(self) -> None:
        self._reader.close()

    def _settings(self, facts: NvmlFacts) -> dict[str, GpuSettings]:
        return {gpu.slot: self._of(gpu.index) for gpu in facts.gpus}

    def _of(self, index: int) -> GpuSettings:
        nvml = self._nvml
        handle = self._asked(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return GpuSettings()
        graphics = self._asked(list_processes, nvml, "nvmlDeviceGetGraphicsRunningProcesses_v3", handle) or ()
        return GpuSettings(
            compute_mode=self._asked(nvml.nvmlDeviceGetComputeMode, handle),
            graphics=tuple(process.pid for process in graphics[:_PROCESSES_MOST]),
        )

    def _confidential(self) -> bool | None:
        state = self._asked(self._nvml.nvmlSystemGetConfComputeState)
        return None if state is None else state.ccFeature == _CC_ON

    def _asked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls an NVML function; returns None where the driver refuses or has no such function."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None
