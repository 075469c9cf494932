"""The evidence of a finding as one line: sentences first, then `name: value unit`, from a table of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from gpuwarden.base.printable import clean

DURATION, SIZE, FLAG, SWITCH, MILLIWATTS, SENTENCE = "duration", "size", "flag", "switch", "milliwatts", "sentence"


class Shown(NamedTuple):
    """How one kind of evidence is shown."""

    name: str
    """Name for people; for a sentence, the words before it."""
    unit: str = ""
    """Unit after the value; or DURATION for seconds, SIZE for bytes, FLAG for 0 and 1, SWITCH for off and on,
    MILLIWATTS, SENTENCE for a text without a name."""


_SPELLED_OUT = """
    adapter adapters driver rows_remapped_in_7_days reported_by source after jobs unit then classed_by
    came_back_after replays restarts generation generation_possible lanes lanes_possible at link links state
    physical_state link_layer other_end counted counted_by_all_others of_all_other_links ports counted_by type
    inodes_free process processes uid job pod exit_code machine_type found differs missed_deadlines""".split()
"""Keys that are names for people once their underscores are spaces."""
NAMES: Mapping[str, Shown] = {
    **{key: Shown(key.replace("_", " ")) for key in _SPELLED_OUT},
    # --- sentences
    "why": Shown("", SENTENCE),
    "contradicted": Shown("but ", SENTENCE),
    "decoded": Shown("", SENTENCE),
    "text": Shown("kernel log or check", ""),
    "kernel_line": Shown("kernel log"),
    # --- identity
    "uuid": Shown("UUID"),
    "serial": Shown("serial number"),
    "moved_to": Shown("now in slot"),
    "exchanged": Shown("all boards were exchanged", FLAG),
    # --- memory of a GPU
    "uncorrected_since_driver_load": Shown("uncorrectable errors since the driver was loaded"),
    "uncorrected_sram_since_driver_load": Shown("uncorrectable SRAM errors since the driver was loaded"),
    "contained": Shown("contained by the driver"),
    "corrected": Shown("corrected errors"),
    "uncorrected": Shown("uncorrectable errors"),
    "remapped_rows_pending": Shown("row remapping pending", FLAG),
    "remapped_rows_failure": Shown("remapping failed", FLAG),
    "for_corrected_errors": Shown("rows remapped for corrected errors"),
    "for_uncorrectable_errors": Shown("rows remapped for uncorrectable errors"),
    "banks_with_few_spare_rows": Shown("banks with few spare rows"),
    "banks_without_spare_rows": Shown("banks without spare rows"),
    "memory_unrepairable": Shown("memory cannot be repaired", FLAG),
    "pages": Shown("retired pages"),
    "pending": Shown("waiting for a reset"),
    "channel": Shown("memory channel waits for repair"),
    "tpc": Shown("TPC waits for repair"),
    # --- what the driver says
    "action": Shown("action requested by the driver"),
    "value": Shown("numeric value"),
    "answer": Shown("answer of the driver"),
    "calls": Shown("failing calls"),
    "readings": Shown("failing readings"),
    "silence": Shown("error of NVML"),
    "licensed": Shown("vGPU licences"),
    "in_use": Shown("a process holds the GPU"),
    "silent_seconds": Shown("no answer for", DURATION),
    "read_seconds": Shown("time to read the GPUs", "s"),
    "usual_read_seconds": Shown("usual time", "s"),
    "slowest_gpu": Shown("slowest GPU"),
    "slowest_gpu_seconds": Shown("time of the slowest GPU", "s"),
    "worker_in_d_state": Shown("reader stuck in the kernel"),
    "worker_left_behind": Shown("reader that could not be ended"),
    "dcgm": Shown("DCGM"),
    "nvml": Shown("NVML"),
    # --- Xids
    "xid": Shown("Xid"),
    "sxid": Shown("SXid"),
    "meaning": Shown("", SENTENCE),
    "with": Shown("together with Xid"),
    "again": Shown("repeated at"),
    "place": Shown("place on the chip"),
    "bursts_within_a_day": Shown("bursts within a day"),
    "sub_code": Shown("sub-code"),
    "vendor_action": Shown("the vendor's action"),
    "failures_within_a_day": Shown("failures within a day"),
    # --- counts and times
    "seconds": Shown("within", DURATION),
    "of_seconds": Shown("of the last", DURATION),
    "slowed_seconds": Shown("slowed down for", DURATION),
    "seconds_at_low_clock": Shown("time at a low clock", DURATION),
    "hours": Shown("within", "h"),
    "days_with_xids": Shown("days with Xids"),
    "days_with_exclusions": Shown("days with exclusions"),
    "days_with_failures": Shown("days with failures"),
    "days_with_reboots": Shown("days with reboots"),
    "days_with_remaps": Shown("days with remaps"),
    "days_with_requeues": Shown("days with requeues"),
    "days_with_resets": Shown("days with resets"),
    "of_days": Shown("within", "days"),
    "raised_within_an_hour": Shown("raised within an hour", "times"),
    "held_until_quiet_for": Shown("stays until quiet for"),
    "allowed_per_minute": Shown("allowed a minute"),
    "downs": Shown("times it went down"),
    # --- speed, heat, power, PCIe
    "temperature": Shown("temperature", "°C"),
    "temperature_memory": Shown("temperature of the memory", "°C"),
    "siblings_temperature": Shown("temperature of siblings", "°C"),
    "siblings_power_w": Shown("power of siblings", "W"),
    "temperature_margin": Shown("margin to the limit", "K"),
    "slowdown_offset": Shown("slowdown at a margin of", "K"),
    "sm_clock_mhz": Shown("SM clock", "MHz"),
    "maximum_mhz": Shown("its maximum", "MHz"),
    "siblings_mhz": Shown("SM clock of siblings", "MHz"),
    "power_w": Shown("power", "W"),
    "reasons": Shown("the driver's reasons"),
    "reason_bit": Shown("the driver's reason", ""),
    "width": Shown("lanes"),
    "width_possible": Shown("lanes possible"),
    "as_wide": Shown("GPUs with as few lanes"),
    "gtps": Shown("speed", "GT/s"),
    "gtps_possible": Shown("speed possible", "GT/s"),
    # --- settings
    "ecc_mode": Shown("ECC", SWITCH),
    "ecc_mode_pending": Shown("ECC from the next reset on", SWITCH),
    "vbios": Shown("VBIOS"),
    "pcie_generation": Shown("PCIe generation possible"),
    "pcie_width": Shown("PCIe lanes possible"),
    "gsp_mode": Shown("firmware of the system processor", SWITCH),
    "persistence_mode": Shown("persistence mode", SWITCH),
    "mig_mode": Shown("MIG", SWITCH),
    "compute_mode": Shown("compute mode"),
    "confidential_ready": Shown("ready state of confidential computing", SWITCH),
    "power_limit": Shown("power limit", MILLIWATTS),
    "power_limit_enforced": Shown("power limit in force", MILLIWATTS),
    "clock_sm": Shown("application clock of the SMs", "MHz"),
    "clock_memory": Shown("application clock of the memory", "MHz"),
    # --- NVLink, network
    "links_of_siblings": Shown("links of each sibling"),
    "siblings": Shown("siblings with all of their links"),
    "mask": Shown("health mask"),
    "ten_minutes_with_errors": Shown("10-minute intervals with errors"),
    "replay_errors": Shown("replays"),
    "recovery_errors": Shown("recoveries"),
    "nvlink5_recoveries": Shown("recoveries"),
    "nvlink5_recovery_failures": Shown("recoveries that failed"),
    "gbps": Shown("rate", "Gbit/s"),
    "gbps_before": Shown("rate before", "Gbit/s"),
    "role": Shown("role of the port"),
    # --- the host
    "hung_for": Shown("hung for", DURATION),
    "used_percent": Shown("used", "%"),
    "inodes_used_percent": Shown("inodes used", "%"),
    "available_bytes": Shown("available", SIZE),
    "bytes_available": Shown("available", SIZE),
    "swap_free_bytes": Shown("swap free", SIZE),
    "of_bytes": Shown("total", SIZE),
    "oom_kills": Shown("processes killed for lack of memory"),
    "controllers": Shown("memory controllers"),
    "pid": Shown("PID"),
    "pids": Shown("PIDs"),
    "comm": Shown("program"),
    "wait_channel": Shown("waits in kernel function"),
    "module": Shown("kernel module"),
    # --- inventory
    "expected": Shown("expected", "GPUs"),
    "known": Shown("known", "GPUs"),
    "never_seen": Shown("never seen", "GPUs"),
    "table": Shown("known from"),
    "modules": Shown("modules on the baseboard"),
    # --- tests
    "level": Shown("test level"),
    "ends_with_level": Shown("ends with a passed test at level"),
    "gpus": Shown("GPUs"),
    # --- work of a job
    "tensor_percent": Shown("tensor cores busy", "%"),
    "dram_percent": Shown("memory busy", "%"),
    "nvlink_mib": Shown("sent over NVLink", "MiB/s"),
    "rdma_mib": Shown("sent over the network", "MiB/s"),
}
"""Names by the key of the evidence in JSON. A key without an entry is shown with spaces instead of underscores."""
COMPARED: Mapping[str, str] = {"_of_siblings": " of siblings", "_expected": " expected", "_before": " before"}
"""Suffix of a key: suffix of the name, for the same value of siblings, as expected, or earlier."""
COUNTED = re.compile(r"(\w+)_in_(\d+)_min")
"""Key of a port counter: the driver's name, and the minutes in which it grew."""

