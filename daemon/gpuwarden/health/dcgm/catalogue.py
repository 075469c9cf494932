"""Catalogue of DCGM incident codes: meaning, severity, recommended action and source of each.

DCGM gives an incident a result of 0, 10 or 20 (pass, warn, fail), and each code a separate severity. The two disagree
in places, and both were designed for a diagnostic that a person started. The table therefore has the worst severity
that gpuwarden gives a code; if DCGM and the table disagree, the lower severity applies. If a gpuwarden condition covers
the same fault, `agrees` names it: the incident is then evidence of that condition and not a second finding.

An incident caused by an Xid (possible for codes 6, 9, 10, 12, 80, 81, 101, 120 and 131) is judged by the table of Xids
under the condition `xid`, regardless of its code. The engine keeps such an incident until it is restarted, even through
a reset of the GPU, so only its first appearance counts.

Only the codes in `_PASSIVE` come from DCGM's passive health checks, which gpuwarden uses. All others come from a
diagnostic (dcgmi diag). Of those, a hardware code with the vendor's severity isolate or reset is a failure. An unknown
code is a warning, never dropped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from gpuwarden.health.model import Advice, Health
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmCode:
    """A DCGM incident code.

    `severity` and `action` are the vendor's terms; `worst` is the worst severity that gpuwarden gives the code.
    `agrees` is the gpuwarden condition for the same fault, or "". `passive`: the health checks report it. `lasts`:
    seconds for which DCGM must report it before it counts without NVML; infinite if gpuwarden's own reading decides.
    """

    code: int
    name: str
    meaning: str
    category: str
    severity: str
    action: str
    worst: Health
    advice: Advice
    agrees: str = ""
    passive: bool = False
    lasts: float = 60.0
    note: str = ""
    provenance: str = "dcgm_errors.h of DCGM 4.6.0"

    @property
    def condition(self) -> str:
        """Code of the finding that an incident belongs to."""
        return self.agrees or own_code(self)


def own_code(row: DcgmCode) -> str:
    """Return the code of the finding for an incident that belongs to no other condition."""
    return f"dcgm_{row.name.lower()}"


MONITOR, ISOLATE, UNKNOWN, TRIAGE, CONFIG, RESET = "monitor", "isolate", "unknown", "triage", "configure", "reset"
HEALTHY, WARNING, FAILURE = Health.HEALTHY, Health.WARNING, Health.FAILURE
A = Advice

# The vendor's next step in short, its text in short, and gpuwarden's advice for codes without a specific one.
_ACTIONS: dict[str, tuple[str, Advice]] = {
    "": ("", A.OBSERVE),
    "field diagnostic": ("run the field diagnostic on the GPU", A.INSPECT_HARDWARE),
    "triage": ("search the logs for errors, reset the GPU, restart DCGM, run the diagnostic again", A.OBSERVE),
    "drain and reset": ("drain the GPU, then reset it or reboot", A.RESET_GPU),
    "monitor": ("keep an eye on it; it can still do its work", A.OBSERVE),
    "configure": ("check the configuration of DCGM and of the system", A.FIX_CONFIGURATION),
    "cooling": ("check the cooling", A.INSPECT_HARDWARE),
    "bug report": ("send the vendor a bug report", A.CONTACT_SUPPORT),
    "fix": ("correct what the text names", A.FIX_CONFIGURATION),
    "reconnect": ("reconnect the card, check the path to it", A.INSPECT_HARDWARE),
    "fabric": ("start the fabric manager, or see why it complains", A.RESTART_SERVICE),
    "restart application": ("restart the application; a reset can wait", A.RESTART_APP),
    "Xid": ("see what the Xid means", A.OBSERVE),
}

# Code, name, category, the vendor's severity and next step, meaning.
_ROWS: tuple[tuple[int, str, str, str, str, str], ...] = (
    (0, "OK", "none", UNKNOWN, "", "No error"),
    (1, "UNKNOWN", "none", UNKNOWN, "", "An error that DCGM has no code for"),
    (2, "UNRECOGNIZED", "none", UNKNOWN, "", "An error code that is unknown in DCGM itself"),
    (3, "PCI_REPLAY_RATE", "hardware_pcie", ISOLATE, "reconnect", "More PCIe replays a minute than the link may have"),
    (4, "VOLATILE_DBE_DETECTED", "hardware_memory", ISOLATE, "drain and reset", "Uncorrectable memory errors since the driver was loaded"),
    (5, "VOLATILE_SBE_DETECTED", "hardware_memory", MONITOR, "monitor", "Many corrected memory errors since the driver was loaded"),
    (6, "PENDING_PAGE_RETIREMENTS", "hardware_memory", RESET, "monitor", "A memory page waits to be retired (with Xid 63: a row was remapped)"),
    (7, "RETIRED_PAGES_LIMIT", "hardware_memory", ISOLATE, "field diagnostic", "63 or more memory pages are retired"),
    (8, "RETIRED_PAGES_DBE_LIMIT", "hardware_memory", ISOLATE, "field diagnostic", "More than 15 pages retired for uncorrectable errors, and another one within a week"),
    (9, "CORRUPT_INFOROM", "hardware_other", TRIAGE, "fix", "The InfoROM of the GPU is corrupt"),
    (10, "CLOCKS_EVENT_THERMAL", "hardware_thermal", MONITOR, "cooling", "The clocks were lowered for heat within the last minute"),
    (11, "POWER_UNREADABLE", "hardware_power", MONITOR, "triage", "The power draw of the GPU cannot be read"),
    (12, "CLOCKS_EVENT_POWER", "hardware_power", MONITOR, "monitor", "The clocks were lowered for power within the last minute"),
    (13, "NVLINK_ERROR_THRESHOLD", "hardware_nvlink", ISOLATE, "monitor", "CRC errors on an NVLink within the last minute"),
    (14, "NVLINK_DOWN", "hardware_nvlink", TRIAGE, "triage", "An NVLink is down"),
    (15, "NVSWITCH_FATAL_ERROR", "hardware_nvswitch", ISOLATE, "field diagnostic", "A fatal error of an NVSwitch (SXid)"),
    (16, "NVSWITCH_NON_FATAL_ERROR", "hardware_nvswitch", MONITOR, "monitor", "A non-fatal error of an NVSwitch (SXid)"),
    (17, "NVSWITCH_DOWN", "hardware_nvswitch", MONITOR, "triage", "A port of an NVSwitch is down"),
    (18, "NO_ACCESS_TO_FILE", "software_other", CONFIG, "fix", "A file cannot be opened"),
    (19, "NVML_API", "software_library", MONITOR, "fix", "A call of NVML failed"),
    (20, "DEVICE_COUNT_MISMATCH", "software_other", CONFIG, "fix", "NVML lists another number of GPUs than /dev"),
    (21, "BAD_PARAMETER", "internal_other", UNKNOWN, "bug report", "A function of DCGM was given a bad parameter"),
    (22, "CANNOT_OPEN_LIB", "software_library", TRIAGE, "fix", "A library cannot be opened"),
    (23, "DENYLISTED_DRIVER", "software_config", CONFIG, "fix", "A driver that must not be there (nouveau) is in use"),
    (24, "NVML_LIB_BAD", "software_library", ISOLATE, "fix", "The NVML library lacks functions"),
    (25, "GRAPHICS_PROCESSES", "software_other", RESET, "fix", "Graphics processes use the GPU"),
    (26, "HOSTENGINE_CONN", "internal_other", MONITOR, "fix", "The connection to nv-hostengine does not hold"),
    (27, "FIELD_QUERY", "internal_other", MONITOR, "triage", "A field of DCGM cannot be read"),
    (28, "BAD_CUDA_ENV", "software_cuda", CONFIG, "fix", "The environment holds variables that slow CUDA down"),
    (29, "PERSISTENCE_MODE", "software_other", CONFIG, "fix", "Persistence mode is off"),
    (30, "LOW_BANDWIDTH", "hardware_pcie", TRIAGE, "fix", "The PCIe bandwidth is too low"),
    (31, "HIGH_LATENCY", "hardware_pcie", TRIAGE, "fix", "The PCIe latency is too high"),
    (32, "CANNOT_GET_FIELD_TAG", "internal_other", MONITOR, "", "DCGM has no name for a field"),
    (33, "FIELD_VIOLATION", "hardware_other", ISOLATE, "triage", "A field of errors is not zero (the health of the fabric, or of a ConnectX adapter)"),
    (34, "FIELD_THRESHOLD", "perf_violation", MONITOR, "triage", "A field is above its limit"),
    (35, "FIELD_VIOLATION_DBL", "perf_violation", ISOLATE, "triage", "A field of errors is not zero"),
    (36, "FIELD_THRESHOLD_DBL", "perf_violation", ISOLATE, "triage", "A field is above its limit (temperature or power of the CPU)"),
    (37, "UNSUPPORTED_FIELD_TYPE", "internal_other", TRIAGE, "triage", "A field is of a type that cannot be used"),
    (38, "FIELD_THRESHOLD_TS", "perf_threshold", ISOLATE, "triage", "A field went above its limit during the test"),
    (39, "FIELD_THRESHOLD_TS_DBL", "perf_threshold", ISOLATE, "triage", "A field went above its limit during the test"),
    (40, "THERMAL_VIOLATIONS", "hardware_thermal", MONITOR, "cooling", "The GPU was slowed down by heat"),
    (41, "THERMAL_VIOLATIONS_TS", "hardware_thermal", MONITOR, "cooling", "The GPU was slowed down by heat during the test"),
    (42, "TEMP_VIOLATION", "hardware_thermal", MONITOR, "cooling", "The temperature is above the limit of the test"),
    (43, "CLOCKS_EVENT_VIOLATION", "hardware_other", MONITOR, "triage", "The clocks were lowered for a reason that does harm"),
    (44, "INTERNAL", "internal_other", TRIAGE, "triage", "An internal error of the test"),
    (45, "PCIE_GENERATION", "hardware_pcie", TRIAGE, "configure", "The PCIe link is of too low a generation"),
    (46, "PCIE_WIDTH", "hardware_pcie", CONFIG, "configure", "The PCIe link has too few lanes"),
    (47, "ABORTED", "software_other", CONFIG, "", "The test was aborted by its user"),
    (48, "TEST_DISABLED", "software_config", CONFIG, "configure", "The test is switched off for this GPU"),
    (49, "CANNOT_GET_STAT", "internal_other", TRIAGE, "fix", "A value that the test needs cannot be read"),
    (50, "STRESS_LEVEL", "perf_threshold", TRIAGE, "triage", "The GPU does not reach the performance of the stress test"),
    (51, "CUDA_API", "software_cuda", MONITOR, "triage", "A call of CUDA failed"),
    (52, "FAULTY_MEMORY", "hardware_memory", ISOLATE, "field diagnostic", "Memory of the GPU is faulty beyond repair"),
    (53, "CANNOT_SET_WATCHES", "internal_other", MONITOR, "triage", "DCGM cannot watch fields that it needs"),
    (54, "CUDA_UNBOUND", "software_cuda", TRIAGE, "triage", "A CUDA context was lost"),
    (55, "ECC_DISABLED", "hardware_memory", CONFIG, "fix", "ECC is switched off"),
    (56, "MEMORY_ALLOC", "software_other", TRIAGE, "triage", "Memory of the GPU cannot be allocated"),
    (57, "CUDA_DBE", "hardware_memory", ISOLATE, "field diagnostic", "CUDA met an uncorrectable memory error"),
    (58, "MEMORY_MISMATCH", "hardware_memory", ISOLATE, "field diagnostic", "Memory gave back other content than was written"),
    (59, "CUDA_DEVICE", "software_cuda", TRIAGE, "fix", "CUDA does not find the GPU"),
    (60, "ECC_UNSUPPORTED", "hardware_memory", CONFIG, "configure", "The GPU has no ECC"),
    (61, "ECC_PENDING", "hardware_memory", MONITOR, "fix", "A change of the ECC mode waits for a reboot"),
    (62, "MEMORY_BANDWIDTH", "perf_threshold", TRIAGE, "triage", "The memory bandwidth is too low"),
    (63, "TARGET_POWER", "hardware_power", TRIAGE, "fix", "The GPU does not reach the power of the test"),
    (64, "API_FAIL", "software_other", TRIAGE, "triage", "A call failed"),
    (65, "API_FAIL_GPU", "software_other", TRIAGE, "triage", "A call failed for this GPU"),
    (66, "CUDA_CONTEXT", "software_cuda", TRIAGE, "fix", "No CUDA context can be made on this GPU"),
    (67, "DCGM_API", "internal_other", TRIAGE, "triage", "A call of DCGM failed"),
    (68, "CONCURRENT_GPUS", "software_config", CONFIG, "configure", "The test needs more than one GPU"),
    (69, "TOO_MANY_ERRORS", "software_other", MONITOR, "", "There were more errors than DCGM can report"),
    (70, "NVLINK_CRC_ERROR_THRESHOLD", "hardware_nvlink", ISOLATE, "field diagnostic", "100 or more CRC errors a second on the NVLinks, averaged over the last minute"),
    (71, "NVLINK_ERROR_CRITICAL", "hardware_nvlink", ISOLATE, "field diagnostic", "Replays or recoveries of the NVLinks"),
    (72, "ENFORCED_POWER_LIMIT", "hardware_power", CONFIG, "fix", "The power limit is too low for the test"),
    (73, "MEMORY_ALLOC_HOST", "software_other", TRIAGE, "fix", "Memory of the host cannot be allocated"),
    (74, "GPU_OP_MODE", "software_config", MONITOR, "fix", "The GPU is in an operation mode that the test cannot use"),
    (75, "NO_MEMORY_CLOCKS", "hardware_memory", MONITOR, "", "The GPU offers no memory clock that the test can use"),
    (76, "NO_GRAPHICS_CLOCKS", "hardware_other", MONITOR, "", "The GPU offers no graphics clock that the test can use"),
    (77, "HAD_TO_RESTORE_STATE", "software_other", TRIAGE, "triage", "The test had to restore the state of a GPU"),
    (78, "L1TAG_UNSUPPORTED", "software_other", CONFIG, "configure", "The GPU has no test of its L1 cache"),
    (79, "L1TAG_MISCOMPARE", "hardware_memory", ISOLATE, "field diagnostic", "The L1 cache gave back other content than was written"),
    (80, "ROW_REMAP_FAILURE", "hardware_memory", RESET, "drain and reset", "A memory row could not be remapped"),
    (81, "UNCONTAINED_ERROR", "software_xid", ISOLATE, "drain and reset", "An uncontained memory error (Xid 95)"),
    (82, "EMPTY_GPU_LIST", "software_config", CONFIG, "configure", "The test was given no GPU"),
    (83, "DBE_PENDING_PAGE_RETIREMENTS", "hardware_memory", RESET, "drain and reset", "A page with an uncorrectable error waits to be retired"),
    (84, "UNCORRECTABLE_ROW_REMAP", "hardware_memory", RESET, "", "Rows were remapped for uncorrectable errors"),
    (85, "PENDING_ROW_REMAP", "hardware_memory", RESET, "triage", "A memory row waits to be remapped"),
    (86, "BROKEN_P2P_MEMORY_DEVICE", "hardware_other", ISOLATE, "bug report", "Another GPU could not write to this one"),
    (87, "BROKEN_P2P_WRITER_DEVICE", "hardware_other", ISOLATE, "bug report", "This GPU could not write to another one"),
    (88, "NVSWITCH_NVLINK_DOWN", "hardware_nvlink", ISOLATE, "fabric", "An NVLink of an NVSwitch is down"),
    (89, "EUD_BINARY_PERMISSIONS", "software_eud", TRIAGE, "", "The extended utility diagnostic has wrong permissions"),
    (90, "EUD_NON_ROOT_USER", "software_eud", TRIAGE, "", "The extended utility diagnostic does not run as root"),
    (91, "EUD_SPAWN_FAILURE", "software_eud", TRIAGE, "", "The extended utility diagnostic could not be started"),
    (92, "EUD_TIMEOUT", "software_eud", TRIAGE, "", "The extended utility diagnostic ended in a timeout"),
    (93, "EUD_ZOMBIE", "software_eud", TRIAGE, "", "The extended utility diagnostic left a process behind"),
    (94, "EUD_NON_ZERO_EXIT_CODE", "software_eud", TRIAGE, "", "The extended utility diagnostic ended with an error"),
    (95, "EUD_TEST_FAILED", "software_eud", ISOLATE, "", "The extended utility diagnostic found a fault"),
    (96, "FILE_CREATE_PERMISSIONS", "software_config", CONFIG, "fix", "The diagnostic may not write into its folder"),
    (97, "PAUSE_RESUME_FAILED", "internal_other", TRIAGE, "", "DCGM could not be paused or resumed"),
    (98, "PCIE_H_REPLAY_VIOLATION", "hardware_pcie", ISOLATE, "", "PCIe replays on the side of the host"),
    (99, "GPU_EXPECTED_NVLINKS_UP", "hardware_nvlink", TRIAGE, "fabric", "Fewer NVLinks of the GPU are up than should be"),
    (100, "NVSWITCH_EXPECTED_NVLINKS_UP", "hardware_nvlink", TRIAGE, "fabric", "Fewer NVLinks of the NVSwitch are up than should be"),
    (101, "XID_ERROR", "software_xid", TRIAGE, "Xid", "The driver reported an Xid"),
    (102, "SBE_VIOLATION", "hardware_memory", ISOLATE, "field diagnostic", "Corrected memory errors during the test"),
    (103, "DBE_VIOLATION", "hardware_memory", ISOLATE, "field diagnostic", "Uncorrectable memory errors during the test"),
    (104, "PCIE_REPLAY_VIOLATION", "hardware_pcie", ISOLATE, "field diagnostic", "PCIe replays during the test"),
    (105, "SBE_THRESHOLD_VIOLATION", "hardware_memory", ISOLATE, "field diagnostic", "Too many corrected memory errors during the test"),
    (106, "DBE_THRESHOLD_VIOLATION", "hardware_memory", ISOLATE, "field diagnostic", "Too many uncorrectable memory errors during the test"),
    (107, "PCIE_REPLAY_THRESHOLD_VIOLATION", "hardware_pcie", ISOLATE, "field diagnostic", "Too many PCIe replays during the test"),
    (108, "CUDA_FM_NOT_INITIALIZED", "software_cuda", MONITOR, "fabric", "The fabric manager is not ready"),
    (109, "SXID_ERROR", "software_xid", ISOLATE, "triage", "A fatal SXid"),
    (110, "GFLOPS_THRESHOLD_VIOLATION", "perf_violation", TRIAGE, "fix", "The GPU computes more slowly than the others"),
    (111, "NAN_VALUE", "hardware_memory", ISOLATE, "field diagnostic", "The GPU computed values that are no numbers"),
    (112, "FABRIC_MANAGER_TRAINING_ERROR", "software_cuda", CONFIG, "fabric", "The fabric could not be trained"),
    (113, "BROKEN_P2P_PCIE_MEMORY_DEVICE", "hardware_pcie", ISOLATE, "bug report", "Another GPU could not write to this one over PCIe"),
    (114, "BROKEN_P2P_PCIE_WRITER_DEVICE", "hardware_pcie", ISOLATE, "bug report", "This GPU could not write to another one over PCIe"),
    (115, "BROKEN_P2P_NVLINK_MEMORY_DEVICE", "hardware_nvlink", ISOLATE, "bug report", "Another GPU could not write to this one over NVLink"),
    (116, "BROKEN_P2P_NVLINK_WRITER_DEVICE", "hardware_nvlink", ISOLATE, "bug report", "This GPU could not write to another one over NVLink"),
    (117, "TEST_SKIPPED", "software_config", CONFIG, "", "The test was skipped"),
    (118, "SRAM_THRESHOLD", "hardware_memory", ISOLATE, "fix", "The SRAM error threshold is exceeded"),
    (119, "NVLINK_EFFECTIVE_BER_THRESHOLD", "hardware_nvlink", ISOLATE, "field diagnostic", "The effective bit error rate of the NVLinks is above 1e-12"),
    (120, "FALLEN_OFF_BUS", "hardware_other", ISOLATE, "reconnect", "The GPU has fallen off the bus (Xid 79)"),
    (121, "NVLINK_SYMBOL_BER_THRESHOLD", "hardware_nvlink", ISOLATE, "field diagnostic", "The symbol bit error rate of the NVLinks is too high"),
    (122, "IMEX_UNHEALTHY", "software_other", ISOLATE, "fix", "IMEX, which joins nodes over NVLink, is down or degraded"),
    (123, "FABRIC_PROBE_STATE", "hardware_nvlink", MONITOR, "fabric", "The GPU is not registered with the fabric"),
    (124, "BINARY_PERMISSIONS", "software_other", TRIAGE, "", "A program of DCGM has wrong permissions"),
    (125, "GPU_RECOVERY_RESET", "hardware_other", RESET, "drain and reset", "The driver asks for a reset of the GPU"),
    (126, "GPU_RECOVERY_REBOOT", "hardware_other", ISOLATE, "drain and reset", "The driver asks for a reboot"),
    (127, "GPU_RECOVERY_DRAIN_P2P", "hardware_other", RESET, "fix", "The driver asks for the end of peer-to-peer traffic"),
    (128, "GPU_RECOVERY_DRAIN_RESET", "hardware_other", RESET, "drain and reset", "The driver asks for a drain and a reset: the GPU works below its capacity"),
    (129, "NCCL_ERROR", "hardware_other", RESET, "drain and reset", "NCCL failed"),
    (130, "RETEST_REQUESTED", "software_other", TRIAGE, "", "The test must be run again"),
    (131, "CONTAINED_ERROR", "software_xid", MONITOR, "restart application", "A contained memory error (Xid 94)"),
    (132, "UNCORRECTABLE_ROW_REMAP_LIMIT", "hardware_memory", TRIAGE, "field diagnostic", "512 or more rows were remapped for uncorrectable errors"),
)  # fmt: skip

_SXID = "the kernel log has the number of the SXid; without such a line a finding of its own, a warning if it is older than our connection"
_LATCHED = "the Xid decides; kept by the engine until it is restarted, so old ones come back with every connection"
_CUMULATIVE = "one replay within a minute makes it, and before Blackwell any since the driver was loaded, for ever; ours counts those of ten minutes"
_BIT_ERRORS = "a raw value of 0 counts as bad to DCGM; what a bad link does to work shows in replays, recoveries and links that go down"
_RESTARTED = "a counter that starts again (a reset, a driver loaded again) makes it too, for a minute"

# Code: at worst, advice, our condition, note. These come from passive health checks.
_PASSIVE: dict[int, tuple[Health, Advice, str, str]] = {
    3: (WARNING, A.INSPECT_HARDWARE, "pcie_replay_rate", f"our condition needs minutes of it; {_RESTARTED}"),
    4: (FAILURE, A.RESET_GPU, "ecc_uncorrectable", "a warning if the driver contained the errors, which only our condition shows"),
    6: (WARNING, A.RESET_GPU, "retired_pages", ""),
    7: (FAILURE, A.CONTACT_SUPPORT, "retired_pages", ""),
    8: (FAILURE, A.CONTACT_SUPPORT, "retired_pages", ""),
    9: (WARNING, A.CONTACT_SUPPORT, "inforom_invalid", ""),
    10: (HEALTHY, A.NONE, "thermal_slowdown", "recorded only: one nanosecond of slowdown within a minute makes it. Counts while thermal_slowdown holds by our own reading (the hardware slowdown, 6 of 10 minutes)"),
    11: (WARNING, A.RESTART_SERVICE, "", "of all GPUs at once: after an Xid 119 the engine reads nothing more; restart nvidia-dcgm"),
    12: (HEALTHY, A.NONE, "power_brake", "recorded only: one nanosecond below the power limit within a minute makes it, which is normal under load. Counts while power_brake holds by our own reading (6 of 10 minutes)"),
    13: (WARNING, A.OBSERVE, "nvlink_errors", "one CRC error within a minute makes it"),
    14: (FAILURE, A.RESET_GPU, "nvlink_down", "one incident for each link, whose number is only in the text; not with MIG. Nothing of a GPU that never had an active link, a warning for a link that never was"),
    15: (FAILURE, A.REBOOT, "sxid", _SXID),
    16: (WARNING, A.OBSERVE, "sxid", _SXID),
    33: (FAILURE, A.RESTART_SERVICE, "fabric_unhealthy", "of a ConnectX adapter it is about the adapter, not the fabric. A warning where our own reading is limited capacity (degraded bandwidth, route recovery)"),
    36: (FAILURE, A.INSPECT_HARDWARE, "", "of a CPU: 10 at the warning limit, 20 at the critical one"),
    52: (FAILURE, A.CONTACT_SUPPORT, "", "the driver's flag for memory that cannot be repaired, which NVML gives from 13.5 on: memory_unrepairable"),
    70: (WARNING, A.INSPECT_HARDWARE, "nvlink_errors", f"they were all replayed; a link that fails goes down; {_RESTARTED}"),
    71: (WARNING, A.OBSERVE, "nvlink_errors", _CUMULATIVE),
    80: (FAILURE, A.CONTACT_SUPPORT, "row_remap_failed", "the text can name a wrong GPU"),
    81: (FAILURE, A.RESET_GPU, "xid", _LATCHED),
    101: (FAILURE, A.RESET_GPU, "xid", _LATCHED),
    119: (WARNING, A.OBSERVE, "nvlink_errors", _BIT_ERRORS),
    120: (FAILURE, A.REBOOT, "xid", f"{_LATCHED}. That the GPU is gone is seen on the bus and by its status"),
    121: (WARNING, A.OBSERVE, "nvlink_errors", _BIT_ERRORS),
    122: (WARNING, A.RESTART_SERVICE, "", "only where GPUs belong to an NVLink domain of several nodes and this host runs IMEX itself; also while its daemon starts; work on only this node continues"),
    123: (FAILURE, A.RESTART_SERVICE, "fabric_unhealthy", "10 while the registration is in progress"),
    125: (FAILURE, A.RESET_GPU, "gpu_recovery_action", ""),
    126: (FAILURE, A.REBOOT, "gpu_recovery_action", ""),
    127: (WARNING, A.RESTART_APP, "gpu_recovery_action", ""),
    128: (FAILURE, A.RESET_GPU, "gpu_recovery_action", ""),
    131: (WARNING, A.RESTART_APP, "xid", _LATCHED),
    132: (WARNING, A.CONTACT_SUPPORT, "", "the row remapper still has spare rows, else it would be row_remap_failed"),
}  # fmt: skip

TWO_PASSES = 15.0
_LINK_TRAINS = 60.0 + TWO_PASSES
# Seconds for which DCGM alone must report an incident, if not a minute. DCGM looks back one minute for counter growth,
# so it reports a single error for a minute. A retraining link is down for at most a minute, and DCGM reports it for one
# more pass. NVML may lack a reading for long, for example after an upgrade of its library.
_LASTS: dict[int, float] = {
    3: 240.0, 10: math.inf, 11: 120.0, 12: math.inf, 13: 600.0, 14: _LINK_TRAINS, 15: TWO_PASSES, 52: TWO_PASSES, 70: 180.0, 71: math.inf,
    119: 600.0, 121: 600.0, 122: 120.0,
}  # fmt: skip

# gpuwarden conditions for codes that only a diagnostic reports.
_HOMES: dict[str, tuple[int, ...]] = {
    "ecc_uncorrectable": (57, 103, 106),
    "ecc_correctable_rate": (5, 102, 105),
    "row_remap_pending": (85,),
    "retired_pages": (83,),
    "sram_threshold": (118,),
    "pcie_link_degraded": (45, 46),
    "pcie_replay_rate": (98, 104, 107),
    "nvlink_down": (99,),
    "fabric_unhealthy": (108, 112),
    "thermal_slowdown": (40, 41),
    "thermal_limit": (42,),
    "sxid": (109,),
}  # fmt: skip
_MILD_HOMES = ("ecc_correctable_rate", "row_remap_pending", "pcie_replay_rate", "pcie_link_degraded")
"""gpuwarden conditions that only warn."""


def _catalogue() -> Iterator[DcgmCode]:
    homes = {code: condition for condition, codes in _HOMES.items() for code in codes}
    for code, name, category, severity, action, meaning in _ROWS:
        text, usual_advice = _ACTIONS[action]
        agrees, note, advice = homes.get(code, ""), "", usual_advice
        serious = severity in (ISOLATE, RESET) and category.startswith("hardware") and agrees not in _MILD_HOMES
        worst = FAILURE if serious else WARNING if code else HEALTHY
        basis = "from the vendor's severity"
        if code in _PASSIVE:
            worst, advice, agrees, note = _PASSIVE[code]
            basis = "our decision"
        yield DcgmCode(
            code=code,
            name=name,
            meaning=meaning,
            category=category,
            severity=severity,
            action=text,
            worst=worst,
            advice=advice,
            agrees=agrees,
            passive=code in _PASSIVE,
            lasts=_LASTS.get(code, 60.0),
            note=note or ("" if code in _PASSIVE else "only from a diagnostic (dcgmi diag)"),
            provenance=f"dcgm_errors.h of DCGM 4.6.0; class: {basis}",
        )


DCGM_CODES: dict[int, DcgmCode] = {row.code: row for row in _catalogue()}

_BY_NAME = {row.name: row for row in DCGM_CODES.values()}
_NAMED = re.compile(r"(?:dcgm_fr_|dcgm[_ ])?(?:(?:code_)?(\d{1,9})|([a-z0-9_]{1,64}))", re.ASCII)


def dcgm_named(text: str) -> DcgmCode | None:
    """Return the row for a number, a name, or the code of a finding: `4`, `dcgm 4`, `DCGM_FR_FAULTY_MEMORY`,
    `dcgm_faulty_memory`, `dcgm_code_200`. Every number has a row; None for an unknown name.
    """
    text = text.strip().lower()
    match = _NAMED.fullmatch(text)
    if text.upper() in _BY_NAME or match is None:
        return _BY_NAME.get(text.upper())  # DCGM_API is itself the name of a code
    return dcgm_row(int(match[1])) if match[1] else _BY_NAME.get(match[2].upper())


def judged(row: DcgmCode) -> str:
    """Return a sentence on how an incident with this code is judged."""
    if row.agrees in ("xid", "sxid"):
        return f"The number of the {row.agrees} decides, under the condition {row.agrees}: see the note."
    where = f"evidence of {row.agrees}" if row.agrees else f"a finding of its own, {row.condition}"
    if row.worst is HEALTHY:
        return f"At worst healthy: it is {where}, and never a finding by itself." if row.agrees else "Healthy."
    alone = "never counts" if row.lasts == math.inf else f"counts after {row.lasts:g} s"
    return f"At worst a {row.worst.value}: it is {where}; DCGM alone {alone}."


_REPORTED = {0: HEALTHY, 10: WARNING, 20: FAILURE}  # dcgm_structs.h: DCGM_HEALTH_RESULT_*
_ORDER = (HEALTHY, WARNING, FAILURE)


def dcgm_row(code: int) -> DcgmCode:
    """Return the row of a code. An unknown code is a warning, never dropped."""
    listed = DCGM_CODES.get(code)
    return listed or DcgmCode(
        code=code,
        name=f"CODE_{code}",
        meaning="not described up to DCGM 4.6",
        category="none",
        severity=UNKNOWN,
        action="",
        worst=WARNING,
        advice=Advice.CONTACT_SUPPORT,
        provenance="unknown codes are warnings",
    )


def incident_health(code: int, reported: int) -> Health:
    """Return the severity of an incident: that of `reported` (DCGM's 0, 10 or 20), limited to the worst in the table.

    An undefined number is taken as a warning. Any incident with an unknown code is a warning.
    """
    if code not in DCGM_CODES:
        return WARNING
    return min(_REPORTED.get(reported, WARNING), dcgm_row(code).worst, key=_ORDER.index)
