"""Instructions for the operator, by condition. All such texts are defined here.

A text belongs to the condition, not to its `model.Advice`, which policy uses. The first sentence is the action, short
enough for the reason of a drain; the rest is for when that does not help. `make docs` writes each text as the first
line of the runbook, and status, explain, JSON, metrics and notifications show it through `to_do`. SLOT is the PCI
address, NAME the mount, service or port.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpuwarden.features import parts
from gpuwarden.health.dcgm.catalogue import dcgm_named
from gpuwarden.health.model import Advice, Evidence, Key
from gpuwarden.health.repair_history import OFTEN_KEY
from gpuwarden.health.xid.to_do import RESET_COMMAND, sxid_to_do, xid_to_do

RESET = f"reset the GPU when it is empty: {RESET_COMMAND}"
REPORT = "save `nvidia-bug-report.sh`"

TO_DO: Mapping[str, str] = {
    # --- the driver and the GPUs as a whole
    "gpu_missing": "Drain the node and power-cycle the machine. A reboot often does not bring the GPU back. Missing again: have seating, riser "
    "and power cables inspected. Removed on purpose: `gpuwarden inventory accept`.",
    "inventory_incomplete": "Compare `lspci -d 10de:` with what was ordered. An incomplete machine goes back to its maker or cloud; where the "
    "number is intended, set `inventory.expected_gpus`.",
    "driver_unresponsive": "Drain the node and reboot it. If the reboot hangs, power-cycle it. Do not kill processes that hold the driver.",
    "driver_slow": f"{REPORT[0].upper()}{REPORT[1:]} while the driver still answers. Then let the jobs end, and reboot the node.",
    "driver_not_loaded": "Run `modprobe nvidia` and read what `dmesg | grep -i nvrm` says. Usual causes: a new kernel without the module, "
    "Secure Boot, a board without power.",
    "driver_library_mismatch": "Drain the node, and reboot it when its jobs have ended. New jobs fail until the loaded driver and its library are "
    "of one version.",
    "device_permission": "Compare `ls -l /dev/nvidia*` with the device rules of gpuwarden's unit. In a container: pass the GPUs to it. "
    "`gpuwarden doctor` names what is missing.",
    "nvml_unavailable": "Run `timeout 20 nvidia-smi` on the node. If it works, the fault is gpuwarden's: `journalctl -u gpuwarden -n 50`. If not, "
    "the library is missing or does not fit: `ldconfig -p | grep libnvidia-ml`.",
    "gpu_unresponsive": f"Drain the node and {RESET}. If the reset fails, reboot; then power-cycle.",
    "gpu_reset_required": f"Drain the node and {RESET}. Or reboot it.",
    "gpu_readings_lost": f"Drain the node, {REPORT}, then {RESET}. Lost again: power-cycle the machine.",
    "gpu_recovery_action": "Do what the evidence names as the action. `nvidia-smi -q -i SLOT | grep -i recovery` shows it, too.",
    "gsp_not_answering": f"Take the node out when its jobs allow, and {RESET}. If the reset hangs, reboot.",
    # --- momentary events
    "xid": "The number decides: `gpuwarden explain xid N`.",
    "sxid": "Drain the node and reboot it. That resets GPUs and NVSwitches together. Again: open a case for the board with the vendor.",
    # --- memory
    "ecc_uncorrectable": f"Drain the node and {RESET}. The reset remaps the row. Then run `dcgmi diag -r 3`.",
    "ecc_correctable_rate": "Nothing at night. Remapped rows as well (`nvidia-smi -q -d ECC,ROW_REMAPPER -i SLOT`): reset the GPU when the node is "
    "empty, run `dcgmi diag -r 3`, plan the replacement.",
    "row_remap_failed": f"Drain the node, {REPORT}, and have the board replaced. No reset helps.",
    "row_remap_pending": f"Reset the GPU when the node is empty: {RESET_COMMAND}. Or reboot it. Jobs may continue until then.",
    "row_remap_overdue": f"Reset the GPU when the node is empty: {RESET_COMMAND}. Or reboot it. The node returns by itself.",
    "row_remaps_many": "Plan the replacement of the board. Nothing at night: `nvidia-smi -q -d ROW_REMAPPER -i SLOT` shows the spare rows left.",
    "gpu_repair_pending": "Reboot the node when it is empty. Pending again after the reboot: open a case with the vendor.",
    "memory_unrepairable": f"Drain the node, {REPORT}, and have the board replaced. Neither reset nor reboot helps.",
    "memory_degrading": "Have the board replaced when its jobs have ended. Before: `dcgmi diag -r 3`, and `nvidia-bug-report.sh` for the vendor. "
    "No reset helps: an idle GPU makes no errors.",
    "sram_threshold": f"Drain the node, {REPORT}, and have the board replaced. The flag is for the life of the board: no reset clears it.",
    "retired_pages": f"Reset the GPU when the node is empty: {RESET_COMMAND}. Or reboot it.",
    "inforom_invalid": f"Open a case with the vendor: {REPORT}. The GPU works; replace the board at the next maintenance.",
    # --- speed, heat, power, settings
    "gpu_slow": "Compare `nvidia-smi -q -d PERFORMANCE,POWER -i SLOT` with a sibling. The evidence has the reason: for heat check the airflow, for "
    "power the cables; for none reset the GPU when it is empty.",
    "thermal_limit": "Check fans, coolant and inlet temperature at once. As a failure: drain the node, the GPU is about to switch itself off. Only "
    "this GPU: its heat sink or cold plate.",
    "thermal_slowdown": "Check the cooling of the GPU in working hours. Its siblings are cool: heat sink or cold plate; all are hot: fans and inlet air.",
    "gpu_idle_hot": "Compare `nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE -i SLOT` with an idle sibling. At full clocks: reset the GPU. Else check its "
    "heat sink or cold plate.",
    "vgpu_unlicensed": "Look at the licence client: `nvidia-smi -q | grep -i -A2 licen` and `journalctl -u nvidia-gridd -n 50`. Usual causes: the licence "
    "server is not reached, or has none left.",
    "power_brake": "Check the power supplies: `ipmitool sdr type 'Power Supply'`. Many nodes at once: call the data centre.",
    "gpu_misconfigured": "Give the GPU the setting of its siblings, as the evidence names it. Compute mode 2 lets no job start: `nvidia-smi -c 0 -i SLOT`. Nor does "
    "confidential computing until the GPUs are attested; then `nvidia-smi conf-compute -srs 1`, refused: reboot. "
    "Meant: `gpuwarden inventory accept`.",
    # --- NVLink, PCIe
    "nvlink_down": "Drain the node, and reset all its GPUs or reboot when it is empty. Down again: open a case with the vendor (board, switch, cable). "
    "Removed on purpose: `gpuwarden inventory accept`.",
    "nvlink_never_up": "Drain the node in working hours and reboot it. Still none (`nvidia-smi nvlink -s -i SLOT`): have the board reseated, "
    "then open a case with the vendor.",
    "nvlink_errors": "Look for the link: `nvidia-smi nvlink -e -i SLOT`. All links together: reset the GPU when the node is empty. One link: have its "
    "path inspected. As a failure: drain the node first.",
    "nvlink_link_errors": "Drain the node in working hours and reset its GPUs. If the counters of this link still grow (`nvidia-smi nvlink -e -i SLOT`), "
    "have its cable, bridge or switch port inspected.",
    "fabric_unhealthy": "Drain the node and read `journalctl -u nvidia-fabricmanager -n 50`. Versions that differ from the driver's: install the same. "
    "Else restart nvidia-fabricmanager when the node is empty, then reboot.",
    "pcie_link_degraded": "Reboot the node when it is empty: links train again. Still so: power off, reseat the card and its riser. All nodes of a "
    "kind: `gpuwarden inventory accept`.",
    "pcie_replay_rate": "Reseat the card at the next maintenance. With a narrow link or Xid 79: at once.",
    "pcie_aer_fatal": "Look whether the device still answers: `lspci -s SLOT`. `rev ff` means no: drain, power-cycle. It answers, and the error comes "
    "again: power off, reseat, replace the riser.",
    "adapter_pcie_degraded": "Reboot the node when it is empty: links train again. Still so: power off and reseat the adapter. Meant: `gpuwarden inventory accept`.",
    # --- the network
    "infiniband_down": "Run `ibstat`, then check cable, transceiver and switch port. Adapter not listed: power-cycle. Many nodes: the switch or the "
    "subnet manager. Unplugged on purpose: `gpuwarden inventory accept`.",
    "infiniband_flapping": "Clean or replace cable and transceiver. Then use another port of the switch.",
    "infiniband_rate_low": "Reseat the cable of the port. Then replace it. Meant: `gpuwarden inventory accept`.",
    "infiniband_errors": "Follow the counter that the evidence names. Symbol and link errors: cable, transceiver, port; timeouts: congestion, or the far end.",
    "adapter_failed": "Drain the node and power-cycle it. A reboot may do. Failed again: update the firmware (`mlxfwmanager`), then replace the adapter.",
    # --- the host
    "disk_full": "Find what fills it: `du -xhd1 NAME | sort -h | tail`. Deleted and still open: `lsof +L1`.",
    "mount_missing": "Mount it: `mount NAME`. On many nodes: see the server. No longer needed: remove it from `collectors.storage.expected`.",
    "mount_hung": "Check the file server, and the network from this node to it. Processes continue when it is back; else drain the node and reboot it.",
    "mount_read_only": "Drain the node, find the disk's first error in `dmesg`, replace the disk. Run `fsck` only while it is not mounted.",
    "nvme_failed": "Power-cycle the node when it is empty. Still missing in `nvme list`: reseat or replace the drive; its data is gone.",
    "memory_low": "Find who uses it: `ps -eo rss,user,cmd --sort -rss | head`. Also look at `/dev/shm`. Then limit jobs: `ConstrainRAMSpace=yes`.",
    "memory_ecc_uncorrectable": "Drain the node and replace the memory module. `ras-mc-ctl --errors` or `ipmitool sel list` names it. A virtual machine: replace it.",
    "process_hung": "Drain the node and reboot it. Before: `cat /proc/PID/stack` shows whether it hangs in the driver or in a file system.",
    "soft_lockup": "Drain the node and reboot it. The kernel's lines name driver and function: update that driver. A virtual machine: ask its cloud.",
    "service_down": "Run `systemctl status NAME` and restart it. The fabric manager only when the node is empty. Not needed here: `systemctl disable NAME`.",
    "plugin_failed": "Run the check by hand, as the evidence shows. Usual causes: a missing program, a timeout, an exit code without a meaning.",
    # --- DCGM
    "dcgm_unresponsive": "Restart DCGM: `systemctl restart nvidia-dcgm`. GPUs are judged by NVML meanwhile.",
    "dcgm_impaired": "Restart DCGM: `systemctl restart nvidia-dcgm`. After an Xid 119 reset the GPU first.",
    "dcgm_disagrees": "Restart DCGM: `systemctl restart nvidia-dcgm`. Where NVML lacks the GPU, see gpu_missing.",
    "dcgm_power_unreadable": "Restart DCGM: `systemctl restart nvidia-dcgm`. After an Xid 119 reset the GPU first.",
    "dcgm_field_threshold_dbl": "Check cooling and power of the CPUs. `ipmitool sdr` has temperatures and fans.",
    "dcgm_faulty_memory": f"Drain the node, {REPORT}, and have the board replaced. Neither reset nor reboot helps.",
    "dcgm_imex_unhealthy": "Restart IMEX: `systemctl restart nvidia-imex`. `nvidia-imex-ctl -N` shows which nodes of the domain are not ready.",
    "dcgm_uncorrectable_row_remap_limit": "Plan the replacement of the board. 512 rows are remapped for uncorrectable errors.",
    # --- the daemon itself
    "ledger_unavailable": "Check free space (`df -h`) and permissions of `state.dir`, by default /var/lib/gpuwarden. Do not delete the ledger: it has the inventory and the latches.",
    "collector_failed": "Run `gpuwarden doctor` on the node: it names the missing right or file. What only this source shows is not seen meanwhile.",
    "output_failed": "Check `df -h /run/gpuwarden`, its owner and its mode; of port and group, `gpuwarden doctor`. Slurm's scripts read old verdicts meanwhile, or none.",
    "actuator_refused": "Run `gpuwarden doctor` on the node: it names the missing right or the wrong name. A node that fails: drain it by hand.",
    "actuator_unreachable": "Check the controller: `scontrol ping`, or `kubectl get --raw /readyz`. A node that fails: drain it by hand.",
    "exclusion_stuck": "Run `gpuwarden status`, and look at the node. If nothing speaks against it: `gpuwarden restore`.",
    "notification_refused": "Correct the target in `[notify]`: the evidence has its answer. Then it gets the latest state.",
    "web_config_faulty": "Run `gpuwarden config check`, or renew the certificate. The daemon reads changed files by itself.",
    "feature_failed": "Run `systemctl restart gpuwarden`. If it comes back, file a bug with `gpuwarden status --json` and the journal.",
    "config_faulty": "Run `gpuwarden config check`, correct what it names, then `systemctl restart gpuwarden`. The node is watched meanwhile.",
    # --- weeks, jobs
    "lemon_node": "Drain the node in working hours, run `dcgmi diag -r 3`, replace the board that the evidence names. Nothing wrong: `gpuwarden ack lemon_node`.",
    "gpu_held_after_job": "End the processes that the evidence names: `kill PID`, then `kill -9 PID`. State D: drain the node, reboot it when empty.",
} | {code: text for feature in parts("conditions").values() for code, text in feature.TO_DO.items()}  # fmt: skip
"""By code of the condition."""

VARIANTS: Mapping[tuple[str, Advice], str] = {
    ("ecc_uncorrectable", Advice.RESTART_APP): "Restart the job that died: the driver contained the error. Reset the GPU when the node is empty, "
    "which remaps the row.",
    ("fabric_unhealthy", Advice.INSPECT_HARDWARE): "Look for the link or switch that is out: `nvidia-smi nvlink -s -i SLOT`. All nodes of a rack: its "
    "NVLink switches. Jobs continue at less bandwidth.",
    ("fabric_unhealthy", Advice.OBSERVE): "Look at the fabric manager of the NVLink domain: `systemctl status nvidia-fabricmanager`, in a rack "
    "NMX-C on its switches. Jobs continue meanwhile.",
    ("retired_pages", Advice.CONTACT_SUPPORT): f"Drain the node, {REPORT}, and have the board replaced. 63 pages are the vendor's limit.",
    ("adapter_failed", Advice.OBSERVE): "Look at the port: `ibstat`. Commands to the adapter had no answer; it is a failure after 2 minutes of them.",
}  # fmt: skip
"""By condition, and the advice of a sighting that is milder or worse than its row."""

RECOVERY: Mapping[int, str] = {
    1: f"Drain the node and {RESET}. The driver asks for it.",
    2: "Drain the node and reboot it. The driver asks for it.",
    3: "End the jobs that use several GPUs here, then read the action again. `nvidia-smi -q -i SLOT | grep -i recovery` then names the next one. "
    "Do not reset before.",
    4: f"Drain the node, let its jobs end, and {RESET}. Jobs that still run are safe.",
    5: "Restart IMEX on all nodes of the NVLink domain: `systemctl restart nvidia-imex`. No job may use the domain meanwhile.",
    6: "Drain the node and reboot it. That resets the PCIe bus of the GPU, for which the driver asks.",
    7: "Drain the node and reboot the machine. The driver asks for it.",
}
"""By value of gpu_recovery_action. Source: NVIDIA GPU memory error management, error recovery and response flags."""

AGAIN: Mapping[str, str] = {
    "a GPU reset": "Drain the node and reboot it. It came back after a GPU reset.",
    "a reboot": "Drain the node and have the board inspected or replaced. It came back after a reboot: "
    + REPORT
    + " for the vendor.",
}
"""By the repair that did not help (`repair_history.py`)."""

TOO_OFTEN = (
    "Drain the node and have the board inspected or replaced. It failed like this three times within a day: "
    + REPORT
    + " for the vendor."
)
"""For a failure that recurs although each repair ended it (`repair_history.py`)."""

COMMON: Mapping[Advice, str] = {
    Advice.NONE: "Nothing.",
    Advice.OBSERVE: "Nothing now. `gpuwarden events` shows whether it comes again.",
    Advice.RESTART_APP: "Restart the job. The GPU works.",
    Advice.RESET_GPU: f"Drain the node and {RESET}. Or reboot it.",
    Advice.RESTART_SERVICE: "Restart the service that the evidence names.",
    Advice.REBOOT: "Drain the node and reboot it.",
    Advice.FIX_CONFIGURATION: "Correct the configuration that the evidence names.",
    Advice.UPDATE_SOFTWARE: "Update driver and firmware at the next maintenance.",
    Advice.INSPECT_HARDWARE: "Drain the node and have the board inspected: seating, power, cables.",
    Advice.CONTACT_SUPPORT: f"Open a case with the vendor: {REPORT}.",
}
"""For findings without a specific text: numbers of the tables, and advice from the site's configuration."""

