"""A simulated H100. Its state is a function of (number, time), so that all processes see the same machine.

All GPUs run the same sequence of jobs: 25 minutes of work, 5 of pause. Temperature follows the load with a lag,
counters are exact integrals since time 0, and every few hours one memory error is corrected.
"""

from __future__ import annotations

import math
import uuid
import zlib
from dataclasses import field

from gpuwarden_collectors.dataclass import dataclass

NAME = "NVIDIA H100 80GB HBM3"
LINKS = 18
_PERIOD, _BUSY = 1800.0, 1500.0  # seconds of one job and its pause; of the job alone
_LAG = 45.0  # seconds, time constant of the temperature
_FIRST_PID = 5_000_000  # above the largest pid that Linux gives, 4194304: never a real process

_MIB, _GIB = 1 << 20, 1 << 30

Values = dict[str, int]

_CONSTANT: dict[str, int] = {
    "temperature_slowdown": 89, "temperature_shutdown": 95, "temperature_gpu_max": 87, "temperature_memory_max": 95,
    "power_limit_mw": 700_000, "power_enforced_limit_mw": 700_000,
    "clock_memory_mhz": 2619, "clock_sm_max_mhz": 1980, "performance_state": 0,
    "clock_sm_application_mhz": 1980, "clock_memory_application_mhz": 2619,
    "utilization_encoder": 0, "utilization_decoder": 0,
    "memory_total_bytes": 81_559 * _MIB, "memory_reserved_bytes": 588 * _MIB,
    "bar1_total_bytes": 128 * _GIB, "bar1_used_bytes": 4 * _MIB, "bar1_free_bytes": 128 * _GIB - 4 * _MIB,
    "ecc_mode": 1, "ecc_mode_pending": 1,
    "pcie_generation": 5, "pcie_generation_max": 5, "pcie_width": 16, "pcie_width_max": 16,
    "remap_banks_max": 640, "remap_banks_high": 0, "remap_banks_partial": 0, "remap_banks_low": 0, "remap_banks_none": 0,
    "fabric_state": 3, "fabric_status": 0, "fabric_clique": 0, "fabric_health_mask": 0x1AA, "fabric_health_summary": 1,
    "recovery_action": 0, "persistence_mode": 1, "mig_mode": 0, "compute_mode": 0, "gsp_mode": 1,
    "inforom_valid": 1, "inforom_checksum": 0x3C5A91E7,
}  # fmt: skip

_ZERO = (
    "violation_power_ns", "violation_thermal_ns", "violation_sync_boost_ns", "violation_board_limit_ns",
    "violation_low_utilization_ns", "violation_reliability_ns",
    "slowdown_sw_thermal_ns", "slowdown_hw_thermal_ns", "slowdown_hw_power_brake_ns",
    *(f"ecc_{error}_{lifetime}{location}" for error in ("corrected", "uncorrected")
      for lifetime in ("volatile", "aggregate") for location in ("", "_dram", "_sram")),
    "sram_threshold_exceeded",
    "retired_pages_single_bit", "retired_pages_double_bit", "retired_pages_pending",
    "remapped_rows_correctable", "remapped_rows_uncorrectable", "remapped_rows_pending", "remapped_rows_failure",
    "repair_channel_pending", "repair_tpc_pending", "memory_unrepairable",
    "pcie_replays", "pcie_correctable_errors", "pcie_receiver_errors", "pcie_nonfatal_errors", "pcie_fatal_errors",
    "pcie_unsupported_requests", "pcie_lcrc_errors", "pcie_lane_errors",
    "nvlink_crc_flit_errors", "nvlink_crc_data_errors", "nvlink_replay_errors", "nvlink_recovery_errors",
)  # fmt: skip

_LINK_ZERO = ("crc_flit_errors", "crc_data_errors", "replay_errors", "recovery_errors", "dl_crc_errors")


@dataclass(slots=True)
class SimulatedGpu:
    """One GPU at one instant, before or after faults are applied.

    `values`: by attribute of GpuReadings; missing ones are unsupported. `error`: if not 0, the nvmlReturn of every call
    (for `identified`, except those that read its identity). `stall`: what a call does instead of returning. `delay`:
    additional seconds for reading this GPU.
    """

    number: int
    values: Values
    links: list[dict[str, int]] = field(default_factory=list)
    pids: tuple[int, ...] = ()
    listed: bool = True
    error: int = 0
    identified: bool = False
    stall: str = ""
    delay: float = 0.0


