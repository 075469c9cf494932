"""Faults of GPUs, of the driver, of NVLink and of the way to them."""

from __future__ import annotations

from evaluate import faults
from evaluate.fault_class import ANY, FABRIC, LINE, NEW_DRIVER, TROUBLE, FaultClass
from evaluate.faults import growing, hot, reading, storm, xids
from gpuwarden_collectors.facts import GpuAnswer, NvmlProblem

BEFORE_NVLINK5 = ("H100", "H100, driver 535", "A100")
DBE = reading(ecc_uncorrected_volatile=1)

AT_ONCE = (
    FaultClass(name="GPU gone from the bus, no Xid", strike=faults.off_the_bus, expects=("gpu_missing",), shown=ANY),
    FaultClass(name="configuration space 0xFFFFFFFF", strike=faults.dead_on_the_bus, expects=("gpu_missing",), shown=ANY),
    FaultClass(name="GPU gone from NVML only", strike=faults.out_of_nvml, expects=("gpu_missing",), grace=30),
    FaultClass(name="Xid 79", strike=faults.fallen, expects=("xid.79",), shown=LINE, also=("gpu_missing",)),
    FaultClass(name="fallen off the bus, no number", strike=faults.fallen_without_number, expects=("xid.79",), shown=LINE, also=("gpu_missing",)),
    FaultClass(name="GPU gone, then reboot", strike=faults.fallen_and_rebooted, expects=("gpu_missing",), after=320, also=("xid.79",)),
    FaultClass(name="Xid 48 with 63 and 95", strike=xids(48, 63, 95, then=DBE), expects=("xid.48", "xid.95"), shown=LINE, also=("ecc_uncorrectable", "xid.63")),
    FaultClass(name="Xid 48 alone", strike=xids(48, then=DBE), expects=("xid.48",), shown=LINE, also=("ecc_uncorrectable",)),
    FaultClass(name="Xid 95", strike=xids(95), expects=("xid.95",), shown=LINE),
    FaultClass(name="Xid 95, storm of 10,000 lines", strike=storm(95, 10_000, 341), expects=("xid.95",), shown=LINE),
    FaultClass(name="Xid 64", strike=xids(64, then=reading(remapped_rows_failure=1)), expects=("xid.64",), shown=LINE, also=("row_remap_failed",)),
    FaultClass(name="Xid 140", strike=xids(140), expects=("xid.140",), shown=LINE),
    FaultClass(name="Xid 62", strike=xids(62), expects=("xid.62",), shown=LINE),
    FaultClass(name="Xid 119, GPU answers on", strike=xids(119), expects=("xid.119",), shown=LINE, also=("dcgm_impaired.*@*",)),
    FaultClass(name="Xid 119 on every GPU", strike=faults.spread, expects=("xid.119",), shown=LINE, also=("xid.119@*", "dcgm_impaired.*@*")),
    FaultClass(name="Xid 119 and NVML hangs", strike=faults.gsp_gone, expects=("driver_unresponsive",), about="node", also=("xid.119", "dcgm_impaired.*@*")),
    FaultClass(name="driver hangs", strike=faults.hang, expects=("driver_unresponsive",), about="node", grace=10),
    FaultClass(name="driver hangs, reader in D state", strike=faults.hang_in_the_kernel, expects=("driver_unresponsive",), about="node"),
    FaultClass(name="driver unloaded for good", strike=faults.driver_gone, expects=("driver_not_loaded",), about="node", grace=120, also=("dcgm_impaired.*@*",)),
    FaultClass(name="GPU answers nothing", strike=faults.answers(GpuAnswer.TIMEOUT), expects=("gpu_unresponsive",), grace=30),
    FaultClass(name="GPU answers reset required", strike=faults.answers(GpuAnswer.RESET_REQUIRED), expects=("gpu_reset_required",)),
    FaultClass(name="double-bit error, counter only", strike=DBE, expects=("ecc_uncorrectable",)),
    FaultClass(name="row remapping failed", strike=reading(remapped_rows_failure=1), expects=("row_remap_failed",)),
    FaultClass(name="row remapping failed, then reboot", strike=faults.remapping_failed_and_rebooted, expects=("row_remap_failed",), after=360),
    FaultClass(name="SRAM threshold with errors", strike=reading(sram_threshold_exceeded=1, ecc_uncorrected_volatile_sram=4, ecc_uncorrected_volatile=4), expects=("sram_threshold",), also=("ecc_uncorrectable",)),
    FaultClass(name="recovery action: reset", strike=reading(recovery_action=1), expects=("gpu_recovery_action",), models=NEW_DRIVER),
    FaultClass(name="recovery action: reboot", strike=reading(recovery_action=2), expects=("gpu_recovery_action",), models=NEW_DRIVER),
    FaultClass(name="recovery action: bus reset", strike=reading(recovery_action=6), expects=("gpu_recovery_action",), models=NEW_DRIVER),
    FaultClass(name="fabric registration failed", strike=reading(fabric_status=999), expects=("fabric_unhealthy",), models=FABRIC),
    FaultClass(name="fabric health mask", strike=reading(fabric_health_mask=0x19A), expects=("fabric_unhealthy",), grace=60, models=FABRIC),
    FaultClass(name="NVLink down", strike=faults.link_down, expects=("nvlink_down",), about="link", grace=60),
    FaultClass(name="all NVLinks of a GPU down", strike=faults.all_links_down, expects=("nvlink_down",), about="link", grace=300),
    FaultClass(name="NVSwitch, fatal SXid", strike=faults.switch_error, expects=("sxid.20034",), about="switch", shown=LINE),
    FaultClass(name="temperature at shutdown point", strike=hot(6), expects=("thermal_limit",), grace=10),
)  # fmt: skip