_SITE_CHECK = "Follow the text of the check. The check is this site's own: its command is in the configuration."
_PLAIN = re.compile(r"[A-Za-z0-9_./:@-]{1,128}")
_RECOVERY_VALUE = "value"


def to_do(key: Key, advice: Advice, evidence: Evidence) -> str:
    """Return the instructions for a finding, with the address of its GPU in the commands."""
    return placed(_text(key, advice, evidence), key)


def of_raised(key: Key, data: Evidence) -> str:
    """Return the instructions for the finding of an event RAISED with these data."""
    advice = str(data.get("advice", ""))
    return to_do(key, Advice(advice) if advice in set(Advice) else Advice.OBSERVE, data)


def placed(text: str, key: Key) -> str:
    """Insert the subject into `text`. A name that a shell could misread is left out of the command."""
    subject = key.subject
    if subject.slot:
        text = text.replace("SLOT", subject.slot)
    return text.replace("NAME", subject.part) if _PLAIN.fullmatch(subject.part) else text


def first_sentence(text: str) -> str:
    """Return only the action, without the full stop, for short texts."""
    return text.partition(". ")[0].rstrip(".")


_DRAIN = re.compile(r"Drain the node(?:, then|, and|,| and) (?:let its jobs end, and )?")
_COMMAND = re.compile(r": `.*")


