"""GPU performance monitoring (Hopper and later): metrics are averages between two samples, here those of two passes.

The two sample buffers are allocated once and swapped in each pass. A GPU without GPM support is queried once.

GPM is only telemetry: its failures do not affect a GPU's health, which other calls determine. After a failure GPM
pauses for a minute, because a call that fails slowly uses up the time of the other calls.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gpuwarden_collectors.facts import MigInstance
from gpuwarden_collectors.nvml.calls import Calls
from gpuwarden_collectors.nvml.library import Code, bounded
from gpuwarden_collectors.nvml.readings import GPM, GPM_OF_INSTANCES

_SHORTEST = 0.1  # seconds between two samples (nvml.h, nvmlGpmMetricsGet)
_REST = 60.0
_MOST_PER_CENT = 101.0  # a share may be a little above its whole
_MOST_MIB = 2.0**24  # per second over all links of a GPU: several times the possible maximum
_METRIC = struct.Struct("=IId24x")  # nvmlGpmMetric_t: id, return code, value, three strings that are constants


class Gpm:
    """GPM metrics of one GPU, or of one of its GPU instances (MIG).

    `close` frees the two sample buffers of the library.
    """

    def __init__(self, calls: Calls, metrics: Mapping[str, int] = GPM, *, instance: int | None = None) -> None:
        self._calls = calls
        self._metrics = metrics
        self._instance = instance
        self._supported = True
        self._answered = False
        self._earlier: Any = None
        self._later: Any = None
        self._taken: float | None = None
        self._rests_until = -math.inf
        self._request: Any = None

    def read(self, now: float) -> dict[str, float]:
        """Returns the metrics by attribute of GpuReadings; empty in the first pass. Raises nothing."""
        if not self._supported or self.rests(now) or (self._taken is not None and now - self._taken < _SHORTEST):
            return {}
        try:
            if self._request is None:
                self._open()
            return self._sample(now) if self._supported else {}
        except self._calls.nvml.NVMLError as error:
            self._supported = not self._calls.missed("GPM", error.value, answered=self._answered)
        except Exception as mishap:  # noqa: BLE001 - bindings that stumble here must not cost the readings of the GPU
            self._calls.note("GPM", Code.UNKNOWN.value, bounded(f"{type(mishap).__name__}: {mishap}"))
        self._taken, self._rests_until = None, now + _REST
        return {}

    def rests(self, now: float) -> bool:
        """True while GPM pauses after a failure."""
        return now < self._rests_until

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
        self._earlier = self._earlier or nvml.nvmlGpmSampleAlloc()  # the second may have failed in an earlier pass
        self._later = self._later or nvml.nvmlGpmSampleAlloc()
        self._request = nvml.c_nvmlGpmMetricsGet_t(
            version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(self._metrics)
        )
        for metric, number in zip(self._request.metrics, self._metrics.values(), strict=False):
            metric.metricId = number

    def _sample(self, now: float) -> dict[str, float]:
        nvml, request = self._calls.nvml, self._request
        self._earlier, self._later = self._later, self._earlier
        if self._instance is None:
            nvml.nvmlGpmSampleGet(self._calls.handle, self._later)
        else:
            nvml.nvmlGpmMigSampleGet(self._calls.handle, self._instance, self._later)
        first, self._taken = self._taken is None, now
        if first:
            return {}
        request.sample1, request.sample2 = self._earlier, self._later
        nvml.nvmlGpmMetricsGet(request)
        self._answered = True
        start = type(request).metrics.offset
        answers = [_METRIC.unpack_from(request, start + row * _METRIC.size) for row in range(len(self._metrics))]
        values = zip(self._metrics, answers, strict=True)
        return {name: value for name, (_, code, value) in values if code == 0 and _plausible(name, value)}


def _plausible(name: str, value: float) -> bool:
    """True for a plausible value: after a GPU reset between two samples the library may return any number, even NaN."""
    return 0.0 <= value <= (_MOST_MIB if name.endswith("_mib") else _MOST_PER_CENT)


class InstancesGpm:
    """GPM samplers per MIG instance. Buffers are freed when an instance disappears, even if its id is reused."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._of: dict[_Known, Gpm] = {}

    def read(self, instances: Sequence[MigInstance], now: float) -> tuple[MigInstance, ...]:
        """Returns the instances with their metrics. Raises nothing.

        After a failure, the remaining instances wait for the next pass.
        """
        here: dict[int, _Known] = {}
        for instance in instances:
            here.setdefault(instance.gpu_instance, (instance.gpu_instance, instance.uuid, instance.profile))
        for gone in self._of.keys() - set(here.values()):
            self._of.pop(gone).close()
        values: dict[int, dict[str, Any]] = {}
        for number, identity in here.items():
            gpm = self._of.get(identity)
            if gpm is None:
                gpm = self._of[identity] = Gpm(self._calls, GPM_OF_INSTANCES, instance=number)
            asked = not gpm.rests(now)
            values[number] = gpm.read(now)
            if asked and gpm.rests(now):
                break
        return tuple(replace(instance, **values.get(instance.gpu_instance, {})) for instance in instances)

    def close(self) -> None:
        for gpm in self._of.values():
            gpm.close()
        self._of.clear()


_Known = tuple[int, str, str]
"""Id of a GPU instance, and UUID and profile of its first compute instance, because ids are reused."""
