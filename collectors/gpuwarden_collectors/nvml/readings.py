"""The table of readings: a row for each attribute of `GpuReadings`, with its NVML call or field, cadence and price.

Numbers come from the vendor's header (nvml.h 13.5): field ids are `NVML_FI_DEV_*`, arguments are its enums. All due
field values are read in one call per GPU; each other row is one call. NVLink sums (`links`) and GPM metrics (`gpm`)
are not in the table, because they keep state between passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import byref, c_uint
from enum import IntEnum
from typing import Any

from gpuwarden_collectors.dataclass import dataclass

Special = Callable[[Any, Any], Any]
"""A function of the library and a device handle, which returns the result. Raises the library's NVMLError."""


class Cadence(IntEnum):
    """Maximum age in seconds of a value; PASS: it is read in each pass."""

    PASS = 0
    MINUTE = 60
    SETTING = 120
    HOUR = 3600
    DAY = 86_400


PASS, MINUTE, SETTING, HOUR, DAY = Cadence


@dataclass(frozen=True, slots=True)
class Trigger:
    """A condition that makes a row due in each pass while it `holds` for the pass's readings, and in the pass after.

    `text` describes the condition, for the documentation.
    """

    text: str
    holds: Callable[[Mapping[str, Any]], bool]


LITTLE, SOME = 0.03, 0.165
"""Milliseconds of CPU in the driver: the maximum of most calls; the mean of those that take 0.15 to 0.18."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function of pynvml and the attributes that it fills.

    `parts`: if empty, the result is the value; if `[]`, the result is a sequence in the order of `into`; otherwise the
    names of the result's members in that order. Values above `most` are documented as invalid. `otherwise` replaces
    this call once the driver does not support it. `price`: milliseconds of CPU on an H100 (driver 580.159.04) if the
    call is supported; an unsupported call costs nothing.
    """

    function: str | Special
    into: tuple[str, ...]
    args: tuple[int, ...] = ()
    parts: str = ""
    cadence: Cadence = PASS
    price: float = LITTLE
    trigger: Trigger | None = None
    most: int | None = None
    otherwise: Call | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A field value. `kind` overrides the value type that the driver declares; the rest as in `Call`.

    Most cost nothing in addition to the one call for all due fields.
    """

    into: str
    id: int
    scope: int = 0
    most: int | None = None
    kind: int | None = None
    cadence: Cadence = PASS
    price: float = 0.0
    trigger: Trigger | None = None


ALL_LINKS = 0xFFFFFFFF  # scope of an NVLink field: the sum over the links
UNSIGNED_INT = 1  # nvmlValueType_t
TOO_HOT = 200  # °C; above it, the driver means "no value" (as DCGM does for fields 140 and 150)
MEMORY_V2 = 0x02000028  # NVML_STRUCT_VERSION(Memory, 2)
UNREPAIRABLE_V1 = 0x01000008  # NVML_STRUCT_VERSION of a structure of two words
CONFIDENTIAL = 1  # NVML_CC_SYSTEM_FEATURE_ENABLED
VGPU_FEATURE = 1  # NVML_GRID_LICENSE_FEATURE_CODE_VGPU


HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, HW_POWER_BRAKE = 0x08, 0x20, 0x40, 0x80  # nvmlClocksEventReason…


def _clocks_lowered(text: str, bits: int) -> Trigger:
    return Trigger(f"while {text}", lambda now: bool((now.get("clock_event_reasons") or 0) & bits))


FOR_HEAT = _clocks_lowered("clocks are lowered for heat", HW_SLOWDOWN | SW_THERMAL | HW_THERMAL)
BY_HOT_HARDWARE = _clocks_lowered("hardware lowers clocks for heat", HW_SLOWDOWN | HW_THERMAL)
BY_POWER_BRAKE = _clocks_lowered("the power brake lowers clocks", HW_SLOWDOWN | HW_POWER_BRAKE)
NEAR = 15  # °C


def _near_the_limit(now: Mapping[str, Any]) -> bool:
    """True if the temperature is near its limit, or either is unknown: then the margin may be the only sign of heat."""
    temperature, limit = now.get("temperature"), now.get("temperature_gpu_max")
    return temperature is None or limit is None or temperature >= limit - NEAR


NEAR_THE_LIMIT = Trigger(f"while within {NEAR} °C of the highest operating temperature", _near_the_limit)
ENCODING = Trigger("while the encoder was busy", lambda now: bool(now.get("utilization_encoder")))
DECODING = Trigger("while the decoder was busy", lambda now: bool(now.get("utilization_decoder")))
DIVIDED = Trigger("while utilization is not reported, as with MIG on", lambda now: now.get("utilization_gpu") is None)


def _fabric(structure_name: str, function: str = "nvmlDeviceGetGpuFabricInfoV") -> Special:
    def read(nvml: Any, handle: Any) -> Any:
        structure = getattr(nvml, structure_name, None)
        if structure is None:  # older bindings
            raise nvml.NVMLError(nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        info = structure()
        getattr(nvml, function)(handle, byref(info))
        info.inCluster = int(any(info.clusterUuid))
        return info

    return read


def _sram_status(nvml: Any, handle: Any) -> Any:
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, byref(status))
    return status


def _inforom_valid(nvml: Any, handle: Any) -> int:
    try:
        nvml.nvmlDeviceValidateInforom(handle)
    except nvml.NVMLError_CorruptedInforom:
        return 0
    return 1


def _vgpu_license(nvml: Any, handle: Any) -> int:
    """Returns 1 if a vGPU license is active; 0 also if none is needed (dcgm: field 526)."""
    license_of = nvml.nvmlDeviceGetGridLicensableFeatures(handle)
    if not license_of.isGridLicenseSupported:
        return 0
    features = license_of.gridLicensableFeatures[: license_of.licensableFeaturesCount]
    return int(any(feature.featureCode == VGPU_FEATURE and feature.featureState for feature in features))


def _confidential_ready(nvml: Any, _: Any) -> int:
    """Reads the ready state, which is of the node. Without confidential computing it is 0, too, and means nothing."""
    if nvml.nvmlSystemGetConfComputeState().ccFeature != CONFIDENTIAL:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return int(nvml.nvmlSystemGetConfComputeGpusReadyState())


def _memory_unrepairable(nvml: Any, handle: Any) -> int:
    """Reads the flag without pynvml's structure, which has a version that nvml.h 13.5 lacks, and always reads 0."""
    function = nvml._nvmlGetFunctionPointer("nvmlDeviceGetUnrepairableMemoryFlag_v1")  # noqa: SLF001 - see above
    words = (c_uint * 2)(UNREPAIRABLE_V1, 0)
    if code := function(handle, byref(words)):
        raise nvml.NVMLError(code)
    return int(words[1] if words[0] == UNREPAIRABLE_V1 else words[0])


