"""GPU telemetry under dcgm-exporter's names, read through NVML: one row for each name.

Names are those of DCGM before 4.6, which dashboards and dcgm-exporter use, without their common prefix. Types follow
dcgm-exporter's list of counters for fields in it; units and truncations follow DCGM, so that existing dashboards show
the same. A row that returns None has no series: a value that is unsupported, unreadable or not finite is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from gpuwarden.publish.metrics.lines import COUNTER, GAUGE, Number
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.gpu_readings import GpuReadings


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Input of the rows: readings of one GPU or MIG instance.

    `readings` has the attributes of GpuReadings. `last_xid`: of this boot. `nvlink_mb_per_second`: between the last two
    passes. `memory_unrepairable`: from DCGM.
    """

    readings: Any
    last_xid: int | None = None
    nvlink_mb_per_second: int | None = None
    memory_unrepairable: int | None = None


Read = Callable[[Telemetry], Number | None]


@dataclass(frozen=True, slots=True)
class Field:
    """One row. `form`: dcgm-exporter's number format, `%d` for DCGM's integers, `%f` (6 decimals) for its doubles."""

    name: str
    kind: str
    form: str
    read: Read
    help: str


@dataclass(frozen=True, slots=True)
class Traffic:
    """NVLink traffic counter of one GPU: `kib` since driver load, `at` in seconds."""

    kib: int
    at: float


def nvlink_mb_per_second(before: Traffic | None, now: Traffic) -> int | None:
    """Return DCGM's sum of both directions in 1,000 KiB per second. None for a first sample or a decreased counter."""
    if before is None or now.at <= before.at or now.kib < before.kib:
        return None
    return int((now.kib - before.kib) / (now.at - before.at) / 1000)


def nvlink_traffic(readings: GpuReadings, at: float) -> Traffic | None:
    if readings.nvlink_tx_kib is None or readings.nvlink_rx_kib is None:
        return None
    return Traffic(readings.nvlink_tx_kib + readings.nvlink_rx_kib, at)


def _as_is(name: str) -> Read:
    return attrgetter(f"readings.{name}")


def _reading(name: str, convert: Callable[[Number], Number | None]) -> Read:
    get = _as_is(name)

    def read(gpu: Telemetry) -> Number | None:
        value = get(gpu)
        return None if value is None or not math.isfinite(value) else convert(value)

    return read


def _celsius(name: str) -> Read:
    """Return a reader that drops values above 200 °C, as DCGM does: drivers return these if there is no sensor."""
    return _reading(name, lambda value: value if value <= 200 else None)


def _watts(name: str) -> Read:
    return _reading(name, lambda mw: mw / 1000.0)


