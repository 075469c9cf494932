"""Selects one source for the profiling fields of a GPU: NVML's GPM if the GPU has it, else the DCGM engine.

The sources are never mixed for one GPU: they average over different times, and a change of source would show false
steps in a series. GPM takes precedence because it is as fresh as the other metrics and needs no engine. GPUs before
Hopper have no GPM and depend on DCGM's profiling module.
"""

from __future__ import annotations

from operator import attrgetter

from gpuwarden_collectors.dataclass import replace
from gpuwarden_collectors.dcgm.facts import DcgmReadings
from gpuwarden_collectors.gpu_readings import GpuReadings

PERCENT, MIB = 100.0, 1 / 2**20
BY_DCGM: dict[str, tuple[str, float]] = {
    # attribute of GpuReadings: attribute of DcgmReadings, and the factor from its unit
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
    """Return the readings with DCGM's profiling fields if the GPU has no GPM readings."""
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
