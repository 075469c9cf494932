"""Detectors for the readings of one GPU: memory, temperature, power, PCIe, and the driver's recovery action."""

from __future__ import annotations

import math

from gpuwarden.health.detection import Detection, Detector, gpu_detection, per_gpu
from gpuwarden.health.gpu.slowdown import slowdown_offset
from gpuwarden.health.model import Advice, Evidence, Key, Severity, Sighting, gpu
from gpuwarden.health.state import State, counts
from gpuwarden.health.view import Sight
from gpuwarden.health.xid.lines import RESET
from gpuwarden.health.xid.ruling import newest_signs
from gpuwarden_collectors.facts import GpuFacts

W, F = Severity.WARNING, Severity.FAILURE


def flag(code: str, reading: str) -> Detector:
    """Return a detector for a reading that must be zero."""

    def check(_: State, __: Sight, facts: GpuFacts) -> Sighting | None:
        value = getattr(facts.readings, reading)
        return Sighting(Key(code, gpu(facts.slot)), {reading: value}) if value else None

    return per_gpu(check, reading)


def _contained(state: State, facts: GpuFacts) -> bool | None:
    """Return True if the driver contained the error: Xid 94 since boot or reset whose line asks for no reset, no 48, 95
    or 140, no SRAM error, and rows can be remapped at a reset. None if only the 94 is missing.
    """
    records = (state.records.get(Key("xid", gpu(facts.slot), number)) for number in ("94", "48", "95", "140"))
    counted = [record for record in records if record is not None and counts(state, record)]
    here = {record.key.detail for record in counted}
    readings = facts.readings
    remappable = readings.remapped_rows_pending is not None and not readings.remapped_rows_failure
    must_reset = any(RESET in newest_signs(record) for record in counted if record.key.detail == "94")
    if must_reset or here & {"48", "95", "140"} or readings.ecc_uncorrected_volatile_sram or not remappable:
        return False
    return True if "94" in here else None


LINE_AFTER_COUNTER = 2.0
"""Seconds. A pass may see the counter before the driver's line is read, which may show that the error was contained."""


def ecc_uncorrectable(state: State, _: Sight, facts: GpuFacts) -> Sighting | None:
    count = facts.readings.ecc_uncorrected_volatile
    if not count:
        return None
    contained = _contained(state, facts)
    evidence = {"uncorrected_since_driver_load": count, "contained": contained is True}
    severity, advice = (W, Advice.RESTART_APP) if contained else (F, Advice.RESET_GPU)
    rise = LINE_AFTER_COUNTER if contained is None else None
    return Sighting(Key("ecc_uncorrectable", gpu(facts.slot)), evidence, severity, advice, rise)


def sram_threshold(_: State, __: Sight, facts: GpuFacts) -> Sighting | None:
    if not facts.readings.sram_threshold_exceeded:
        return None
    count = facts.readings.ecc_uncorrected_volatile_sram or 0
    return Sighting(Key("sram_threshold", gpu(facts.slot)), {"uncorrected_sram_since_driver_load": count})


RETIRED_PAGES_LIMIT = 63
"""Pages retired for any cause at which DCGM fails a GPU (DCGM_FR_RETIRED_PAGES_LIMIT, dcgm health module)."""


def retired_pages(_: State, __: Sight, facts: GpuFacts) -> Sighting | None:
    readings = facts.readings
    pages = (readings.retired_pages_single_bit or 0) + (readings.retired_pages_double_bit or 0)
    evidence = {"pages": pages, "pending": bool(readings.retired_pages_pending)}
    if pages >= RETIRED_PAGES_LIMIT:
        return Sighting(Key("retired_pages", gpu(facts.slot)), evidence, F, Advice.CONTACT_SUPPORT)
    if readings.retired_pages_pending:
        return Sighting(Key("retired_pages", gpu(facts.slot)), evidence, W, Advice.RESET_GPU)
    return None


CORRECTED_PER_HOUR = 1000
"""Own choice. Fleets see a few per day on a healthy GPU and 1e5 per day on a bad one (study of 10,693 Ampere GPUs)."""


def ecc_correctable_rate(state: State, _: Sight, facts: GpuFacts) -> Sighting | None:
    series = state.moments.windows.get((facts.slot, "ecc_corrected_volatile"))
    if series is None:
        return None
    grown, seconds = series.growth(3600.0)
    if grown < CORRECTED_PER_HOUR:
        return None
    return Sighting(Key("ecc_correctable_rate", gpu(facts.slot)), {"corrected": grown, "seconds": round(seconds)})


DRAIN_AND_RESET = 4
"""The recovery action of a GPU whose running work is safe: no new work, and a reset after it (the text of DCGM_FR_GPU_RECOVERY_DRAIN_RESET,
DCGM 4.6)."""
RECOVERY_ACTIONS: dict[int, tuple[str, Severity, Advice]] = {
    1: ("reset", F, Advice.RESET_GPU),
    2: ("reboot", F, Advice.REBOOT),
    3: ("drain P2P", W, Advice.RESTART_APP),
    DRAIN_AND_RESET: ("drain and reset", F, Advice.RESET_GPU),
    5: ("recover IMEX domain", F, Advice.RESTART_SERVICE),
    6: ("bus reset", F, Advice.REBOOT),
    7: ("system reboot", F, Advice.REBOOT),
}
"""Recovery actions of the driver (nvmlDeviceGpuRecoveryAction_t). Unknown numbers are failures, since 0 means none."""


