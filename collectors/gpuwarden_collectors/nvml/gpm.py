"""GPU performance monitoring (Hopper and later): metrics are averages between two samples, here those of two passes."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

from gpuwarden_collectors.nvml.calls import Calls
from gpuwarden_collectors.nvml.readings import GPM

_SHORTEST = 0.1  # seconds between two samples (nvml.h, nvmlGpmMetricsGet)
_METRIC = struct.Struct("=IId24x")  # nvmlGpmMetric_t: id, return code, value, three strings that are constants


class Gpm:
    """Holds two sample buffers of the library, which `close` gives back."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._supported = True
        self._earlier: Any = None
        self._later: Any = None
        self._taken: float | None = None
        self._request: Any = None

    def read(self, now: float) -> dict[str, Any]:
        """The metrics by attribute of GpuReadings; none in the first pass. Raises Unanswered."""
        if not self._supported or (self._taken is not None and now - self._taken < _SHORTEST):
            return {}
        try:
            if self._request is None:
                self._open()
            return self._sample(now) if self._supported else {}
        except self._calls.nvml.NVMLError as error:
            self._taken = None
            self._supported = not self._calls.failed("GPM", error.value)
            return {}

    def close(self) -> None:
        for sample in (self._earlier, self._later):
            if sample is not None:
                with suppress(self._calls.nvml.NVMLError):
                    self._calls.nvml.nvmlGpmSampleFree(sample)
        self._earlier = self._later = None

    def _open(self) -> None:
        nvml = self._calls.nvml
        self._supported = bool(nvml.nvmlGpmQueryDeviceSupport(self._calls.handle).isSupportedDevice)
        if not self._supported:
            return
        self._earlier, self._later = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._request = nvml.c_nvmlGpmMetricsGet_t(version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(GPM))
        for metric, number in zip(self._request.metrics, GPM.values(), strict=False):
            metric.metricId = number

    def _sample(self, now: float) -> dict[str, float]:
        nvml, request = self._calls.nvml, self._request
        self._earlier, self._later = self._later, self._earlier
        nvml.nvmlGpmSampleGet(self._calls.handle, self._later)
        first, self._taken = self._taken is None, now
        if first:
            return {}
        request.sample1, request.sample2 = self._earlier, self._later
        nvml.nvmlGpmMetricsGet(request)
        start = type(request).metrics.offset
        answers = [_METRIC.unpack_from(request, start + position * _METRIC.size) for position in range(len(GPM))]
        return {name: value for name, (_, code, value) in zip(GPM, answers, strict=True) if code == 0}
