"""Detects settings in which one GPU differs from its siblings. A setting shared by all GPUs counts as intended.

A power limit of 500 of 700 W on all four GPUs (stackhpc/ansible-slurm-appliance#975) and persistence mode *off* on all
eight (leptonai/gpud#1318, #1322) are healthy. The same on one of eight GPUs was forgotten, or set by a job that did not
restore it. Settings that jobs may change count only after a day without a job on the GPU, or if the site pins them.
Compute mode *prohibited*, and confidential computing without the ready state, count on any number of GPUs: each job
that is given such a GPU fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from gpuwarden.health.detection import Detection, gpu_detection
from gpuwarden.health.gpu.jobs import job_numbers
from gpuwarden.health.model import Json, Key, Sighting, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import ExpectedSettings, Sight
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts

Value = int | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting that is compared between GPUs.

    `name`: name in the evidence. `of`: attribute of a GPU's facts. `by_jobs`: jobs and their prologs set it.
    `tolerance`: allowed share of deviation, since boards of one model have slightly different limits. `unusable`: with
    this value no job can start on the GPU.
    """

    name: str
    of: str
    by_jobs: bool = False
    tolerance: float = 0.0
    unusable: int | None = None


PROHIBITED = 2
"""nvml.h: NVML_COMPUTEMODE_PROHIBITED."""
NOT_READY = 0
"""nvml.h: NVML_CC_ACCEPTING_CLIENT_REQUESTS_FALSE. The driver then refuses all channels of programs (NVIDIA open kernel modules 595.45.04,
kernel_channel.c): until the GPUs are attested, and after a fatal error until the driver is loaded again."""
SETTINGS = (
    Setting(name="ecc_mode", of="readings.ecc_mode"),
    Setting(name="ecc_mode_pending", of="readings.ecc_mode_pending"),
    Setting(name="vbios", of="vbios"),
    Setting(name="pcie_generation", of="readings.pcie_generation_max"),
    Setting(name="pcie_width", of="readings.pcie_width_max"),
    Setting(name="gsp_mode", of="readings.gsp_mode"),
    Setting(name="persistence_mode", of="readings.persistence_mode", by_jobs=True),
    Setting(name="mig_mode", of="readings.mig_mode", by_jobs=True),
    Setting(name="compute_mode", of="readings.compute_mode", by_jobs=True, unusable=PROHIBITED),
    Setting(name="confidential_ready", of="readings.confidential_ready", unusable=NOT_READY),
    Setting(name="power_limit", of="readings.power_limit_mw", by_jobs=True, tolerance=0.05),
    Setting(name="power_limit_enforced", of="readings.power_enforced_limit_mw", by_jobs=True, tolerance=0.05),
    Setting(name="clock_sm", of="readings.clock_sm_application_mhz", by_jobs=True),
    Setting(name="clock_memory", of="readings.clock_memory_application_mhz", by_jobs=True),
)
FEWEST, ODD_SHARE = 4, 4
"""Minimum GPUs of one model for a majority, and how many of them allow one odd: one of four, two of eight."""
FORGOTTEN = 86_400.0
"""Seconds without a job on the GPU."""
SET_BY_JOBS = "set_by_jobs"
"""Detail of the finding about settings that jobs may change."""

_values = attrgetter(*(setting.of for setting in SETTINGS))


class Odd(NamedTuple):
    """A setting of one GPU that differs from its expected value."""

    facts: GpuFacts
    setting: Setting
    value: Value
    usual: Value | None
    """The expected value; None if any other is."""
    pinned: bool