SLOW = (
    FaultClass(name="one module of a board never came up", strike=faults.never_complete, expects=("inventory_incomplete",), about="node", severity="warning", grace=30),
    FaultClass(name="temperature at slowdown point", strike=hot(1), expects=("thermal_limit",), severity="warning", grace=120),
    FaultClass(name="slowed by heat, 80 % of the time", strike=growing(5, bits=0x40, slowdown_hw_thermal_ns=4_000_000_000), expects=("thermal_slowdown",), severity="warning", grace=450),
    FaultClass(name="power brake, 80 % of the time", strike=growing(5, bits=0x80, slowdown_hw_power_brake_ns=4_000_000_000), expects=("power_brake",), severity="warning", grace=450),
    FaultClass(name="power brake, a quarter of the clock", strike=faults.braked_at_work, expects=("power_brake",), grace=620),
    FaultClass(name="ECC off on one GPU", strike=faults.odd_ecc_mode, expects=("gpu_misconfigured",), severity="warning", grace=600),
    FaultClass(name="a quarter of the clock, no reason", strike=faults.slow_for_no_reason, expects=("gpu_slow",), severity="warning", grace=600, ends=None),
    FaultClass(name="a quarter of the clock, software thermal slowdown", strike=faults.slow_by_heat, expects=("gpu_slow",), severity="warning", grace=600, ends=None),
    FaultClass(name="PCIe link at half width", strike=reading(pcie_width=8), expects=("pcie_link_degraded",), severity="warning", grace=240),
    FaultClass(name="PCIe replays, 10 a second", strike=growing(5, pcie_replays=50), expects=("pcie_replay_rate",), severity="warning", grace=420),
    FaultClass(name="correctable errors, 1e5 a day", strike=growing(5, ecc_corrected_volatile=6), expects=("ecc_correctable_rate",), severity="warning", grace=840, ends=7600),
    FaultClass(name="correctable errors, 17,700 a second", strike=growing(5, ecc_corrected_volatile=88_500), expects=("memory_degrading",), grace=910, ends=None, also=("ecc_correctable_rate",)),
    FaultClass(name="memory beyond repair", strike=reading(memory_unrepairable=1), expects=("memory_unrepairable",)),
    FaultClass(name="SRAM threshold, quiet", strike=reading(sram_threshold_exceeded=1), expects=("sram_threshold",)),
    FaultClass(name="8 rows remapped for corrected errors", strike=reading(remapped_rows_correctable=8), expects=("row_remaps_many",), severity="warning"),
    FaultClass(name="channel repair pending", strike=reading(repair_channel_pending=1, repair_tpc_pending=0), expects=("gpu_repair_pending.channel",), severity="warning"),
    FaultClass(name="NVLink errors, 2 a minute", strike=growing(30, nvlink_replay_errors=1), expects=("nvlink_errors",), severity="warning", grace=330, models=BEFORE_NVLINK5),
    FaultClass(name="row remapping pending (63)", strike=xids(63, then=reading(remapped_rows_pending=1)), expects=("row_remap_pending",), severity="warning", also=("xid.63",)),
    FaultClass(name="contained memory error (94)", strike=xids(94, 63, then=reading(remapped_rows_pending=1, ecc_uncorrected_volatile=1)), expects=("xid.94",), severity="warning", shown=LINE, also=("xid.63", "row_remap_pending", "ecc_uncorrectable")),
    FaultClass(name="retired pages, 63 of them", strike=reading(retired_pages_double_bit=63), expects=("retired_pages",), models=("A100",)),
    FaultClass(name="retired pages pending", strike=reading(retired_pages_pending=1), expects=("retired_pages",), severity="warning", models=("A100",)),
    FaultClass(name="NVLink error that recovered (74)", strike=xids(74), expects=("xid.74",), severity="warning", shown=LINE),
    FaultClass(name="fatal PCIe error", strike=faults.bus_error, expects=("pcie_aer_fatal",), severity="warning", shown=LINE),
    FaultClass(name="InfoROM corrupt", strike=reading(inforom_valid=0), expects=("inforom_invalid",), severity="warning"),
    FaultClass(name="an Xid that nobody described", strike=xids(999), expects=("xid.999",), severity="warning", shown=LINE),
    FaultClass(name="NVLink 5 recoveries, 2 a minute", strike=growing(30, nvlink5_recoveries=1), expects=("nvlink_errors",), severity="warning", grace=330, models=("B200",)),
    FaultClass(name="driver library upgraded, driver not", strike=faults.nvml_says(NvmlProblem.LIBRARY_MISMATCH), expects=("driver_library_mismatch",), severity="warning", about="node"),
    FaultClass(name="daemon may not open the GPUs", strike=faults.nvml_says(NvmlProblem.NO_PERMISSION), expects=("device_permission",), severity="warning", about="node"),
    FaultClass(name="NVML fails as a whole", strike=faults.nvml_says(NvmlProblem.OTHER), expects=("nvml_unavailable",), severity="warning", about="node", grace=30),
    FaultClass(name="PCI bus cannot be read", strike=faults.bus_unreadable, expects=("collector_failed.pci",), severity="warning", about="node", shown="pci", grace=30),
    FaultClass(name="ledger cannot be written", strike=faults.daemon_trouble("ledger"), expects=("ledger_unavailable",), severity="warning", about="node", shown=TROUBLE),
    FaultClass(name="the run directory is full", strike=faults.daemon_trouble("verdict"), expects=("output_failed.verdict",), severity="warning", about="node", shown=TROUBLE),
    FaultClass(name="a key that no longer exists", strike=faults.daemon_trouble("config"), expects=("config_outdated",), severity="warning", about="node", shown=TROUBLE),
    FaultClass(name="web-config file has a fault", strike=faults.daemon_trouble("web"), expects=("web_config_faulty",), severity="warning", about="node", shown=TROUBLE),
    FaultClass(name="scheduler refuses", strike=faults.daemon_trouble("actuator"), expects=("actuator_refused",), severity="warning", about="node", shown=TROUBLE),
    FaultClass(name="a scheduler is away while something is wanted of it", strike=faults.daemon_trouble("actuator_away"), expects=("actuator_unreachable",), severity="warning", about="node", grace=600, shown=TROUBLE),
    FaultClass(name="a receiver of notifications refuses", strike=faults.daemon_trouble("notify"), expects=("notification_refused",), severity="warning", about="node", shown=TROUBLE),
    FaultClass(name="a job's processes outlive it", strike=faults.job_outlived, expects=("gpu_held_after_job",), severity="warning", shown="jobs", grace=30),
)  # fmt: skip