def in_brief(text: str) -> str:
    """Return the action in a few words for the reason of a drain, without the drain itself and the command."""
    action = _COMMAND.sub("", _DRAIN.sub("", first_sentence(text)))
    return f"{action[:1].lower()}{action[1:]}"


def of_condition(code: str, advice: Advice) -> str:
    """Return the text of a condition as in its runbook; for a DCGM code, the vendor's action."""
    if (text := TO_DO.get(code)) is not None:
        return text
    if code.startswith("plugin_"):
        return _SITE_CHECK
    row = dcgm_named(code) if code.startswith("dcgm_") else None
    return f"{row.action[:1].upper()}{row.action[1:]}." if row is not None and row.action else COMMON[advice]


def of_xid(number: int, advice: Advice) -> str:
    return xid_to_do(number, advice) or COMMON[advice]


def of_sxid(advice: Advice) -> str:
    return sxid_to_do(advice) or TO_DO["sxid"]


def of_recovery(value: object, advice: Advice) -> str:
    """Return the text for a recovery action of the driver; without a value, as from DCGM, that of the condition."""
    wording = RECOVERY.get(value) if isinstance(value, int) else None
    return wording or (TO_DO["gpu_recovery_action"] if value is None else COMMON[advice])


def _text(key: Key, advice: Advice, evidence: Evidence) -> str:
    if OFTEN_KEY in evidence:
        return TOO_OFTEN
    if (again := AGAIN.get(str(evidence.get("came_back_after", "")))) is not None:
        return again
    if key.code == "xid" and key.detail.isdecimal():
        return of_xid(int(key.detail), advice)
    if key.code == "sxid":
        return of_sxid(advice)
    if key.code == "gpu_recovery_action":
        return of_recovery(evidence.get(_RECOVERY_VALUE), advice)
    return VARIANTS.get((key.code, advice)) or of_condition(key.code, advice)