def gpu_misconfigured(state: State, sight: Sight) -> Detection:
    """Detect odd settings: one finding per GPU, and a separate, slower one for settings that jobs may change."""
    differing = [odd for odd in odd_settings(sight) if odd.pinned or not _accepted(state, odd)]
    if not differing:
        return gpu_detection((), sight.answering)
    raised = {track.key for track in state.tracks_of("gpu_misconfigured") if track.raised}
    jobs = job_numbers(state.pins, sight)
    evidence: dict[Key, dict[str, Json]] = {}
    for odd in differing:
        by_job = odd.setting.by_jobs and not odd.pinned and odd.usual is not None
        key = Key("gpu_misconfigured", gpu(odd.facts.slot), SET_BY_JOBS if by_job else "")
        if by_job and key not in raised and (odd.facts.processes or jobs.get(odd.facts.slot)):
            continue
        shown = evidence.setdefault(key, {})
        shown[odd.setting.name] = odd.value
        if odd.usual is not None:
            shown[f"{odd.setting.name}_{'expected' if odd.pinned else 'of_siblings'}"] = odd.usual
    sightings = [Sighting(key, e, rise=FORGOTTEN if key.detail else None) for key, e in evidence.items()]
    return gpu_detection(sightings, sight.answering)


def odd_settings(sight: Sight) -> list[Odd]:
    """Return settings that differ from the site's value or, without one, from GPUs of the same name and part number."""
    pinned = _pinned(sight.rules.expected)
    models: dict[tuple[str, str], list[tuple[GpuFacts, Sequence[Value | None]]]] = {}
    for facts in sight.answering:
        models.setdefault((facts.name, facts.board_part), []).append((facts, _values(facts)))
    alike = all(len({values for _, values in group}) == 1 for group in models.values())  # the common case
    usable = not any(map(_unusable, sight.answering))
    if alike and usable and not pinned:
        return []
    return [
        odd
        for group in models.values()
        for at, setting in enumerate(SETTINGS)
        for odd in _odd([(facts, values[at]) for facts, values in group], setting, pinned.get(setting.name))
    ]


def _unusable(facts: GpuFacts) -> bool:
    return facts.readings.compute_mode == PROHIBITED or facts.readings.confidential_ready == NOT_READY


def _odd(readings: Iterable[tuple[GpuFacts, Value | None]], setting: Setting, pinned: int | None) -> Iterator[Odd]:
    values = [(facts, value) for facts, value in readings if value is not None and value != ""]
    yield from (Odd(facts, setting, value, None, False) for facts, value in values if value == setting.unusable)
    values = [(facts, value) for facts, value in values if value != setting.unusable]
    if not values:
        return
    common, _ = Counter(value for _, value in values).most_common(1)[0]
    usual = common if pinned is None else pinned
    odd = [
        Odd(facts, setting, value, usual, pinned is not None)
        for facts, value in values
        if _differs(value, usual, setting)
    ]
    if pinned is not None or (len(values) >= FEWEST and len(odd) * ODD_SHARE <= len(values)):
        yield from odd


def _differs(value: Value, usual: Value, setting: Setting) -> bool:
    if isinstance(value, str) or isinstance(usual, str):
        return value != usual
    return abs(value - usual) > setting.tolerance * usual


def _pinned(expected: ExpectedSettings) -> dict[str, int]:
    watts = expected.power_limit_watts
    milliwatts = None if watts is None else watts * 1000
    pins: dict[str, int | None] = {
        "persistence_mode": _ON_OFF.get(expected.persistence),
        "mig_mode": _ON_OFF.get(expected.mig),
        "power_limit": milliwatts,
        "power_limit_enforced": milliwatts,
        "clock_sm": expected.application_clock_sm_mhz,
        "clock_memory": expected.application_clock_memory_mhz,
    }
    return {name: value for name, value in pins.items() if value is not None}


_ON_OFF = {"on": 1, "off": 0}

# --- Settings that an operator accepted, as text: `ecc_mode=0 vbios=96.00.99.00.01`


def _text(setting: Setting, value: Value) -> str:
    return f"{setting.name}={str(value).replace(' ', '_')[:64]}"


def _accepted(state: State, odd: Odd) -> bool:
    pin = state.pins.get(odd.facts.slot)
    return pin is not None and _text(odd.setting, odd.value) in pin.settings.split()


def settings_kept(settings: str, slot: str, odd: Sequence[Odd]) -> str:
    """Return the accepted settings of the GPU in `slot`, with those that differ now accepted too."""
    here = [each for each in odd if each.facts.slot == slot and not each.pinned]
    names = {each.setting.name for each in here}
    others = [text for text in settings.split() if text.partition("=")[0] not in names]
    return " ".join(sorted([*others, *(_text(each.setting, each.value) for each in here)]))
