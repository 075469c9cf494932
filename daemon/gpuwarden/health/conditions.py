"""The table of conditions, one row each. The judge interprets the rows.

`rise`: seconds a condition must be seen before it is a finding. `fall`: seconds it must be examined and not seen before
the finding ends. `history`: seconds of counters required for "not seen", so that a restart ends nothing. `latch`: what
else must be done. `depends_on`: while one of these holds for the same GPU or the node, this one is a silenced
consequence. `detectors.py` defines the readings behind each condition.
"""

from __future__ import annotations

from gpuwarden.features import parts
from gpuwarden.health.condition import NO_DRIVER, NO_GPU, Condition, F, W
from gpuwarden.health.dcgm.conditions import DCGM_CONDITIONS, dcgm_condition
from gpuwarden.health.gpu.conditions import GPU_CONDITIONS
from gpuwarden.health.host.conditions import HOST_CONDITIONS, plugin_condition
from gpuwarden.health.kernel_lines.conditions import LINE_CONDITIONS
from gpuwarden.health.model import Advice, Latch

_ROWS: tuple[Condition, ...] = (
    # --- the driver and the GPUs as a whole
    Condition(
        code="gpu_missing", scope="gpu", severity=F, advice=Advice.INSPECT_HARDWARE, fall=10,
        title="A GPU that belongs in this machine is gone",
        why="The most important finding there is, and often the only sign: most GPUs that fall off the bus leave no "
        "numeric precursor, they just disappear. What the PCI bus shows counts at "
        "once, what only NVML shows after 30 s and two passes, which a driver reload, a reset or a MIG change takes: docs/reference/conditions.md has each sign with its seconds.",
        source="GWDG 2026 (7 GPUs that fell off the bus, almost no precursor); dcgm-exporter#348 and gpud#591 (peers that miss it)",
    ),
    Condition(
        code="inventory_incomplete", scope="node", severity=W, advice=Advice.CONTACT_SUPPORT, fall=10,
        title="This machine has fewer GPUs than its type",
        why="From the first sight on: the type of machine that the firmware names (EC2), or the metadata service (Azure, Google), has more GPUs than "
        "were ever seen here, or the numbers of the modules on the baseboard have a gap. GPUs of other owners (vfio) and those that were "
        "given up are not missed; where inventory.expected_gpus is set that alone counts, and machines of other types need it: of "
        "them only such a gap is found. Return the machine to its maker or cloud.",
        source="aws/eks-node-monitoring-agent#121 (3 of 4 GPUs from the first boot, every tool green); health/machine_types.py; nvml.h: "
        "nvmlDeviceGetModuleId", depends_on=NO_DRIVER,
    ),
    Condition(
        code="driver_unresponsive", scope="node", severity=F, advice=Advice.REBOOT, fall=30,
        title="The NVIDIA driver does not answer",
        why="NVML missed two deadlines and did not answer for 20 s; or one deadline together with Xid 119, 120 or 175 (the GPU "
        "system processor is gone) or with a reader stuck in the kernel. The finding names the GPU and the call that did not return. Jobs that touch the driver hang too. "
        "If all other GPUs answer, the one is gpu_unresponsive instead.",
        source="Delta study (Xid 119/120 leave 99 % of GPUs unusable); a hung DCGM engine blocks its callers for 60 s (measured, 4.6)",
    ),
    Condition(
        code="driver_slow", scope="node", severity=W, advice=Advice.REBOOT, rise=600, fall=600,
        title="The NVIDIA driver answers more slowly than it did",
        why="For 10 minutes the passes over the GPUs, one every 5 s, each take 1.5 s longer than the median of the first 24 since the boot, or since the daemon "
        "started. Time in which the reader waits for a processor does not count, so that a busy host makes no driver slow, nor does a GPU that is gpu_unresponsive. The finding names "
        "the GPU that took longest. A driver that was as slow when gpuwarden started is not noticed; one that no longer answers is driver_unresponsive.",
        source="own choice: no public incident has it with numbers; nvml.h gives no call a time limit", depends_on=NO_DRIVER,
    ),
    Condition(
        code="driver_not_loaded", scope="node", severity=F, advice=Advice.RESTART_SERVICE, rise=120, fall=10,
        title="No GPU can be used: the NVIDIA driver is not loaded",
        why="NVML lists no GPU while the PCI bus has some. A driver reload takes less than 2 minutes and a slow boot less "
        "than 10: until then the node is unknown.",
        source="nvml.h: NVML_ERROR_DRIVER_NOT_LOADED; DCGM 4.6 calls an empty host healthy (measured)",
    ),
    Condition(
        code="driver_library_mismatch", scope="node", severity=F, advice=Advice.REBOOT, fall=10, jobs_go_on=True,
        title="The NVML library and the loaded driver have different versions",
        why="The packages were upgraded under a loaded driver. Running jobs continue; new ones fail to start until the "
        "module is reloaded. The GPUs cannot be read meanwhile. A warning at first, since an upgrade ends with a reload of the driver; a failure "
        "after 10 minutes on a host. In a container the library is the container's: it stays a warning.",
        source="nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH; mozilla/translations#1167 (50 tasks failed on such a node)",
    ),
    Condition(
        code="device_permission", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, fall=10,
        title="The daemon may not open the GPUs",
        why="NVML refuses for lack of permission, or fails without a reason while device files of the driver may not be opened: a "
        "matter of the unit's device rules or of its user, not of the GPUs, which are unknown meanwhile.",
        source="nvml.h: NVML_ERROR_NO_PERMISSION; access(2) on /dev/nvidiactl and /dev/nvidiaN, which a unit's DeviceAllow answers, too",
    ),
    Condition(
        code="nvml_unavailable", scope="node", severity=F, advice=Advice.OBSERVE, rise=30, fall=10,
        title="NVML fails",
        why="The library answers with an error, or every GPU with an unknown one while the bus has them all and no kernel line says why; "
        "or the process that reads it dies. The GPUs are unknown meanwhile. A warning; unknown errors (999) that last for 10 minutes on a host, not "
        "in a container, are a failure: the device files can be opened, but the driver does not work.",
        source="own rule: a failing reader is reported, never taken for health; NVIDIA/nvidia-docker#1730 (a container that lost its device files)",
        depends_on=NO_DRIVER,
    ),
    Condition(
        code="gpu_unresponsive", scope="gpu", severity=F, advice=Advice.RESET_GPU, rise=30, fall=30,
        title="A GPU does not answer the driver",
        why="NVML lists it, but every query ends in a timeout or an unknown error for 30 s and two passes; or a call about it did not return within the "
        "deadline in two processes, after 20 s, or in one that sleeps in the kernel, at once. The finding names the call. Such a GPU is read last "
        "or, for growing periods, not at all, so that the others are judged meanwhile.",
        source="nvml.h: NVML_ERROR_TIMEOUT, NVML_ERROR_UNKNOWN", depends_on=NO_GPU,
    ),
    Condition(
        code="gpu_reset_required", scope="gpu", severity=F, advice=Advice.RESET_GPU, rise=5, fall=10,
        title="A GPU needs a reset before it can be used again",
        why="The driver answers RESET_REQUIRED, in two passes: no new work can start on this GPU.",
        source="nvml.h: NVML_ERROR_RESET_REQUIRED", depends_on=NO_GPU,
    ),
    Condition(
        code="gpu_readings_lost", scope="gpu", severity=F, advice=Advice.RESET_GPU, fall=60,
        title="A GPU no longer answers what it used to answer",
        why="Two of temperature, memory, power, performance state and utilization answered since the boot and end with an unknown error in "
        "every pass for 2 minutes, while another GPU of this name answers them. One alone warns. What is not supported or not permitted "
        "is not lost.",
        source="nvml.h: NVML_ERROR_UNKNOWN; awslabs/amazon-eks-ami#1523 (a GPU that was dead for all but a few readings)",
        depends_on=(*NO_GPU, "gpu_unresponsive", "gpu_reset_required"),
    ),
    Condition(
        code="gpu_recovery_action", scope="gpu", severity=F, advice=Advice.RESET_GPU, fall=10,
        title="The driver asks for a recovery action",
        why="The driver's own verdict about the GPU, and the level behind Xid 154. Drain P2P warns, all others fail. "
        "Drain and reset takes the node out after its jobs, which are safe.",
        source="nvml.h: nvmlDeviceGpuRecoveryAction_t; DCGM 4.6 has no incident for 5 to 7 (measured)", depends_on=NO_GPU,
    ),
    # --- momentary events
    Condition(
        code="xid", scope="gpu", severity=F, advice=Advice.RESET_GPU, fall=3600, latch=Latch.RESET,
        title="The driver reported an Xid",
        why="Class and advice come from the Xid table. A failure stays until the GPU is reset, the node reboots or an "
        "operator acknowledges it; a warning ends an hour after the last one. A reset while gpuwarden was stopped is known only where the "
        "driver had asked for it (gpu_recovery_action): after any other, gpuwarden ack.",
        source="NVIDIA Xid catalogue; docs/reference/xids.md",
    ),
    Condition(
        code="sxid", scope="switch", severity=F, advice=Advice.REBOOT, fall=3600, latch=Latch.REBOOT,
        title="The driver reported an NVSwitch error (SXid)",
        why="The severity in the line wins over the SXid table. A non-fatal line of an error that can stop a GPU warns at first, and "
        "fails if it comes again at the same port or a GPU suffers within ten minutes. A failure stays until the node reboots "
        "or an operator acknowledges it.",
        source="NVIDIA Fabric Manager user guide, SXid lists; imbue-ai/cluster-health (what healthy hosts print)",
    ),
    Condition(
        code="pcie_aer_fatal", scope="gpu", severity=W, advice=Advice.INSPECT_HARDWARE, fall=3600,
        title="A fatal PCIe error on the way to a GPU or a network adapter",
        why="The kernel reported an uncorrectable fatal error and resets the link; or, after an error of any severity, that a GPU or the "
        "device behind a port above one could not be recovered. PCIe errors go along with half of all Xid 79; alone, while the GPU answers, they warn.",
        source="Meta RSC study (PCIe errors go along with 43 % and 63 % of Xid 79); Linux, drivers/pci/pcie/err.c; rwth-i6/returnn#1500",
        depends_on=NO_GPU,
    ),
    # --- memory
    Condition(
        code="ecc_uncorrectable", scope="gpu", severity=F, advice=Advice.RESET_GPU, fall=10,
        title="Uncorrectable memory errors",
        why="Volatile uncorrected errors since the driver was loaded. A warning only if the driver contained them (Xid 94, "
        "no 48, 95 or 140, none in SRAM): then the application died, the GPU continues, and the row is remapped at reset.",
        source="DCGM_FR_VOLATILE_DBE_DETECTED; NVIDIA GPU memory error management", depends_on=NO_GPU,
    ),
    Condition(
        code="ecc_correctable_rate", scope="gpu", severity=W, advice=Advice.OBSERVE, fall=3600, history=3600,
        title="Many corrected memory errors",
        why="At least 1,000 in an hour. By the million, or while rows are remapped for them: memory_degrading.",
        source="own choice: 5 % of GPUs ever log one, a bad one logged 1e5 in a day (study of 10,693 Ampere GPUs)",
        depends_on=NO_GPU,
    ),
    Condition(
        code="row_remap_failed", scope="gpu", severity=F, advice=Advice.CONTACT_SUPPORT, fall=10,
        title="A memory row could not be remapped",
        why="The spare rows of a bank are used up or remapping failed: the GPU is a case for replacement.",
        source="nvml.h: nvmlDeviceGetRemappedRows; DCGM_FR_ROW_REMAP_FAILURE", depends_on=NO_GPU,
    ),
    Condition(
        code="row_remap_pending", scope="gpu", severity=W, advice=Advice.RESET_GPU, fall=10,
        title="A memory row waits to be remapped",
        why="The remapping is done at the next GPU reset; until then the page is only set aside. After 7 days: row_remap_overdue.",
        source="nvml.h: nvmlDeviceGetRemappedRows; NVIDIA GPU memory error management", depends_on=NO_GPU,
    ),
    Condition(
        code="sram_threshold", scope="gpu", severity=F, advice=Advice.CONTACT_SUPPORT, fall=10,
        title="The SRAM error threshold is exceeded",
        why="The driver's own flag for uncorrectable errors over the board's life: a case for replacement, also while it is quiet.",
        source="nvml.h: nvmlEccSramErrorStatus_t.bThresholdExceeded; NVIDIA GPU memory error management, awslabs (replace)",
        depends_on=NO_GPU,
    ),
    Condition(
        code="retired_pages", scope="gpu", severity=F, advice=Advice.RESET_GPU, fall=10,
        title="Memory pages retired",
        why="Pending pages warn until the next reset; from 63 pages on the GPU is a case for replacement. Volta and older.",
        source="DCGM_FR_RETIRED_PAGES_LIMIT, DCGM_FR_PENDING_PAGE_RETIREMENTS", depends_on=NO_GPU,
    ),
    Condition(
        code="inforom_invalid", scope="gpu", severity=W, advice=Advice.CONTACT_SUPPORT, fall=10,
        title="The InfoROM of a GPU is corrupt",
        why="Board configuration and error records are stored there.",
        source="nvml.h: nvmlDeviceValidateInforom; DCGM_FR_CORRUPT_INFOROM", depends_on=NO_GPU,
    ),
    # --- NVLink
    Condition(
        code="nvlink_down", scope="link", severity=F, advice=Advice.RESET_GPU, rise=60, fall=60,
        title="An NVLink is down",
        why="The link was active on this board before and is not now, or the driver does not list it any more, for a minute (5 minutes after a boot, or if all links are down "
        "together and did not go down under a process, as in a reset): jobs over several GPUs fail or crawl. Links that are not listed only warn while no GPU of the name has an active one, since NVLink may be off on purpose. A GPU that never had an active link has none to miss, whatever DCGM reports; "
        "a single one among siblings with all of theirs is nvlink_never_up. Give up links that were taken away on purpose with gpuwarden inventory accept.",
        source="DCGM_FR_NVLINK_DOWN; the minute is what a GPU reset and link training take; NVIDIA/NVSentinel#1481 (a card without "
        "a bridge), #1701 (links that train after a boot)", depends_on=(*NO_GPU, "gpu_reset_required"),
    ),
    Condition(
        code="nvlink_never_up", scope="gpu", severity=W, advice=Advice.INSPECT_HARDWARE, rise=600, fall=60,
        title="A GPU has no NVLink though its siblings have all of theirs",
        why="For 10 minutes: none of its links was ever active on this board here, MIG is off, and four or more GPUs of the same name and part "
        "number have all links that they ever had. Jobs over several GPUs fail or crawl on it. Cards that are bridged to each other are not "
        "compared, and neither are two or more GPUs without links.",
        source="NVIDIA/DCGM#198 (all links down, diagnostics pass), NVIDIA/NVSentinel#1481 (a card without a bridge is healthy); siblings: own choice",
        depends_on=(*NO_GPU, "gpu_reset_required", "fabric_unhealthy"),
    ),
    Condition(
        code="nvlink_errors", scope="gpu", severity=F, advice=Advice.INSPECT_HARDWARE, fall=600, history=600, jobs_go_on=True,
        title="NVLink errors keep coming",
        why="At least 10 replays and recoveries within 10 minutes, by the driver's sums or by the counters of the links. A failure where they come all the time, 5 a second or more in each third of "
        "10 minutes: the link does little else, and the node is taken out after its jobs.",
        source="own choice; DCGM fails a GPU at the first one, which a retraining link gives too (DCGM_FR_NVLINK_ERROR_CRITICAL)",
        depends_on=(*NO_GPU, "nvlink_down"),
    ),
    Condition(
        code="nvlink_link_errors", scope="link", severity=W, advice=Advice.INSPECT_HARDWARE, fall=3600,
        title="One NVLink has errors again and again, its siblings have none",
        why="It replays or recovers in more stretches of ten minutes than chance allows (1 in 10,000,000,000) if all NVLinks of the GPUs of this name "
        "were alike, in three hours of the last 24; or twice again where it had counted 20 times what all others did together before gpuwarden first read it. "
        "Links that grow together, and what comes in the first 5 minutes after a boot or with a reset, do not count. It ends a day "
        "after the errors do.",
        source="marin-community/marin#9086 (one of 5,760 links recovered 505 times, nine times an hour, and died five days later with a job of a rack); "
        "fewer than one false warning in four months on 8,000 nodes of 144 links",
        depends_on=(*NO_GPU, "nvlink_down"),
    ),
    Condition(
        code="fabric_unhealthy", scope="gpu", severity=F, advice=Advice.RESTART_SERVICE, fall=30,
        title="A GPU is not healthy in the NVLink fabric",
        why="Registration with the fabric manager failed or did not finish within 5 minutes, or the health mask reports a "
        "fault, or the driver's summary of it is unhealthy, for a minute. Degraded bandwidth and routes under recovery are limited "
        "capacity by the driver's summary and warn: the GPU works, and a switch that is out does this to all GPUs of a rack. A global fabric "
        "manager that is disconnected for 5 minutes warns, too. A GPU without a partition fails: the driver lets it reach no other GPU over NVLink.",
        source="nvml.h: nvmlGpuFabricInfoV_t; DCGM_FR_FIELD_VIOLATION, DCGM_FR_FABRIC_PROBE_STATE; NVIDIA open kernel modules 595.45.04 "
        "(nvlinkGetFabricHealthSummary), NMX-M partition health (degraded bandwidth is operational)", depends_on=NO_GPU,
    ),
    # --- PCIe
    Condition(
        code="pcie_link_degraded", scope="gpu", severity=W, advice=Advice.INSPECT_HARDWARE, rise=240, fall=60,
        title="The PCIe link is narrower or slower than it can be",
        why="Fewer lanes than card and slot allow; or a lower generation while the GPU is busy. For 4 minutes. Where the board splits "
        "the lanes of its slots, gpuwarden inventory accept takes the width.",
        source="nvml.h: nvmlDeviceGetMaxPcieLinkWidth; debounce of minutes: Minder (4 min continuity)", depends_on=NO_GPU,
    ),
    Condition(
        code="pcie_replay_rate", scope="gpu", severity=W, advice=Advice.INSPECT_HARDWARE, rise=120, fall=300, history=60,
        title="Many PCIe replays",
        why="More than the specified bit error rate allows for this link, for minutes.",
        source="DCGM_FR_PCI_REPLAY_RATE", depends_on=NO_GPU,
    ),
    # --- heat and power
    Condition(
        code="thermal_limit", scope="gpu", severity=F, advice=Advice.INSPECT_HARDWARE, rise=120, fall=120,
        title="A GPU is beyond its temperature limit",
        why="At or above the slowdown point or the memory's limit for 2 minutes; a failure at the shutdown point. The thermal margin "
        "counts from the board's slowdown offset on (H100: -2): at 0 the GPU is at its highest operating temperature, and healthy.",
        source="nvml.h: nvmlDeviceGetTemperatureThreshold; NVIDIA/NVSentinel ADR-042 (offsets); debounce of minutes: Minder (4 min "
        "continuity)", depends_on=NO_GPU,
    ),
    Condition(
        code="thermal_slowdown", scope="gpu", severity=W, advice=Advice.INSPECT_HARDWARE, fall=300, history=360,
        title="A GPU is slowed down by heat",
        why="The hardware thermal slowdown was active for 6 of the last 10 minutes.",
        source="nvml.h: NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN; the share: gpud's hw-slowdown rule", depends_on=NO_GPU,
    ),
    Condition(
        code="power_brake", scope="gpu", severity=F, advice=Advice.INSPECT_HARDWARE, fall=300, history=360, jobs_go_on=True,
        title="A GPU is slowed down by the external power brake",
        why="The power brake was active for 6 of the last 10 minutes: inspect the power supplies of the chassis. A failure where for 9 of "
        "them the GPU was at work at 30 % of its maximum clock or less: the node is taken out after its jobs. Many nodes at once, or the "
        "same places in each, are the data centre's power.",
        source="nvml.h: NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN; the share: gpud's hw-slowdown rule; "
        "NVIDIA/NVSentinel#1666 (9 of 288 nodes braked for 36 h)", depends_on=NO_GPU,
    ),
    # --- settings
    Condition(
        code="gpu_misconfigured", scope="gpu", severity=W, advice=Advice.FIX_CONFIGURATION, rise=600, fall=60,
        title="The settings of a GPU differ from those of its siblings, or let no job start",
        why="For 10 minutes its ECC mode (now or pending), VBIOS, highest PCIe generation or width or GSP mode differs from that of the "
        "GPUs of its name and part number: of one in four at most, from four GPUs on. What jobs set (power limit, application clocks, MIG, "
        "persistence mode, compute mode) counts after 24 hours without a job on the GPU, or after 10 minutes where [expected] names it. A setting that "
        "all of them share is taken as intended, except for compute mode 2 (prohibited) and for confidential computing "
        "without the ready state, with which no job can start. gpuwarden inventory accept takes one that is meant.",
        source="stackhpc/ansible-slurm-appliance#975, leptonai/gpud#1322 (alike on all GPUs of a node: healthy); Verda (ECC consistency); "
        "imbue-ai/cluster-health (VBIOS, GSP); nvml.h: nvmlComputeMode_t, nvmlSystemGetConfComputeGpusReadyState", depends_on=NO_GPU,
    ),
    # --- the daemon itself
    Condition(
        code="ledger_unavailable", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, fall=10,
        title="The ledger cannot be read or written",
        why="Judging and publishing continue; events from now on may be lost at the next restart. gpuwarden check, which reads it, "
        "does not find what the daemon has latched: run it as root.",
        source="own rule: a daemon that cannot keep its history reports it",
    ),
    Condition(
        code="collector_failed", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, rise=30, fall=10,
        title="A source cannot be read",
        why="It exists on this host, but reading it fails: faults that only this source shows are not seen meanwhile.",
        source="own rule: a failing reader is reported, never taken for health",
    ),
    Condition(
        code="output_failed", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, fall=10,
        title="gpuwarden cannot write its files or serve its sockets",
        why="The verdict file, the notice for jobs or its socket, the socket for operators, or the files for Slurm's scripts: the run directory is full or "
        "read-only, or belongs to another user. Their readers get old content, or none. They are made again as soon as they can be. "
        "Heartbeat and metrics are served meanwhile, unless it is their port that another process has.",
        source="own rule: a daemon that cannot publish reports it where it still can",
    ),
    Condition(
        code="actuator_refused", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, fall=10,
        title="A scheduler refuses an action of gpuwarden",
        why="For lack of permission, or because it has no such node. Until that is fixed a failing node keeps getting "
        "work; retries follow after a minute, then less often, down to once an hour.",
        source="Slurm 22.05: an update of a node needs root, SlurmUser or an Administrator of slurmdbd (measured)",
    ),
    Condition(
        code="actuator_unreachable", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, rise=600, fall=10,
        title="Scheduler unreachable for 10 min while an action is pending",
        why="It is down, does not accept gpuwarden's token, or has no such node. A node that is to be excluded keeps getting work, or one "
        "that is excluded stays so; the action is retried all the time.",
        source="own rule: an action that is pending and cannot be done is reported",
    ),
    Condition(
        code="exclusion_stuck", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, rise=600, fall=10,
        title="Excluded by gpuwarden for 10 min though nothing is wrong",
        why="The scheduler shows an exclusion of gpuwarden's that is not in the ledger, or to whose reason a person or the scheduler "
        "added something. gpuwarden does not lift it by itself, so that the node would stay out unnoticed.",
        source="own rule: a healthy node that only a person brings back is reported",
    ),
    Condition(
        code="notification_refused", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, fall=10,
        title="A notification target does not accept notifications",
        why="It refuses the credentials, redirects, is not trusted or does not exist. Notifications are kept in memory and retried, "
        "within bounds: of what changes in the meantime only the latest state.",
        source="own rule: a notification that is not delivered is worse than none",
    ),
    Condition(
        code="web_config_faulty", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, fall=10,
        title="The web configuration has a fault, or its certificate is about to expire",
        why="What was read before stays in force, so that scrapes continue; but a removed user can still log in, and a "
        "certificate that expires ends every scrape. At a start nothing was read before: nothing is served. It is read again automatically "
        "once it is corrected.",
        source="own rule: expiry is reported 7 days before, or a tenth of the certificate's life if that is less",
    ),
    Condition(
        code="feature_failed", scope="node", severity=W, advice=Advice.CONTACT_SUPPORT, rise=30, fall=10,
        title="A feature of gpuwarden fails",
        why="An internal error of a feature, such as the evacuation, the test before a return, or the answers to Slurm's scripts. The GPUs are still watched, "
        "and failures still exclude the node. What the feature wrote last stays. If it may demand something before a return, the node does not return by itself.",
        source="own rule: a bug in a feature is reported, and costs the node nothing else",
    ),
    Condition(
        code="config_faulty", scope="node", severity=W, advice=Advice.FIX_CONFIGURATION, fall=10,
        title="The configuration has a fault; the last good one is in force",
        why="The service was started while a file of the configuration had a fault. It judges and acts by the files of the last start "
        "without one, since an unwatched node is worse; later changes are not in force.",
        source="own rule: a typing error before a restart must not leave a fleet unwatched",
    ),
    # --- the memory of weeks
    Condition(
        code="lemon_node", scope="node", severity=W, advice=Advice.INSPECT_HARDWARE, fall=10, from_memory=True,
        ends="the counted days are older than 28 days, the board was replaced, or an operator acknowledged it (gpuwarden ack)",
        title="A lemon: this node fails again and again",
        why="On 3 different days of the last 28 a GPU or switch of it failed, gave failure-class Xids, remapped rows, or was "
        "reset, rebooted or excluded while it failed. Each incident ended; the node deserves an inspection. Replacing a board "
        "removes its days, `gpuwarden ack lemon_node` removes all. Resets while nothing is wrong do not count.",
        source="Meta RSC lemon study (28 days, 1.2 % of nodes touched 13 % of jobs); Lablup (3 of 63 nodes had half of the "
        "exclusions); 3 days: own choice, by chance on one of 1,100 nodes at 6.5 failures in 1,000 node-days",
    ),
    # --- what jobs leave behind
    Condition(
        code="gpu_held_after_job", scope="gpu", severity=W, advice=Advice.OBSERVE, rise=30, fall=10,
        title="Processes still hold a GPU after their job ended",
        why="Slurm's epilog reported the end of the job, and half a minute later processes of it still have the GPU open: the "
        "next job finds its memory taken. The evidence names them; one that cannot be ended needs a reboot.",
        source="own rule: Slurm ends only those processes of a job that its process tracking still sees", depends_on=NO_GPU,
    ),
)  # fmt: skip

CONDITIONS: dict[str, Condition] = {
    row.code: row
    for row in (
        *(*_ROWS, *GPU_CONDITIONS, *LINE_CONDITIONS, *HOST_CONDITIONS, *DCGM_CONDITIONS),
        *(row for feature in parts("conditions").values() for row in feature.CONDITIONS),
    )
}


def condition(code: str) -> Condition | None:
    """Return the row of `code`. Rows of site checks and of incidents that only DCGM reports are generated."""
    return CONDITIONS.get(code) or plugin_condition(code) or dcgm_condition(code)
