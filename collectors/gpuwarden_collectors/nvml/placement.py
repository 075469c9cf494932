"""Reads the location of a GPU (module, chassis, slot, NVLink domain) once, and again when its fabric changes."""

from __future__ import annotations

import uuid
from ctypes import byref
from typing import Any

from gpuwarden_collectors.facts import Placement
from gpuwarden_collectors.nvml.calls import Calls
from gpuwarden_collectors.nvml.library import bounded


class PlacementReader:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._fabric: object = None
        self._known = Placement()
        self._built_in = False

    def read(self, fabric: tuple[int | None, int | None]) -> Placement:
        """Returns the location of the GPU. Raises Unanswered.

        `fabric`: whether the GPU is in a cluster, and its clique.
        """
        if not self._built_in:
            self._known = self._read_built_in()
            self._built_in = True
        if fabric != self._fabric:
            cluster = self._cluster() if fabric[0] else ""
            self._known, self._fabric = _with(self._known, cluster_uuid=cluster), fabric
        return self._known

    def _read_built_in(self) -> Placement:
        nvml = self._calls.nvml
        module = self._calls.ask("nvmlDeviceGetModuleId") if hasattr(nvml, "nvmlDeviceGetModuleId") else None
        structure = getattr(nvml, "c_nvmlPlatformInfo_v2_t", None)
        info = None if structure is None else self._fill("nvmlDeviceGetPlatformInfo", structure())
        if info is None:
            return Placement(module_id=module)
        raw, where = bytes(info), type(info)  # the bindings convert one-byte numbers to text
        serial = raw[where.chassisSerialNumber.offset :][: where.chassisSerialNumber.size].split(b"\0")[0]
        return Placement(
            module_id=module,
            chassis_serial=bounded(serial.decode("ascii", "replace").strip()),
            chassis_slot=raw[where.slotNumber.offset],
            chassis_tray=raw[where.trayIndex.offset],
        )

    def _cluster(self) -> str:
        structure = getattr(self._calls.nvml, "c_nvmlGpuFabricInfo_v2_t", None)
        info = None if structure is None else self._fill("nvmlDeviceGetGpuFabricInfoV", structure())
        return "" if info is None else str(uuid.UUID(bytes=bytes(info.clusterUuid)))

    def _fill(self, function: str, structure: Any) -> Any:
        """Returns the structure filled by the call, or None if it is unsupported or failed. Records no error."""
        nvml = self._calls.nvml
        try:
            getattr(nvml, function)(self._calls.handle, byref(structure))
        except (nvml.NVMLError, AttributeError):
            return None
        return structure


def _with(placement: Placement, *, cluster_uuid: str) -> Placement:
    return Placement(
        module_id=placement.module_id,
        chassis_serial=placement.chassis_serial,
        chassis_slot=placement.chassis_slot,
        chassis_tray=placement.chassis_tray,
        cluster_uuid=cluster_uuid,
    )
