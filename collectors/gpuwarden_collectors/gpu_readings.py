"""The readings of one GPU in one pass. `facts.py` has the other facts about a GPU, and the rule for units."""

from __future__ import annotations

from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReadings:
    """The readings of one GPU. Counters are cumulative, as the driver keeps them (volatile: since driver load)."""

    # Temperature, °C. The margin is the distance to the highest operating temperature (gpu_max), negative beyond it.
    temperature: int | None = None
    temperature_memory: int | None = None
    temperature_margin: int | None = None
    temperature_slowdown: int | None = None
    temperature_shutdown: int | None = None
    temperature_gpu_max: int | None = None
    temperature_memory_max: int | None = None

    # Power, milliwatts (usage is a one-second average on Ampere and later); energy, millijoules since driver load.
    power_usage_mw: int | None = None
    power_instant_mw: int | None = None
    power_limit_mw: int | None = None
    power_enforced_limit_mw: int | None = None
    energy_mj: int | None = None

    # Clocks, MHz; performance state 0 (fastest) to 15.
    clock_sm_mhz: int | None = None
    clock_memory_mhz: int | None = None
    clock_sm_max_mhz: int | None = None
    clock_sm_application_mhz: int | None = None
    clock_memory_application_mhz: int | None = None
    performance_state: int | None = None

    # Clock event reasons: the bit mask of nvmlClocksEventReasons; violation times, ns, cumulative since driver load.
    clock_event_reasons: int | None = None
    violation_power_ns: int | None = None
    violation_thermal_ns: int | None = None
    violation_sync_boost_ns: int | None = None
    violation_board_limit_ns: int | None = None
    violation_low_utilization_ns: int | None = None
    violation_reliability_ns: int | None = None
    slowdown_sw_thermal_ns: int | None = None
    slowdown_hw_thermal_ns: int | None = None
    slowdown_hw_power_brake_ns: int | None = None

    # Utilisation, per cent of the last sample period.
    utilization_gpu: int | None = None
    utilization_memory: int | None = None
    utilization_encoder: int | None = None
    utilization_decoder: int | None = None

    # Memory, bytes.
    memory_total_bytes: int | None = None
    memory_reserved_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_used_bytes: int | None = None
    bar1_total_bytes: int | None = None
    bar1_used_bytes: int | None = None
    bar1_free_bytes: int | None = None

    # ECC mode (0 or 1) and counters: {corrected,uncorrected}_{volatile,aggregate}[_location].
    ecc_mode: int | None = None
    ecc_mode_pending: int | None = None
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    ecc_corrected_volatile_l1: int | None = None
    ecc_corrected_volatile_l2: int | None = None
    ecc_corrected_volatile_dram: int | None = None
    ecc_corrected_volatile_register: int | None = None
    ecc_corrected_volatile_texture: int | None = None
    ecc_corrected_volatile_sram: int | None = None
    ecc_uncorrected_volatile_l1: int | None = None
    ecc_uncorrected_volatile_l2: int | None = None
    ecc_uncorrected_volatile_dram: int | None = None
    ecc_uncorrected_volatile_register: int | None = None
    ecc_uncorrected_volatile_texture: int | None = None
    ecc_uncorrected_volatile_sram: int | None = None
    ecc_corrected_aggregate_l1: int | None = None
    ecc_corrected_aggregate_l2: int | None = None
    ecc_corrected_aggregate_dram: int | None = None
    ecc_corrected_aggregate_register: int | None = None
    ecc_corrected_aggregate_texture: int | None = None
    ecc_corrected_aggregate_sram: int | None = None
    ecc_uncorrected_aggregate_l1: int | None = None
    ecc_uncorrected_aggregate_l2: int | None = None
    ecc_uncorrected_aggregate_dram: int | None = None
    ecc_uncorrected_aggregate_register: int | None = None
    ecc_uncorrected_aggregate_texture: int | None = None
    ecc_uncorrected_aggregate_sram: int | None = None
    sram_threshold_exceeded: int | None = None

    # Page retirement (Volta and older): pages by cause; pending 0 or 1.
    retired_pages_single_bit: int | None = None
    retired_pages_double_bit: int | None = None
    retired_pages_pending: int | None = None

    # Row remapping (Ampere and later): rows by cause; pending and failure 0 or 1; histogram, banks by spare rows left.
    remapped_rows_correctable: int | None = None
    remapped_rows_uncorrectable: int | None = None
    remapped_rows_pending: int | None = None
    remapped_rows_failure: int | None = None
    remap_banks_max: int | None = None
    remap_banks_high: int | None = None
    remap_banks_partial: int | None = None
    remap_banks_low: int | None = None
    remap_banks_none: int | None = None

    # 0 or 1: a memory channel or a TPC will be repaired at the next reset or reboot; memory without spares left.
    repair_channel_pending: int | None = None
    repair_tpc_pending: int | None = None
    memory_unrepairable: int | None = None

    # PCIe link (current generation drops when idle) and error counters since driver load.
    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    pcie_correctable_errors: int | None = None
    pcie_receiver_errors: int | None = None
    pcie_nonfatal_errors: int | None = None
    pcie_fatal_errors: int | None = None
    pcie_unsupported_requests: int | None = None
    pcie_lcrc_errors: int | None = None
    pcie_lane_errors: int | None = None
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None

    # NVLink, summed over the links of the GPU; per link in `GpuFacts.links`. Data counters: KiB.
    nvlink_crc_flit_errors: int | None = None
    nvlink_crc_data_errors: int | None = None
    nvlink_replay_errors: int | None = None
    nvlink_recovery_errors: int | None = None
    nvlink_dl_crc_errors: int | None = None
    nvlink_dl_recovery_errors: int | None = None
    nvlink_dl_replay_errors: int | None = None
    nvlink_tx_kib: int | None = None
    nvlink_rx_kib: int | None = None
    nvlink5_tx_bytes: int | None = None
    nvlink5_rx_bytes: int | None = None
    nvlink5_rx_errors: int | None = None
    nvlink5_rx_symbol_errors: int | None = None
    nvlink5_recoveries: int | None = None
    nvlink5_recovery_failures: int | None = None
    nvlink5_symbol_ber: int | None = None  # packed: mantissa and exponent, as NVML_FI_DEV_NVLINK_COUNT_SYMBOL_BER
    nvlink5_effective_ber: int | None = None

    # Fabric (NVSwitch systems): state 0 unsupported, 1 not started, 2 in progress, 3 completed; status is an nvmlReturn;
    # in_cluster is 1 if the cluster UUID is not zero: the GPU belongs to a multi-node NVLink domain.
    fabric_state: int | None = None
    fabric_status: int | None = None
    fabric_health_mask: int | None = None
    fabric_health_summary: int | None = None
    fabric_clique: int | None = None
    fabric_in_cluster: int | None = None

    # 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset, 5 recover IMEX domain, 6 bus reset, 7 system reboot
    recovery_action: int | None = None
    persistence_mode: int | None = None
    mig_mode: int | None = None
    compute_mode: int | None = None  # 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process
    confidential_ready: int | None = None  # 1 if GPUs in confidential computing accept work; None without that mode
    gsp_mode: int | None = None  # 1 if the GPU system processor runs the driver's firmware
    inforom_valid: int | None = None
    inforom_checksum: int | None = None
    vgpu_license: int | None = None  # 1 while the vGPU software is licensed

    # GPM (Hopper and later), averaged over the time between the last two passes: per cent; bytes as MiB/s.
    gpm_graphics_active: float | None = None
    gpm_sm_active: float | None = None
    gpm_sm_occupancy: float | None = None
    gpm_tensor_active: float | None = None
    gpm_dram_active: float | None = None
    gpm_pcie_tx_mib: float | None = None
    gpm_pcie_rx_mib: float | None = None
    gpm_nvlink_tx_mib: float | None = None
    gpm_nvlink_rx_mib: float | None = None
