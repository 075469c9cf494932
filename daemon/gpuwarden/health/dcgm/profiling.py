"""The profiling fields of one GPU from one source: NVML's GPM where the GPU has it, else the engine of DCGM.

Never both for one GPU: they average over different times, and a series that changes its source in between would show
steps that are none. GPM comes first since it is as old as the rest of the page, and needs no engine; before Hopper there
is none, and then it is DCGM with its profiling module or nothing.
"""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter

from gpuwarden_collectors.dcgm.facts import DcgmReadings
from gpuwarden_collectors.gpu_readings import GpuReadings

PERCENT, MIB = 100.0, 1 / 2**20
BY_DCGM: dict[str, tuple[str, float]] = {
    # attribute of GpuReadings: that of DcgmReadings, and how many of the one are one of the other
    "gpm_graphics_active": ("graphics_active", PERCENT),
    "gpm_sm_active": ("sm_active", PERCENT),
    "gpm_sm_occupancy": ("sm_occupancy", PERCENT),
    "gpm_tensor_active": ("tensor_active", PERCENT),
    "gpm_dram_active": ("dram_active", PERCENT),
    "gpm_pcie_tx_mib": ("pcie_tx_bytes", MIB),
    "gpm_pcie_rx_mib": ("pcie_rx_bytes", MIB),
    "gpm_nvlink_tx_mib": ("nvlink_tx_bytes", MIB),
    "gpm_nvlink_rx_mib": ("nvlink_rx_bytes", MIB),
}
_gpm_of = attrgetter(*BY_DCGM)
_dcgm_of = attrgetter(*(name for name, _ in BY_DCGM.values()))
_FACTORS = tuple(factor for _, factor in BY_DCGM.values())


def profiled(readings: GpuReadings, dcgm: DcgmReadings) -> GpuReadings:
    """The readings, with DCGM's profiling fields where the GPU has no GPM of its own."""
    if any(value is not None for value in _gpm_of(readings)):
        return readings
    values = _dcgm_of(dcgm)
    if all(value is None for value in values):
        return readings
    fields = {
        name: None if value is None else value * factor
        for name, value, factor in zip(BY_DCGM, values, _FACTORS, strict=True)
    }
    return replace(readings, **fields)