def _whole_watts(name: str) -> Read:
    return _reading(name, lambda mw: mw // 1000)


def _mib(name: str) -> Read:
    return _reading(name, lambda size: size // 2**20)


def _ratio(name: str) -> Read:
    return _reading(name, lambda percent: percent / 100.0)


def _mib_per_second(name: str) -> Read:
    return _reading(name, lambda mib: int(mib * 2**20))


def _bit_error_rate(name: str) -> Read:
    """Return a reader for a mantissa in bits 8-11 and a negative decimal exponent in bits 0-7 (NVML_NVLINK_BER_*)."""
    return _reading(name, lambda packed: (int(packed) >> 8 & 0xF) * 10.0 ** -(int(packed) & 0xFF))


def _memory_used(gpu: Telemetry) -> Number | None:
    r = gpu.readings
    if r.memory_used_bytes is None or r.memory_total_bytes is None:
        return None
    usable = r.memory_total_bytes - (r.memory_reserved_bytes or 0)
    return r.memory_used_bytes / usable if usable > 0 else None


def _fabric_manager_status(gpu: Telemetry) -> Number | None:
    """Return DCGM's value: 0 not supported, 1 not started, 2 in progress, 3 registered, 4 registration failed."""
    state = gpu.readings.fabric_state
    return 4 if state == 3 and gpu.readings.fabric_status else state


def _fabric_error(gpu: Telemetry) -> Number | None:
    return gpu.readings.fabric_status if gpu.readings.fabric_state == 3 else None


INT, FLOAT, TINY = "%d", "%f", "%g"  # six decimals would show every bit error rate as zero

XID = Field("DEV_XID_ERRORS", GAUGE, INT, attrgetter("last_xid"), "Number of the last Xid of this boot.")
"""The only row with additional labels, as in dcgm-exporter: `err_code` and `err_msg`."""

_BEFORE_ECC: tuple[Field, ...] = (
    Field("DEV_SM_CLOCK", GAUGE, INT, _as_is("clock_sm_mhz"), "SM clock (MHz)."),
    Field("DEV_MEM_CLOCK", GAUGE, INT, _as_is("clock_memory_mhz"), "Memory clock (MHz)."),
    Field("DEV_CLOCK_THROTTLE_REASONS", GAUGE, INT, _as_is("clock_event_reasons"), "Why clocks are lowered (bit mask)."),
    Field("DEV_PSTATE", GAUGE, INT, _as_is("performance_state"), "Performance state, 0 (fastest) to 15; 32 is unknown."),
    # --- temperature
    Field("DEV_GPU_TEMP", GAUGE, INT, _celsius("temperature"), "GPU temperature (C)."),
    Field("DEV_MEMORY_TEMP", GAUGE, INT, _celsius("temperature_memory"), "Memory temperature (C)."),
    Field("DEV_GPU_TEMP_LIMIT", GAUGE, INT, _as_is("temperature_margin"), "Distance to the slowdown temperature (C)."),
    Field("DEV_GPU_MAX_OP_TEMP", GAUGE, INT, _as_is("temperature_gpu_max"), "Highest operating temperature of the GPU (C)."),
    Field("DEV_MEM_MAX_OP_TEMP", GAUGE, INT, _as_is("temperature_memory_max"), "Highest operating temperature of the memory (C)."),
    Field("DEV_SLOWDOWN_TEMP", GAUGE, INT, _as_is("temperature_slowdown"), "Temperature of hardware slowdown (C)."),
    Field("DEV_SHUTDOWN_TEMP", GAUGE, INT, _as_is("temperature_shutdown"), "Temperature of shutdown (C)."),
    # --- power
    Field("DEV_POWER_USAGE", GAUGE, FLOAT, _watts("power_usage_mw"), "Power draw, averaged over a second (W)."),
    Field("DEV_POWER_USAGE_INSTANT", GAUGE, FLOAT, _watts("power_instant_mw"), "Power draw at this instant (W)."),
    Field("DEV_POWER_MGMT_LIMIT", GAUGE, FLOAT, _whole_watts("power_limit_mw"), "Power limit that is set (W)."),
    Field("DEV_ENFORCED_POWER_LIMIT", GAUGE, FLOAT, _whole_watts("power_enforced_limit_mw"), "Power limit in force (W)."),
    Field("DEV_TOTAL_ENERGY_CONSUMPTION", COUNTER, INT, _as_is("energy_mj"), "Energy since driver load (mJ)."),
    # --- time spent below full clocks
    Field("DEV_POWER_VIOLATION", COUNTER, INT, _as_is("violation_power_ns"), "Time slowed by the power limit (ns)."),
    Field("DEV_THERMAL_VIOLATION", COUNTER, INT, _as_is("violation_thermal_ns"), "Time slowed by temperature (ns)."),
    Field("DEV_SYNC_BOOST_VIOLATION", COUNTER, INT, _as_is("violation_sync_boost_ns"), "Time slowed by sync boost (ns)."),
    Field("DEV_BOARD_LIMIT_VIOLATION", COUNTER, INT, _as_is("violation_board_limit_ns"), "Time slowed by the board limit (ns)."),
    Field("DEV_LOW_UTIL_VIOLATION", COUNTER, INT, _as_is("violation_low_utilization_ns"), "Time slowed by low utilization (ns)."),
    Field("DEV_RELIABILITY_VIOLATION", COUNTER, INT, _as_is("violation_reliability_ns"), "Time slowed by the reliability limit (ns)."),
    Field("DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS", COUNTER, INT, _as_is("violation_power_ns"), "Time under the software power cap (ns)."),
    Field("DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS", COUNTER, INT, _as_is("slowdown_sw_thermal_ns"), "Time in software thermal slowdown (ns)."),
    Field("DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS", COUNTER, INT, _as_is("slowdown_hw_thermal_ns"), "Time in hardware thermal slowdown (ns)."),
    Field("DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS", COUNTER, INT, _as_is("slowdown_hw_power_brake_ns"), "Time in hardware power brake slowdown (ns)."),
    # --- utilization and memory
    Field("DEV_GPU_UTIL", GAUGE, INT, _as_is("utilization_gpu"), "GPU utilization (%)."),
    Field("DEV_MEM_COPY_UTIL", GAUGE, INT, _as_is("utilization_memory"), "Memory utilization (%)."),
    Field("DEV_ENC_UTIL", GAUGE, INT, _as_is("utilization_encoder"), "Encoder utilization (%)."),
    Field("DEV_DEC_UTIL", GAUGE, INT, _as_is("utilization_decoder"), "Decoder utilization (%)."),
    Field("DEV_FB_TOTAL", GAUGE, INT, _mib("memory_total_bytes"), "Framebuffer memory (MiB)."),
    Field("DEV_FB_FREE", GAUGE, INT, _mib("memory_free_bytes"), "Framebuffer memory free (MiB)."),
    Field("DEV_FB_USED", GAUGE, INT, _mib("memory_used_bytes"), "Framebuffer memory used (MiB)."),
    Field("DEV_FB_RESERVED", GAUGE, INT, _mib("memory_reserved_bytes"), "Framebuffer memory reserved by driver and firmware (MiB)."),
    Field("DEV_FB_USED_PERCENT", GAUGE, FLOAT, _memory_used, "Framebuffer memory used of what is usable (0 to 1)."),
    Field("DEV_BAR1_TOTAL", GAUGE, INT, _mib("bar1_total_bytes"), "BAR1 memory (MiB)."),
    Field("DEV_BAR1_USED", GAUGE, INT, _mib("bar1_used_bytes"), "BAR1 memory used (MiB)."),
    Field("DEV_BAR1_FREE", GAUGE, INT, _mib("bar1_free_bytes"), "BAR1 memory free (MiB)."),
    # --- ECC
    Field("DEV_ECC_CURRENT", GAUGE, INT, _as_is("ecc_mode"), "1 while ECC is on."),
    Field("DEV_ECC_PENDING", GAUGE, INT, _as_is("ecc_mode_pending"), "ECC mode after the next reset."),
    Field("DEV_THRESHOLD_SRM", GAUGE, INT, _as_is("sram_threshold_exceeded"), "1 once uncorrectable SRAM errors have exceeded the threshold."),
)  # fmt: skip

_ERRORS = (("SBE", "corrected", "Corrected"), ("DBE", "uncorrected", "Uncorrected"))
_SPANS = (("VOL", "volatile", "since driver load"), ("AGG", "aggregate", "in the life of the GPU"))
_MEMORIES = (
    ("TOTAL", "", "all memory"),
    ("L1", "_l1", "the L1 cache"),
    ("L2", "_l2", "the L2 cache"),
    ("DEV", "_dram", "device memory"),
    ("REG", "_register", "the register file"),
    ("TEX", "_texture", "texture memory"),
    ("SRM", "_sram", "SRAM"),
)
_ECC: tuple[Field, ...] = tuple(
    Field(
        f"DEV_ECC_{error}_{span}_{memory}",
        COUNTER,
        INT,
        _as_is(f"ecc_{error_reading}_{span_reading}{memory_reading}"),
        f"{error_text} ECC errors of {memory_text} {span_text}.",
    )
    for error, error_reading, error_text in _ERRORS
    for span, span_reading, span_text in _SPANS
    for memory, memory_reading, memory_text in _MEMORIES
)

_AFTER_ECC: tuple[Field, ...] = (
    # --- memory repair
    Field("DEV_RETIRED_SBE", COUNTER, INT, _as_is("retired_pages_single_bit"), "Pages retired for single-bit errors."),
    Field("DEV_RETIRED_DBE", COUNTER, INT, _as_is("retired_pages_double_bit"), "Pages retired for double-bit errors."),
    Field("DEV_RETIRED_PENDING", COUNTER, INT, _as_is("retired_pages_pending"), "1 while pages wait for a reboot to be retired."),
    Field("DEV_UNCORRECTABLE_REMAPPED_ROWS", COUNTER, INT, _as_is("remapped_rows_uncorrectable"), "Rows remapped for uncorrectable errors."),
    Field("DEV_CORRECTABLE_REMAPPED_ROWS", COUNTER, INT, _as_is("remapped_rows_correctable"), "Rows remapped for correctable errors."),
    Field("DEV_ROW_REMAP_FAILURE", GAUGE, INT, _as_is("remapped_rows_failure"), "1 once the remapping of a row has failed."),
    Field("DEV_MEMORY_UNREPAIRABLE_FLAG", GAUGE, INT, attrgetter("memory_unrepairable"), "1 once memory cannot be repaired (through DCGM only)."),
    Field("DEV_ROW_REMAP_PENDING", GAUGE, INT, _as_is("remapped_rows_pending"), "1 while rows wait for a reset to be remapped."),
    Field("DEV_BANKS_REMAP_ROWS_AVAIL_MAX", GAUGE, INT, _as_is("remap_banks_max"), "Memory banks with all spare rows left."),
    Field("DEV_BANKS_REMAP_ROWS_AVAIL_HIGH", GAUGE, INT, _as_is("remap_banks_high"), "Memory banks with many spare rows left."),
    Field("DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL", GAUGE, INT, _as_is("remap_banks_partial"), "Memory banks with some spare rows left."),
    Field("DEV_BANKS_REMAP_ROWS_AVAIL_LOW", GAUGE, INT, _as_is("remap_banks_low"), "Memory banks with few spare rows left."),
    Field("DEV_BANKS_REMAP_ROWS_AVAIL_NONE", GAUGE, INT, _as_is("remap_banks_none"), "Memory banks with no spare row left."),
    # --- PCIe
    Field("DEV_PCIE_REPLAY_COUNTER", COUNTER, INT, _as_is("pcie_replays"), "PCIe replays."),
    Field("DEV_PCIE_COUNT_CORRECTABLE_ERRORS", COUNTER, INT, _as_is("pcie_correctable_errors"), "Correctable PCIe errors."),
    Field("DEV_PCIE_MAX_LINK_GEN", GAUGE, INT, _as_is("pcie_generation_max"), "Highest PCIe generation of GPU and slot."),
    Field("DEV_PCIE_MAX_LINK_WIDTH", GAUGE, INT, _as_is("pcie_width_max"), "Most PCIe lanes of GPU and slot."),
    Field("DEV_PCIE_LINK_GEN", GAUGE, INT, _as_is("pcie_generation"), "PCIe generation now; lower when idle."),
    Field("DEV_PCIE_LINK_WIDTH", GAUGE, INT, _as_is("pcie_width"), "PCIe lanes now."),
    # --- NVLink
    Field("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", COUNTER, INT, _as_is("nvlink_crc_flit_errors"), "NVLink flow-control CRC errors."),
    Field("DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", COUNTER, INT, _as_is("nvlink_crc_data_errors"), "NVLink data CRC errors."),
    Field("DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", COUNTER, INT, _as_is("nvlink_replay_errors"), "NVLink replays."),
    Field("DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", COUNTER, INT, _as_is("nvlink_recovery_errors"), "NVLink recoveries."),
    Field("DEV_NVLINK_ERROR_DL_CRC", COUNTER, INT, _as_is("nvlink_dl_crc_errors"), "NVLink data link layer CRC errors."),
    Field("DEV_NVLINK_ERROR_DL_RECOVERY", COUNTER, INT, _as_is("nvlink_dl_recovery_errors"), "NVLink data link layer recoveries."),
    Field("DEV_NVLINK_ERROR_DL_REPLAY", COUNTER, INT, _as_is("nvlink_dl_replay_errors"), "NVLink data link layer replays."),
    # a rate; typed as a counter, as in dcgm-exporter
    Field("DEV_NVLINK_BANDWIDTH_TOTAL", COUNTER, INT, attrgetter("nvlink_mb_per_second"), "NVLink traffic of all links, both directions (MB/s)."),
    Field("DEV_NVLINK_COUNT_TX_BYTES", COUNTER, INT, _as_is("nvlink5_tx_bytes"), "NVLink bytes sent."),
    Field("DEV_NVLINK_COUNT_RX_BYTES", COUNTER, INT, _as_is("nvlink5_rx_bytes"), "NVLink bytes received."),
    Field("DEV_NVLINK_COUNT_RX_ERRORS", COUNTER, INT, _as_is("nvlink5_rx_errors"), "NVLink packets received with errors."),
    Field("DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", COUNTER, INT, _as_is("nvlink5_rx_symbol_errors"), "NVLink symbol errors."),
    Field("DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS", COUNTER, INT, _as_is("nvlink5_recoveries"), "NVLink recoveries that succeeded."),
    Field("DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", COUNTER, INT, _as_is("nvlink5_recovery_failures"), "NVLink recoveries that failed."),
    Field("DEV_NVLINK_COUNT_SYMBOL_BER", GAUGE, INT, _as_is("nvlink5_symbol_ber"), "NVLink symbol bit error rate, packed."),
    Field("DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT", GAUGE, TINY, _bit_error_rate("nvlink5_symbol_ber"), "NVLink symbol bit error rate."),
    Field("DEV_NVLINK_COUNT_EFFECTIVE_BER", GAUGE, INT, _as_is("nvlink5_effective_ber"), "NVLink effective bit error rate, packed."),
    Field("DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT", GAUGE, TINY, _bit_error_rate("nvlink5_effective_ber"), "NVLink effective bit error rate."),
    # --- state
    XID,
    Field("DEV_FABRIC_MANAGER_STATUS", GAUGE, INT, _fabric_manager_status, "0 not supported, 1 not started, 2 in progress, 3 registered, 4 failed."),
    Field("DEV_FABRIC_MANAGER_ERROR_CODE", GAUGE, INT, _fabric_error, "Result of the registration with the fabric (NVML return code)."),
    Field("DEV_FABRIC_HEALTH_MASK", GAUGE, INT, _as_is("fabric_health_mask"), "Fabric health (bit mask)."),
    Field("DEV_GET_GPU_RECOVERY_ACTION", GAUGE, INT, _as_is("recovery_action"), "Recovery action that the driver requests: 0 none, 1 reset, 2 reboot; other values exist."),
    Field("DEV_INFOROM_CONFIG_CHECK", GAUGE, INT, _as_is("inforom_checksum"), "Checksum of the InfoROM configuration."),
    Field("DEV_INFOROM_CONFIG_VALID", GAUGE, INT, _as_is("inforom_valid"), "1 while the InfoROM is valid."),
    Field("DEV_PERSISTENCE_MODE", GAUGE, INT, _as_is("persistence_mode"), "1 while persistence mode is on."),
    Field("DEV_MIG_MODE", GAUGE, INT, _as_is("mig_mode"), "1 while MIG is on."),
    Field("DEV_VGPU_LICENSE_STATUS", GAUGE, INT, _as_is("vgpu_license"), "1 while the vGPU software is licensed; 0 if it is not, or not installed."),
    # --- profiling, averaged between two passes
    Field("PROF_GR_ENGINE_ACTIVE", GAUGE, FLOAT, _ratio("gpm_graphics_active"), "Share of time the graphics or compute engine was active."),
    Field("PROF_SM_ACTIVE", GAUGE, FLOAT, _ratio("gpm_sm_active"), "Share of time an SM had a warp."),
    Field("PROF_SM_OCCUPANCY", GAUGE, FLOAT, _ratio("gpm_sm_occupancy"), "Share of the possible warps that were resident."),
    Field("PROF_PIPE_TENSOR_ACTIVE", GAUGE, FLOAT, _ratio("gpm_tensor_active"), "Share of cycles the tensor pipe was active."),
    Field("PROF_DRAM_ACTIVE", GAUGE, FLOAT, _ratio("gpm_dram_active"), "Share of cycles device memory sent or received."),
    Field("PROF_PCIE_TX_BYTES", GAUGE, INT, _mib_per_second("gpm_pcie_tx_mib"), "PCIe traffic sent (bytes/s)."),
    Field("PROF_PCIE_RX_BYTES", GAUGE, INT, _mib_per_second("gpm_pcie_rx_mib"), "PCIe traffic received (bytes/s)."),
    Field("PROF_NVLINK_TX_BYTES", GAUGE, INT, _mib_per_second("gpm_nvlink_tx_mib"), "NVLink traffic sent (bytes/s)."),
    Field("PROF_NVLINK_RX_BYTES", GAUGE, INT, _mib_per_second("gpm_nvlink_rx_mib"), "NVLink traffic received (bytes/s)."),
)  # fmt: skip

PREFIX = "DCGM_FI_"
FIELDS: tuple[Field, ...] = (*_BEFORE_ECC, *_ECC, *_AFTER_ECC)

OF_EXPORTER = frozenset(
    """DEV_SM_CLOCK DEV_MEM_CLOCK DEV_MEMORY_TEMP DEV_GPU_TEMP DEV_POWER_USAGE DEV_TOTAL_ENERGY_CONSUMPTION DEV_PCIE_REPLAY_COUNTER
    DEV_GPU_UTIL DEV_MEM_COPY_UTIL DEV_ENC_UTIL DEV_DEC_UTIL DEV_XID_ERRORS DEV_FB_FREE DEV_FB_USED DEV_FB_RESERVED
    DEV_NVLINK_BANDWIDTH_TOTAL DEV_VGPU_LICENSE_STATUS
    DEV_UNCORRECTABLE_REMAPPED_ROWS DEV_CORRECTABLE_REMAPPED_ROWS DEV_ROW_REMAP_FAILURE
    PROF_GR_ENGINE_ACTIVE PROF_PIPE_TENSOR_ACTIVE PROF_DRAM_ACTIVE PROF_PCIE_TX_BYTES PROF_PCIE_RX_BYTES""".split()
)
"""dcgm-exporter's default counters. Only these have job and pod labels, since each job or pod adds a series."""

OF_DASHBOARDS = frozenset(
    """DEV_GPU_TEMP_LIMIT DEV_SLOWDOWN_TEMP DEV_MEM_MAX_OP_TEMP DEV_ENFORCED_POWER_LIMIT
    DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS
    DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS
    DEV_ECC_SBE_VOL_TOTAL DEV_ECC_DBE_VOL_TOTAL DEV_ECC_SBE_AGG_TOTAL DEV_ECC_DBE_AGG_TOTAL DEV_THRESHOLD_SRM
    DEV_ROW_REMAP_PENDING DEV_BANKS_REMAP_ROWS_AVAIL_NONE DEV_PCIE_LINK_GEN DEV_PCIE_LINK_WIDTH DEV_PCIE_MAX_LINK_WIDTH
    DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
    DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL""".split()
)
"""Further fields that gpuwarden's own rules and dashboards read."""

OF_INSTANCES = (OF_EXPORTER - {XID.name}) | frozenset(
    # fields with a value for an instance (dcgm: entity level compute or GPU instance) that are not default counters
    """DEV_FB_TOTAL DEV_FB_USED_PERCENT DEV_BAR1_TOTAL DEV_BAR1_USED DEV_BAR1_FREE
    PROF_SM_ACTIVE PROF_SM_OCCUPANCY""".split()
)
"""Fields with a series for each GPU instance (MIG). All others have one series for the GPU."""
