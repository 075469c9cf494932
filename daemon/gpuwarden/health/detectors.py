"""The detectors: one for each row of `conditions.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuwarden.features import parts
from gpuwarden.health.components import CONDITION_OF
from gpuwarden.health.dcgm import detectors as dcgm_detectors
from gpuwarden.health.dcgm.merge import with_dcgm
from gpuwarden.health.detection import Detection, Detector, Follower, per_gpu
from gpuwarden.health.gpu import (
    completeness,
    driver_detectors,
    job_detectors,
    memory_detectors,
    settings,
    speed_detectors,
)
from gpuwarden.health.gpu import detectors as gpu_detectors
from gpuwarden.health.gpu.idle_heat import gpu_idle_hot
from gpuwarden.health.gpu.reading_time import driver_slow
from gpuwarden.health.gpu.readings_lost import gpu_readings_lost
from gpuwarden.health.host import detectors as host_detectors
from gpuwarden.health.kernel_lines import detectors as line_detectors
from gpuwarden.health.lemons import detectors as lemon_detectors
from gpuwarden.health.nvlink import detectors as nvlink_detectors
from gpuwarden.health.nvlink.link_errors import nvlink_link_errors
from gpuwarden.health.nvlink.never_up import nvlink_never_up
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden.health.xid import detectors as xid_detectors
from gpuwarden.health.xid import recovery as xid_recovery

_FEATURES = parts("detectors")
FOLLOWERS: Mapping[str, Follower] = {name: feature.follow for name, feature in _FEATURES.items()}
"""By feature: the function that learns from the readings of each step, before the detectors run."""

_OWN: dict[str, Detector] = {
    "gpu_missing": driver_detectors.gpu_missing,
    "inventory_incomplete": completeness.inventory_incomplete,
    "driver_unresponsive": driver_detectors.driver_unresponsive,
    "driver_slow": driver_slow,
    "driver_not_loaded": driver_detectors.driver_not_loaded,
    "driver_library_mismatch": driver_detectors.nvml_problem("driver_library_mismatch"),
    "device_permission": driver_detectors.nvml_problem("device_permission"),
    "nvml_unavailable": driver_detectors.nvml_problem("nvml_unavailable"),
    "gpu_unresponsive": driver_detectors.gpu_unresponsive,
    "gpu_reset_required": driver_detectors.gpu_reset_required,
    "gpu_readings_lost": gpu_readings_lost,
    "gpu_recovery_action": xid_recovery.gpu_recovery_action,
    "xid": xid_detectors.xid,
    "sxid": xid_detectors.sxid,
    "pcie_aer_fatal": xid_detectors.pcie_aer_fatal,
    "gsp_not_answering": line_detectors.gsp_not_answering,
    "soft_lockup": line_detectors.soft_lockup,
    "nvme_failed": line_detectors.nvme_failed,
    "adapter_failed": line_detectors.adapter_failed,
    "ecc_uncorrectable": per_gpu(gpu_detectors.ecc_uncorrectable, "ecc_uncorrected_volatile"),
    "ecc_correctable_rate": per_gpu(gpu_detectors.ecc_correctable_rate, "ecc_corrected_volatile"),
    "row_remap_failed": gpu_detectors.flag("row_remap_failed", "remapped_rows_failure"),
    "row_remap_pending": gpu_detectors.flag("row_remap_pending", "remapped_rows_pending"),
    "sram_threshold": per_gpu(gpu_detectors.sram_threshold, "sram_threshold_exceeded"),
    "retired_pages": per_gpu(gpu_detectors.retired_pages, "retired_pages_pending"),
    "inforom_invalid": per_gpu(gpu_detectors.inforom_invalid, "inforom_valid"),
    "vgpu_unlicensed": gpu_detectors.vgpu_unlicensed,
    "gpu_idle_hot": gpu_idle_hot,
    "nvlink_down": nvlink_detectors.nvlink_down,
    "nvlink_never_up": nvlink_never_up,
    "nvlink_errors": nvlink_detectors.nvlink_errors,
    "nvlink_link_errors": nvlink_link_errors,
    "fabric_unhealthy": nvlink_detectors.fabric_unhealthy,
    "pcie_link_degraded": per_gpu(gpu_detectors.pcie_link_degraded, "pcie_width"),
    "pcie_replay_rate": per_gpu(gpu_detectors.pcie_replay_rate, "pcie_replays"),
    "thermal_limit": per_gpu(gpu_detectors.thermal_limit, "temperature"),
    "thermal_slowdown": per_gpu(gpu_detectors.thermal_slowdown, "clock_event_reasons"),
    "gpu_misconfigured": settings.gpu_misconfigured,
    **{code: driver_detectors.component_failed(code) for code in CONDITION_OF.values()},
    "collector_failed": driver_detectors.collector_failed,
    "lemon_node": lemon_detectors.lemon_node,
    **memory_detectors.DETECTORS,
    **speed_detectors.DETECTORS,
    **host_detectors.DETECTORS,
    **dcgm_detectors.DETECTORS,
    **job_detectors.DETECTORS,
    **{code: detector for feature in _FEATURES.values() for code, detector in feature.DETECTORS.items()},
}
DETECTORS: dict[str, Detector] = {code: with_dcgm(code, detector) for code, detector in _OWN.items()}

FAMILIES: Mapping[str, Callable[[State, Sight], Mapping[str, Detection]]] = {
    "plugin": host_detectors.family,
    "dcgm": dcgm_detectors.family,
}
"""By collector: detectors of conditions whose codes are known only at run time. Each returns detections by code."""

COUNTERS = (
    "ecc_corrected_volatile",
    "pcie_replays",
    "slowdown_hw_thermal_ns",
    "slowdown_hw_power_brake_ns",
    "slowdown_sw_thermal_ns",
    *nvlink_detectors.NVLINK_ERRORS,
)
"""Counters whose growth detectors use. The judge keeps a window of each."""
