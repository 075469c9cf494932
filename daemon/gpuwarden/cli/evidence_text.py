"""The evidence of a finding as one line: sentences first, then `name: value unit`, from a table of names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpuwarden.cli.text import clean

DURATION, SIZE, FLAG, SENTENCE = "duration", "size", "flag", "sentence"


class Shown(NamedTuple):
    """How one kind of evidence is shown."""

    name: str
    """Name for people; for a sentence, the words before it."""
    unit: str = ""
    """Unit behind the value; or DURATION for seconds, SIZE for bytes, FLAG for 0 and 1, SENTENCE for what needs no name."""


NAMES: Mapping[str, Shown] = {
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
    "adapter": Shown("adapter"),
    "adapters": Shown("adapters"),
    "driver": Shown("driver"),
    # --- memory of a GPU
    "uncorrected_since_driver_load": Shown("uncorrectable errors since the driver was loaded"),
    "uncorrected_sram_since_driver_load": Shown("uncorrectable SRAM errors since the driver was loaded"),
    "contained": Shown("contained by the driver"),
    "corrected": Shown("corrected errors"),
    "uncorrected": Shown("uncorrectable errors"),
    "rows_remapped_in_7_days": Shown("rows remapped in 7 days"),
    "remapped_rows_pending": Shown("rows wait to be remapped", FLAG),
    "remapped_rows_failure": Shown("remapping failed", FLAG),
    "pages": Shown("retired pages"),
    "pending": Shown("waits for a reset"),
    "channel": Shown("memory channel waits for repair"),
    "tpc": Shown("TPC waits for repair"),
    # --- what the driver says
    "action": Shown("the driver asks for"),
    "value": Shown("as a number"),
    "reported_by": Shown("reported by"),
    "answer": Shown("the driver answers"),
    "calls": Shown("calls that fail"),
    "readings": Shown("readings that fail"),
    "missed_deadlines": Shown("deadlines missed"),
    "silence": Shown("of NVML"),
    "licensed": Shown("vGPU licences"),
    "in_use": Shown("a process holds the GPU"),
    "silent_seconds": Shown("no answer for", DURATION),
    "read_seconds": Shown("reading the GPUs takes", "s"),
    "usual_read_seconds": Shown("before it took", "s"),
    "slowest_gpu": Shown("slowest GPU"),
    "slowest_gpu_seconds": Shown("of which it takes", "s"),
    "worker_in_d_state": Shown("reader stuck in the kernel"),
    "worker_left_behind": Shown("reader that could not be ended"),
    "dcgm": Shown("DCGM"),
    "nvml": Shown("NVML"),
    "source": Shown("source"),
    # --- Xids
    "xid": Shown("Xid"),
    "sxid": Shown("SXid"),
    "meaning": Shown("", SENTENCE),
    "with": Shown("came with Xid"),
    "after": Shown("after"),
    "place": Shown("place on the chip"),
    "bursts_within_a_day": Shown("bursts within a day"),
    "jobs": Shown("jobs"),
    "unit": Shown("unit"),
    "sub_code": Shown("sub-code"),
    "vendor_action": Shown("the vendor's action"),
    "then": Shown("then"),
    "classed_by": Shown("classed by"),
    "came_back_after": Shown("came back after"),
    "failures_within_a_day": Shown("failures within a day"),
    # --- counts and times
    "seconds": Shown("within", DURATION),
    "of_seconds": Shown("of the last", DURATION),
    "slowed_seconds": Shown("slowed down for", DURATION),
    "seconds_at_low_clock": Shown("at a low clock for", DURATION),
    "hours": Shown("within", "h"),
    "of_days": Shown("within", "days"),
    "raised_within_an_hour": Shown("raised within an hour", "times"),
    "held_until_quiet_for": Shown("stays until it was quiet for"),
    "replays": Shown("replays"),
    "allowed_per_minute": Shown("allowed a minute"),
    "restarts": Shown("restarts"),
    "downs": Shown("times down"),
    # --- speed, heat, power, PCIe
    "temperature": Shown("temperature", "°C"),
    "siblings_temperature": Shown("temperature of siblings", "°C"),
    "siblings_power_w": Shown("power of siblings", "W"),
    "temperature_margin": Shown("margin to the limit", "K"),
    "slowdown_offset": Shown("slowdown at a margin of", "K"),
    "sm_clock_mhz": Shown("SM clock", "MHz"),
    "maximum_mhz": Shown("its maximum", "MHz"),
    "power_w": Shown("power", "W"),
    "reasons": Shown("the driver's reasons"),
    "reason_bit": Shown("the driver's reason", ""),
    "width": Shown("lanes"),
    "width_possible": Shown("lanes possible"),
    "as_wide": Shown("siblings as narrow"),
    "generation": Shown("generation"),
    "generation_possible": Shown("generation possible"),
    "lanes": Shown("lanes"),
    "lanes_possible": Shown("lanes possible"),
    "gtps": Shown("speed", "GT/s"),
    "gtps_possible": Shown("speed possible", "GT/s"),
    "at": Shown("at"),
    # --- NVLink, network
    "link": Shown("link"),
    "links_of_siblings": Shown("links of each sibling"),
    "siblings": Shown("siblings with all of their links"),
    "links": Shown("links"),
    "mask": Shown("health mask"),
    "state": Shown("state"),
    "physical_state": Shown("physical state"),
    "link_layer": Shown("link layer"),
    "other_end": Shown("other end"),
    "ten_minutes_with_errors": Shown("stretches of ten minutes with errors"),
    "counted": Shown("counted"),
    "counted_by_all_others": Shown("counted by all others"),
    "of_all_other_links": Shown("of all other links"),
    "gbps": Shown("rate", "Gbit/s"),
    "gbps_before": Shown("rate before", "Gbit/s"),
    "ports": Shown("ports"),
    "role": Shown("role of the port"),
    "counted_by": Shown("counted by"),
    # --- the host
    "type": Shown("type"),
    "hung_for": Shown("hangs for", DURATION),
    "used_percent": Shown("used", "%"),
    "inodes_used_percent": Shown("inodes used", "%"),
    "inodes_free": Shown("inodes free"),
    "available_bytes": Shown("available", SIZE),
    "bytes_available": Shown("available", SIZE),
    "swap_free_bytes": Shown("swap free", SIZE),
    "of_bytes": Shown("of", SIZE),
    "oom_kills": Shown("processes killed for lack of memory"),
    "controllers": Shown("memory controllers"),
    "process": Shown("process"),
    "processes": Shown("processes"),
    "pid": Shown("PID"),
    "pids": Shown("PIDs"),
    "comm": Shown("program"),
    "uid": Shown("uid"),
    "job": Shown("job"),
    "pod": Shown("pod"),
    "wait_channel": Shown("waits in"),
    "module": Shown("kernel module"),
    "exit_code": Shown("exit code"),
    # --- inventory
    "expected": Shown("expected", "GPUs"),
    "known": Shown("known", "GPUs"),
    "never_seen": Shown("never seen", "GPUs"),
    "machine_type": Shown("machine type"),
    "table": Shown("known from"),
    "modules": Shown("modules on the baseboard"),
    # --- tests
    "level": Shown("test level"),
    "ends_with_level": Shown("ends with a passed test at level"),
    "found": Shown("found"),
    "gpus": Shown("GPUs"),
    "differs": Shown("differs"),
}
"""Names by the key of the evidence in JSON. A key that is missing here is shown as it is, with spaces."""

_GIB = 1 << 30


def evidence_text(evidence: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> str:
    """Return the evidence as one line; "" where there is none. `without`: keys that the title already says."""
    shown = {k: v for k, v in evidence.items() if k not in without and v not in ("", None)}
    return "; ".join((*_sentences(shown), *_values(shown)))


def _sentences(shown: Mapping[str, Any]) -> Iterator[str]:
    for key, value in shown.items():
        known = NAMES.get(key)
        if known is not None and known.unit == SENTENCE:
            yield f"{known.name}{clean(value)}"


def _values(shown: Mapping[str, Any]) -> Iterator[str]:
    for key, value in shown.items():
        known = NAMES.get(key) or Shown(clean(key).replace("_", " "))
        if (
            known.unit != SENTENCE
            and not (key == "source" and "dcgm" in shown)
            and not (key == "value" and "action" in shown)
        ):
            yield f"{known.name}: {_value(value, known.unit)}"


def _value(value: object, unit: str) -> str:
    if isinstance(value, bool) or unit == FLAG:
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if unit == DURATION:
            return _duration(value)
        if unit == SIZE:
            return f"{value / _GIB:.1f} GiB"
        return f"{value:g} {unit}".rstrip() if isinstance(value, float) else f"{value} {unit}".rstrip()
    return clean(value)


def _duration(seconds: float) -> str:
    """Return seconds as `95s`, `12m` or `3h`: whoever reads it at night needs no more."""
    for size, letter in ((3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{letter}"
    return f"{seconds:.0f}s"