def gpu_recovery_action(_: State, __: Sight, facts: GpuFacts) -> Sighting | None:
    action = facts.readings.recovery_action
    if not action:
        return None
    name, severity, advice = RECOVERY_ACTIONS.get(action, ("unknown", F, Advice.CONTACT_SUPPORT))
    evidence: Evidence = {"action": name, "value": action}
    return Sighting(Key("gpu_recovery_action", gpu(facts.slot)), evidence, severity, advice)


def thermal_limit(_: State, __: Sight, facts: GpuFacts) -> Sighting | None:
    """Detect a GPU at or above a limit that the driver reports. At the shutdown point the board soon switches off."""
    r, offset = facts.readings, slowdown_offset(facts)
    slowdown = r.temperature_slowdown or (r.temperature_gpu_max and r.temperature_gpu_max - offset)
    over = {
        name: value
        for name, value, limit in (
            ("temperature", r.temperature, slowdown),
            ("temperature_memory", r.temperature_memory, r.temperature_memory_max),
        )
        if value is not None and limit and value >= limit
    }
    if r.temperature_margin is not None and r.temperature_margin <= (offset or -1):
        over |= {"temperature_margin": r.temperature_margin, "slowdown_offset": offset}
    if not over:
        return None
    shutdown = bool(r.temperature and r.temperature_shutdown and r.temperature >= r.temperature_shutdown)
    return Sighting(Key("thermal_limit", gpu(facts.slot)), over, F if shutdown else W, rise=10.0 if shutdown else None)


SLOWED_SHARE, SLOWED_WINDOW = 0.6, 600.0
"""Slowed for 6 of the last 10 minutes: gpud's share, but measured as time instead of samples."""


def slowed_now(state: State, facts: GpuFacts, code: str, counter: str, reason_bit: int) -> Sighting | None:
    """Detect a GPU slowed by the hardware for most of a window, by the driver's time counter, else by passes."""
    series = state.moments.windows.get((facts.slot, counter))
    if series is None or getattr(facts.readings, counter) is None:
        if not (facts.readings.clock_event_reasons or 0) & reason_bit:
            return None
        long = SLOWED_SHARE * SLOWED_WINDOW
        return Sighting(Key(code, gpu(facts.slot)), {"reason_bit": hex(reason_bit)}, rise=long)
    grown, seconds = series.growth(SLOWED_WINDOW)
    if grown / 1e9 < SLOWED_SHARE * SLOWED_WINDOW:
        return None
    evidence = {"slowed_seconds": round(grown / 1e9), "of_seconds": round(seconds)}
    return Sighting(Key(code, gpu(facts.slot)), evidence)


def thermal_slowdown(state: State, _: Sight, facts: GpuFacts) -> Sighting | None:
    return slowed_now(state, facts, "thermal_slowdown", "slowdown_hw_thermal_ns", 0x40)


def pcie_link_degraded(state: State, sight: Sight, facts: GpuFacts) -> Sighting | None:
    """Detect a PCIe link narrower than possible or accepted, or of a lower generation while busy (not while idle)."""
    r, pin = facts.readings, state.pins.get(facts.slot)
    possible = (pin.pcie_width if pin is not None else 0) or r.pcie_width_max
    if r.pcie_width and possible and r.pcie_width < possible:
        alike = sum([each.readings.pcie_width == r.pcie_width for each in sight.answering])
        evidence: Evidence = {
            "width": r.pcie_width,
            "width_possible": possible,
            "as_wide": f"{alike} of {len(sight.answering)} GPUs",
        }
        return Sighting(Key("pcie_link_degraded", gpu(facts.slot)), evidence)
    busy = (r.utilization_gpu or 0) >= 50 and (r.performance_state or 0) <= 2
    if busy and r.pcie_generation and r.pcie_generation_max and r.pcie_generation < r.pcie_generation_max:
        evidence = {"generation": r.pcie_generation, "generation_possible": r.pcie_generation_max}
        return Sighting(Key("pcie_link_degraded", gpu(facts.slot)), evidence)
    return None


GTPS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


def pcie_replay_rate(state: State, _: Sight, facts: GpuFacts) -> Sighting | None:
    """Detect more replays per minute than the specified bit error rate allows (DCGM: ceil(GT/s x 0.06 x lanes))."""
    r = facts.readings
    series = state.moments.windows.get((facts.slot, "pcie_replays"))
    if series is None:
        return None
    allowed = math.ceil(GTPS.get(r.pcie_generation_max or 5, 64.0) * 0.06 * (r.pcie_width_max or 16))
    grown, seconds = series.growth(300.0)
    if seconds < 60.0 or grown <= allowed * seconds / 60.0:
        return None
    evidence = {"replays": grown, "seconds": round(seconds), "allowed_per_minute": allowed}
    return Sighting(Key("pcie_replay_rate", gpu(facts.slot)), evidence)


def vgpu_unlicensed(state: State, sight: Sight) -> Detection:
    """Detect the loss of a licence that this GPU had here. Clears if there is no vGPU software."""
    examined = [facts for facts in sight.answering if facts.readings.vgpu_license is not None or not facts.errors]
    lost = [facts.slot for facts in examined if facts.readings.vgpu_license == 0 and _licensed(state, facts.slot)]
    return gpu_detection([Sighting(Key("vgpu_unlicensed", gpu(slot)), {"licensed": 0}) for slot in lost], examined)


def _licensed(state: State, slot: str) -> bool:
    pin = state.pins.get(slot)
    return pin is not None and pin.licensed


def inforom_invalid(_: State, __: Sight, facts: GpuFacts) -> Sighting | None:
    return Sighting(Key("inforom_invalid", gpu(facts.slot))) if facts.readings.inforom_valid == 0 else None
