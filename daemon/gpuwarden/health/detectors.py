"""Which readings make which condition: one detector for each row of `conditions.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwarden.health.components import CONDITION_OF
from gpuwarden.health.dcgm import detectors as dcgm_looks
from gpuwarden.health.dcgm.merge import with_dcgm
from gpuwarden.health.gpu import detectors as gpu_signs
from gpuwarden.health.gpu import driver_detectors as driver_signs
from gpuwarden.health.gpu import job_detectors as job_looks
from gpuwarden.health.gpu import settings
from gpuwarden.health.host import detectors as host_looks
from gpuwarden.health.lemons import detectors as lemon_signs
from gpuwarden.health.look import Detector, Look, per_gpu
from gpuwarden.health.nvlink import detectors as fabric_signs
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden.health.xid import detectors as event_signs
from gpuwarden.health.xid import recovery as xid_recovery

_OWN: dict[str, Detector] = {
    "gpu_missing": driver_signs.gpu_missing,
    "driver_unresponsive": driver_signs.driver_unresponsive,
    "driver_not_loaded": driver_signs.driver_not_loaded,
    "driver_library_mismatch": driver_signs.nvml_problem("driver_library_mismatch"),
    "device_permission": driver_signs.nvml_problem("device_permission"),
    "nvml_unavailable": driver_signs.nvml_problem("nvml_unavailable"),
    "gpu_unresponsive": driver_signs.gpu_unresponsive,
    "gpu_reset_required": driver_signs.gpu_reset_required,
    "gpu_recovery_action": xid_recovery.gpu_recovery_action,
    "xid": event_signs.xid,
    "sxid": event_signs.sxid,
    "pcie_aer_fatal": event_signs.pcie_aer_fatal,
    "ecc_uncorrectable": per_gpu(gpu_signs.ecc_uncorrectable, "ecc_uncorrected_volatile"),
    "ecc_correctable_rate": per_gpu(gpu_signs.ecc_correctable_rate, "ecc_corrected_volatile"),
    "row_remap_failed": gpu_signs.flag("row_remap_failed", "remapped_rows_failure"),
    "row_remap_pending": gpu_signs.flag("row_remap_pending", "remapped_rows_pending"),
    "sram_threshold": per_gpu(gpu_signs.sram_threshold, "sram_threshold_exceeded"),
    "retired_pages": per_gpu(gpu_signs.retired_pages, "retired_pages_pending"),
    "inforom_invalid": per_gpu(gpu_signs.inforom_invalid, "inforom_valid"),
    "nvlink_down": fabric_signs.nvlink_down,
    "nvlink_errors": fabric_signs.nvlink_errors,
    "fabric_unhealthy": fabric_signs.fabric_unhealthy,
    "pcie_link_degraded": per_gpu(gpu_signs.pcie_link_degraded, "pcie_width"),
    "pcie_replay_rate": per_gpu(gpu_signs.pcie_replay_rate, "pcie_replays"),
    "thermal_limit": per_gpu(gpu_signs.thermal_limit, "temperature"),
    "thermal_slowdown": gpu_signs.slowed("thermal_slowdown", "slowdown_hw_thermal_ns", 0x40),
    "power_brake": gpu_signs.slowed("power_brake", "slowdown_hw_power_brake_ns", 0x80),
    "gpu_misconfigured": settings.gpu_misconfigured,
    **{code: driver_signs.component_failed(code) for code in CONDITION_OF.values()},
    "collector_failed": driver_signs.collector_failed,
    "lemon_node": lemon_signs.lemon_node,
    **host_looks.DETECTORS,
    **dcgm_looks.DETECTORS,
    **job_looks.DETECTORS,
}
DETECTORS: dict[str, Detector] = {code: with_dcgm(code, detector) for code, detector in _OWN.items()}

FAMILIES: Mapping[str, Callable[[State, Sight], Mapping[str, Look]]] = {
    "plugin": host_looks.family,
    "dcgm": dcgm_looks.family,
}
"""By collector, for conditions whose codes are known only when they are seen: by code, what was seen and what was looked at."""

COUNTERS = (
    "ecc_corrected_volatile",
    "pcie_replays",
    "slowdown_hw_thermal_ns",
    "slowdown_hw_power_brake_ns",
    *fabric_signs.NVLINK_ERRORS,
)
"""The counters whose growth detectors ask for; the judge keeps a window of each."""
