"""The GPUs that a node may have, and the driver that goes with them."""

from __future__ import annotations

from dataclasses import dataclass, field

SINCE_DRIVER_LOAD = (
    "ecc_corrected_volatile", "ecc_uncorrected_volatile", "ecc_uncorrected_volatile_sram", "pcie_replays", "slowdown_hw_thermal_ns",
    "slowdown_hw_power_brake_ns", "slowdown_sw_thermal_ns", "nvlink_replay_errors", "nvlink_recovery_errors", "nvlink5_recoveries",
    "nvlink5_recovery_failures", "remapped_rows_pending", "recovery_action",
)  # fmt: skip
"""Readings that begin again when the driver is loaded or the GPU is reset; those that this GPU does not have stay None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """`differing`: readings that are not those of an H100 with a new driver."""

    name: str
    links: int = 18
    driver: str = "570.86.15"
    differing: dict[str, int | None] = field(default_factory=dict)


_A100: dict[str, int | None] = {
    "fabric_state": None, "fabric_status": None, "fabric_health_mask": None, "recovery_action": None,
    "temperature_margin": None, "pcie_generation": 4, "pcie_generation_max": 4,
}  # fmt: skip
_B200: dict[str, int | None] = {
    "nvlink_replay_errors": None, "nvlink_recovery_errors": None, "nvlink5_recoveries": 0, "nvlink5_recovery_failures": 0,
}  # fmt: skip
MODELS: dict[str, Model] = {
    "H100": Model(name="NVIDIA H100 80GB HBM3"),
    "H100, driver 535": Model(name="NVIDIA H100 80GB HBM3", driver="535.183.01", differing={"recovery_action": None}),
    "A100": Model(name="NVIDIA A100-SXM4-80GB", links=12, differing=_A100),
    "B200": Model(name="NVIDIA B200", driver="580.65.06", differing=_B200),
}