_GIB = 1 << 30


def evidence_text(evidence: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> str:
    """Return the evidence as one line; "" if there is none. `without`: keys that the title already contains."""
    shown = {k: v for k, v in evidence.items() if k not in without and v not in ("", None)}
    return "; ".join((*_sentences(shown), *_values(shown)))


def named(key: str) -> Shown | None:
    """Return how evidence with this key is shown; None for a key without an entry."""
    if (label := NAMES.get(key)) is not None:
        return label
    for end, words in COMPARED.items():
        if (same := NAMES.get(key.removesuffix(end))) is not None:
            return Shown(f"{same.name}{words}", same.unit)
    if match := COUNTED.fullmatch(key):
        return Shown(f"{match[1]} in {match[2]} minutes")
    return None


def _sentences(shown: Mapping[str, Any]) -> Iterator[str]:
    for key, value in shown.items():
        label = NAMES.get(key)
        if label is not None and label.unit == SENTENCE:
            yield f"{label.name}{clean(value)}"


def _values(shown: Mapping[str, Any]) -> Iterator[str]:
    for key, value in shown.items():
        label = named(key) or Shown(clean(key).replace("_", " "))
        if (
            label.unit != SENTENCE
            and not (key == "source" and "dcgm" in shown)
            and not (key == "value" and "action" in shown)
        ):
            yield f"{label.name}: {_value(value, label.unit)}"


def _value(value: object, unit: str) -> str:
    if isinstance(value, bool) or unit == FLAG:
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return clean(value)
    if (convert := _CONVERTED.get(unit)) is not None:
        return convert(value)
    return f"{value:g} {unit}".rstrip() if isinstance(value, float) else f"{value} {unit}".rstrip()


def _duration(seconds: float) -> str:
    """Return seconds as `95s`, `12m` or `3h`, which is precise enough for operators."""
    for size, letter in ((3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{letter}"
    return f"{seconds:.0f}s"


_CONVERTED: Mapping[str, Callable[[float], str]] = {
    DURATION: _duration,
    SIZE: lambda size: f"{size / _GIB:.1f} GiB",
    SWITCH: lambda setting: "on" if setting else "off",
    MILLIWATTS: lambda power: f"{power / 1000:g} W",
}