VITAL: tuple[Call, ...] = (
    # Every working GPU answers at least one of these calls; if none succeeds, no other call is made for the GPU.
    Call("nvmlDeviceGetTemperatureV", ("temperature",), (0,), most=TOO_HOT,
         otherwise=Call("nvmlDeviceGetTemperature", ("temperature",), (0,), most=TOO_HOT)),
    Call("nvmlDeviceGetMemoryInfo", ("memory_total_bytes", "memory_reserved_bytes", "memory_free_bytes", "memory_used_bytes"),
         (MEMORY_V2,), "total reserved free used",
         otherwise=Call("nvmlDeviceGetMemoryInfo", ("memory_total_bytes", "memory_free_bytes", "memory_used_bytes"), (), "total free used")),
    Call("nvmlDeviceGetPowerUsage", ("power_usage_mw",)),
    Call("nvmlDeviceGetPerformanceState", ("performance_state",), most=15),
    Call("nvmlDeviceGetUtilizationRates", ("utilization_gpu", "utilization_memory"), (), "gpu memory"),
)  # fmt: skip

_ECC_LOCATIONS = {"l1": 0, "l2": 1, "dram": 2, "register": 3, "texture": 4, "sram": 7}

CALLS: tuple[Call, ...] = (
    Call("nvmlDeviceGetTemperatureThreshold", ("temperature_shutdown",), (0,), cadence=SETTING, price=SOME, most=TOO_HOT),
    Call("nvmlDeviceGetTemperatureThreshold", ("temperature_slowdown",), (1,), cadence=SETTING, price=SOME, most=TOO_HOT),
    Call("nvmlDeviceGetTemperatureThreshold", ("temperature_memory_max",), (2,), cadence=SETTING, price=SOME, most=TOO_HOT),
    Call("nvmlDeviceGetTemperatureThreshold", ("temperature_gpu_max",), (3,), cadence=SETTING, price=SOME, most=TOO_HOT),
    Call("nvmlDeviceGetMarginTemperature", ("temperature_margin",), cadence=MINUTE, price=1.05, trigger=NEAR_THE_LIMIT),

    Call("nvmlDeviceGetPowerManagementLimit", ("power_limit_mw",), cadence=SETTING, price=SOME),
    Call("nvmlDeviceGetEnforcedPowerLimit", ("power_enforced_limit_mw",), cadence=SETTING, price=SOME),

    Call("nvmlDeviceGetClockInfo", ("clock_sm_mhz",), (1,)),
    Call("nvmlDeviceGetClockInfo", ("clock_memory_mhz",), (2,)),
    Call("nvmlDeviceGetMaxClockInfo", ("clock_sm_max_mhz",), (1,), cadence=HOUR, price=1.29),
    # Deprecated, and unsupported by some drivers. Unmeasured prices, here and below, are the higher usual one.
    Call("nvmlDeviceGetApplicationsClock", ("clock_sm_application_mhz",), (1,), cadence=SETTING, price=SOME),
    Call("nvmlDeviceGetApplicationsClock", ("clock_memory_application_mhz",), (2,), cadence=SETTING, price=SOME),
    Call("nvmlDeviceGetCurrentClocksEventReasons", ("clock_event_reasons",),
         otherwise=Call("nvmlDeviceGetCurrentClocksThrottleReasons", ("clock_event_reasons",))),

    Call("nvmlDeviceGetEncoderUtilization", ("utilization_encoder",), (), "[]", MINUTE, trigger=ENCODING),
    Call("nvmlDeviceGetDecoderUtilization", ("utilization_decoder",), (), "[]", MINUTE, trigger=DECODING),
    Call("nvmlDeviceGetBAR1MemoryInfo", ("bar1_total_bytes", "bar1_free_bytes", "bar1_used_bytes"),
         (), "bar1Total bar1Free bar1Used", MINUTE, SOME),

    Call("nvmlDeviceGetEccMode", ("ecc_mode", "ecc_mode_pending"), (), "[]", SETTING, SOME),
    # Only uncorrectable errors are read by location; for corrected errors the sums, two fields, are read in each pass.
    *(Call("nvmlDeviceGetMemoryErrorCounter", (f"ecc_{error}_{lifetime}_{location}",), (error_type, counter_type, number),
           cadence=PASS if (error, lifetime) == ("uncorrected", "volatile") else MINUTE)
      for error_type, error in enumerate(("corrected", "uncorrected"))
      for counter_type, lifetime in enumerate(("volatile", "aggregate"))
      for location, number in _ECC_LOCATIONS.items()),
    Call(_sram_status, ("sram_threshold_exceeded",), (), "bThresholdExceeded"),
    Call("nvmlDeviceGetRemappedRows",
         ("remapped_rows_correctable", "remapped_rows_uncorrectable", "remapped_rows_pending", "remapped_rows_failure"), (), "[]"),
    Call("nvmlDeviceGetRowRemapperHistogram",
         ("remap_banks_max", "remap_banks_high", "remap_banks_partial", "remap_banks_low", "remap_banks_none"),
         (), "max high partial low none", MINUTE),
    Call("nvmlDeviceGetRepairStatus", ("repair_channel_pending", "repair_tpc_pending"), (), "[]", MINUTE, SOME),
    Call(_memory_unrepairable, ("memory_unrepairable",), cadence=MINUTE, price=SOME),

    Call("nvmlDeviceGetCurrPcieLinkGeneration", ("pcie_generation",)),
    Call("nvmlDeviceGetCurrPcieLinkWidth", ("pcie_width",)),
    Call("nvmlDeviceGetMaxPcieLinkGeneration", ("pcie_generation_max",), cadence=SETTING),
    Call("nvmlDeviceGetMaxPcieLinkWidth", ("pcie_width_max",), cadence=SETTING),
    Call("nvmlDeviceGetPcieReplayCounter", ("pcie_replays",), cadence=MINUTE, price=SOME),

    Call(_fabric("c_nvmlGpuFabricInfo_v3_t"),
         ("fabric_state", "fabric_status", "fabric_health_mask", "fabric_clique", "fabric_in_cluster", "fabric_health_summary"),
         (), "state status healthMask cliqueId inCluster healthSummary", otherwise=Call(
             _fabric("c_nvmlGpuFabricInfo_v2_t"),
             ("fabric_state", "fabric_status", "fabric_health_mask", "fabric_clique", "fabric_in_cluster"),
             (), "state status healthMask cliqueId inCluster",
             # Drivers before R550 know only this one (nvml.h 12.0 to 12.3), which newer headers call deprecated.
             otherwise=Call(_fabric("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
                            ("fabric_state", "fabric_status", "fabric_clique", "fabric_in_cluster"),
                            (), "state status cliqueId inCluster"))),

    Call("nvmlDeviceGetPersistenceMode", ("persistence_mode",), cadence=SETTING),
    Call("nvmlDeviceGetComputeMode", ("compute_mode",), cadence=SETTING),
    Call(_confidential_ready, ("confidential_ready",), cadence=SETTING),
    Call("nvmlDeviceGetMigMode", ("mig_mode",), (), "[]", MINUTE, SOME, DIVIDED),
    Call("nvmlDeviceGetGspFirmwareMode", ("gsp_mode",), (), "[]", SETTING, SOME),
    Call(_inforom_valid, ("inforom_valid",), cadence=DAY, price=69.0),
    Call("nvmlDeviceGetInforomConfigurationChecksum", ("inforom_checksum",), cadence=DAY, price=69.0),
    Call(_vgpu_license, ("vgpu_license",), cadence=SETTING),
)  # fmt: skip

FIELDS: tuple[Field, ...] = (
    Field("temperature_memory", 82, most=TOO_HOT, kind=UNSIGNED_INT),  # some drivers declare another type (dcgm: field 140)
    Field("power_instant_mw", 186),
    Field("energy_mj", 83, cadence=MINUTE, price=2.85),

    Field("violation_power_ns", 74),
    Field("violation_thermal_ns", 75, cadence=MINUTE, price=0.66, trigger=FOR_HEAT),
    Field("violation_sync_boost_ns", 76),
    Field("violation_board_limit_ns", 77),
    Field("violation_low_utilization_ns", 78),
    Field("violation_reliability_ns", 79),
    Field("slowdown_sw_thermal_ns", 269),
    Field("slowdown_hw_thermal_ns", 270, cadence=MINUTE, price=0.80, trigger=BY_HOT_HARDWARE),
    Field("slowdown_hw_power_brake_ns", 271, cadence=MINUTE, price=0.65, trigger=BY_POWER_BRAKE),

    Field("ecc_corrected_volatile", 3),
    Field("ecc_uncorrected_volatile", 4),
    Field("ecc_corrected_aggregate", 5),
    Field("ecc_uncorrected_aggregate", 6),
    Field("retired_pages_single_bit", 29),
    Field("retired_pages_double_bit", 30),
    Field("retired_pages_pending", 31),

    Field("pcie_correctable_errors", 173, cadence=MINUTE, price=SOME),
    Field("pcie_receiver_errors", 175, cadence=MINUTE, price=SOME),
    Field("pcie_nonfatal_errors", 179, cadence=MINUTE, price=SOME),
    Field("pcie_fatal_errors", 180, cadence=MINUTE, price=SOME),
    Field("pcie_unsupported_requests", 181, cadence=MINUTE, price=SOME),
    Field("pcie_lcrc_errors", 182, cadence=MINUTE, price=SOME),
    Field("pcie_lane_errors", 183, cadence=MINUTE, price=SOME),
    Field("pcie_tx_bytes", 197, cadence=MINUTE, price=SOME),
    Field("pcie_rx_bytes", 198, cadence=MINUTE, price=SOME),

    Field("nvlink_crc_flit_errors", 38),
    Field("nvlink_crc_data_errors", 45),
    Field("nvlink_replay_errors", 52),
    Field("nvlink_recovery_errors", 59),
    Field("nvlink_tx_kib", 138, scope=ALL_LINKS),
    Field("nvlink_rx_kib", 139, scope=ALL_LINKS),
    Field("nvlink5_tx_bytes", 202, scope=ALL_LINKS),
    Field("nvlink5_rx_bytes", 204, scope=ALL_LINKS),
    Field("nvlink5_rx_errors", 208, scope=ALL_LINKS),
    Field("nvlink5_recoveries", 213, scope=ALL_LINKS),
    Field("nvlink5_recovery_failures", 214, scope=ALL_LINKS),
    Field("nvlink5_effective_ber", 220, scope=ALL_LINKS),
    Field("nvlink5_rx_symbol_errors", 221, scope=ALL_LINKS),
    Field("nvlink5_symbol_ber", 222, scope=ALL_LINKS),

    Field("recovery_action", 230),
)  # fmt: skip

SINCE_LOAD = tuple(
    """
    violation_power_ns violation_sync_boost_ns violation_low_utilization_ns slowdown_sw_thermal_ns
    ecc_corrected_volatile ecc_uncorrected_volatile nvlink_replay_errors nvlink_recovery_errors""".split()
)
"""Counters read in each pass that restart when the driver loads or the GPU is reset: if one decreased between two
passes, all earlier values may be outdated."""

GPM: dict[str, int] = {
    # nvmlGpmMetricId_t; per cent, and MiB/s for the throughputs
    "gpm_graphics_active": 1,
    "gpm_sm_active": 2,
    "gpm_sm_occupancy": 3,
    "gpm_tensor_active": 5,
    "gpm_dram_active": 10,
    "gpm_pcie_tx_mib": 20,
    "gpm_pcie_rx_mib": 21,
    "gpm_nvlink_tx_mib": 61,
    "gpm_nvlink_rx_mib": 60,
}
GPM_OF_INSTANCES = {
    # the others only exist for the whole GPU (dcgm: entity level of fields 1001-1005, 1009-1012)
    name: number
    for name, number in GPM.items()
    if not name.endswith("_mib")
}

LINK_FIELDS: dict[str, int] = {
    # Per link, with the link as scope. The first three are for NVLink 4 and older, the others for NVLink 5.
    "replay_errors": 161,
    "recovery_errors": 162,
    "dl_crc_errors": 163,
    "tx_bytes": 202,
    "rx_bytes": 204,
    "rx_errors": 208,
    "recoveries": 213,
    "recovery_failures": 214,
    "rx_symbol_errors": 221,
}

LINK_COUNTERS: dict[str, int] = {
    # nvmlNvLinkErrorCounter_t; NVLink 4 and older. Older drivers have replay and recovery only here.
    "replay_errors": 0,
    "recovery_errors": 1,
    "crc_flit_errors": 2,
    "crc_data_errors": 3,
}

LINK_SUMS: dict[str, str] = {
    # Attribute of GpuReadings: the link counter to sum. The driver reports the first three per link only; it sums the
    # others itself if the scope is ALL_LINKS (DCGM relies on that, nvml.h does not document it).
    "nvlink_dl_replay_errors": "replay_errors",
    "nvlink_dl_recovery_errors": "recovery_errors",
    "nvlink_dl_crc_errors": "dl_crc_errors",
    "nvlink5_tx_bytes": "tx_bytes",
    "nvlink5_rx_bytes": "rx_bytes",
    "nvlink5_rx_errors": "rx_errors",
    "nvlink5_recoveries": "recoveries",
    "nvlink5_recovery_failures": "recovery_failures",
    "nvlink5_rx_symbol_errors": "rx_symbol_errors",
}