def simulated_slot(number: int) -> str:
    """PCI slot of simulated GPU `number`, 16 to a PCI domain."""
    return f"{number // 16:04x}:{0x10 + 0x0E * (number % 16):02x}:00.0"


def simulated_uuid(number: int) -> str:
    return f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'gpuwarden simulated GPU {number}')}"


def simulated_gpu(number: int, now: float) -> SimulatedGpu:
    """GPU `number` as it is `now`: seconds since boot, which is when its driver was loaded."""
    load, warmth, busy = _load(now), _warmth(now), _busy_time(now)
    temperature = round(32 + number % 5 + 34 * warmth + _noise(number, now, "temperature"))
    power = round(1000 * (74 + load * (548 + 30 * _noise(number, now, "power"))))
    clock = round(345 + load * (1460 + 60 * _noise(number, now, "clock")))
    used = (74_200 + 16 * number) * _MIB if load else 4 * _MIB
    corrected = int(now / (3600 * (3 + 7 * _fraction(number, 0, "ecc"))))
    values: Values = dict.fromkeys(_ZERO, 0) | _CONSTANT
    values |= {
        "temperature": temperature,
        "temperature_memory": temperature + 6,
        "temperature_margin": 87 - temperature,
        "power_usage_mw": power,
        "power_instant_mw": power + round(8000 * load * _noise(number, now, "instant")),
        "energy_mj": round(74_000 * now + 548_000 * busy),
        "clock_sm_mhz": clock,
        "clock_event_reasons": 0 if load else 1,
        "violation_power_ns": round(2e6 * busy),
        "utilization_gpu": round(load * (96 + 3 * _noise(number, now, "gpu"))),
        "utilization_memory": round(load * (44 + 6 * _noise(number, now, "memory"))),
        "memory_used_bytes": used,
        "memory_free_bytes": (81_559 - 588) * _MIB - used,
        "pcie_tx_bytes": round(1.9e9 * busy),
        "pcie_rx_bytes": round(2.6e9 * busy),
        "nvlink_tx_kib": round(112e6 * busy),
        "nvlink_rx_kib": round(112e6 * busy),
    }
    for name in ("volatile", "volatile_dram", "aggregate", "aggregate_dram"):
        values[f"ecc_corrected_{name}"] = corrected
    values |= {name: round(load * level) for name, level in _GPM_BUSY.items()}
    return SimulatedGpu(
        number=number,
        values=values,
        links=[{"active": 1, **dict.fromkeys(_LINK_ZERO, 0)} for _ in range(LINKS)],
        pids=(_FIRST_PID + number,) if load else (),
    )


_GPM_BUSY = {
    "gpm_graphics_active": 97, "gpm_sm_active": 91, "gpm_sm_occupancy": 36, "gpm_tensor_active": 52, "gpm_dram_active": 43,
    "gpm_pcie_tx_mib": 1812, "gpm_pcie_rx_mib": 2480, "gpm_nvlink_tx_mib": 109_000, "gpm_nvlink_rx_mib": 109_000,
}  # fmt: skip


def _load(now: float) -> int:
    return 1 if now % _PERIOD < _BUSY else 0


def _busy_time(now: float) -> float:
    """Seconds of work from time 0 on."""
    periods, rest = divmod(now, _PERIOD)
    return periods * _BUSY + min(rest, _BUSY)


def _warmth(now: float) -> float:
    """Warmth from 0 to 1: a first-order lag behind the load, in its steady cycle."""
    coolest = (math.exp(-(_PERIOD - _BUSY) / _LAG) - math.exp(-_PERIOD / _LAG)) / (1 - math.exp(-_PERIOD / _LAG))
    since = now % _PERIOD
    if since < _BUSY:
        return 1 - (1 - coolest) * math.exp(-since / _LAG)
    return (1 - (1 - coolest) * math.exp(-_BUSY / _LAG)) * math.exp(-(since - _BUSY) / _LAG)


def _fraction(number: int, now: float, quantity: str) -> float:
    """A pseudo-random number from 0 to 1, which changes every second and is the same for the same arguments."""
    return zlib.crc32(f"{number} {int(now)} {quantity}".encode()) / 0xFFFFFFFF


def _noise(number: int, now: float, quantity: str) -> float:
    return 2 * _fraction(number, now, quantity) - 1
