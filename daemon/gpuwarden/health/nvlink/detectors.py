"""Detectors for NVLink and the NVSwitch fabric."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter

from gpuwarden.health.condition import LIMITED, NO_MANAGER
from gpuwarden.health.detection import Detection, gpu_detection
from gpuwarden.health.model import Advice, Evidence, Key, Severity, Sighting, Subject, gpu, link
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden.health.windows import Series
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts

LEFT_OUT = "the driver does not list it any more"


def expected_links(state: State, sight: Sight, slot: str) -> int:
    """Return the bit mask of the NVLinks that the GPU in `slot` can lose: those ever active on this board.

    0 if none was: a card without a bridge, a GPU passed through to a guest (NVSentinel#1481). 0 with MIG enabled, which
    turns links off by design.
    """
    pin, facts = state.pins.get(slot), sight.gpus.get(slot)
    in_mig = facts is not None and facts.readings.mig_mode
    return 0 if pin is None or in_mig else pin.links


def nvlink_down(state: State, sight: Sight) -> Detection:
    """Detect links that were active on this board before, and now are inactive or left out by the driver."""
    sightings: list[Sighting] = []
    examined: list[tuple[str, tuple[int, ...]]] = []
    for facts in sight.answering:
        expected = expected_links(state, sight, facts.slot)
        examined.append((facts.slot, tuple([link.link for link in facts.links if link.active is not None])))
        left_out = _left_out(facts, expected)
        down = [link.link for link in facts.links if link.active is False and expected >> link.link & 1] + left_out
        if not down:
            continue
        in_use = _in_use(state, facts, down)
        reset = len(down) == expected.bit_count() and not in_use
        rise = FABRIC_START if reset or sight.now.boottime < FABRIC_START else None
        unsure = frozenset(left_out) if left_out and not _beside(facts, sight) else frozenset[int]()
        for number in down:
            key = Key("nvlink_down", link(facts.slot, number))
            more: Evidence = {"in_use": True} if in_use else {}
            why: Evidence = {"why": LEFT_OUT} if number in left_out else {}
            severity = Severity.WARNING if number in unsure and not _fails(state, key) else None
            sightings.append(Sighting(key, {"link": number, **more, **why}, severity, rise=rise))
    return Detection(tuple(sightings), _links(tuple(examined)).union(_given_up(state, sight)))


def _left_out(facts: GpuFacts, expected: int) -> list[int]:
    """Return the expected links that NVML does not list: it answers "not supported" for them.

    So it does for links that found no partner when the driver loaded: for all 18 of an H100 without one (measured). The
    driver drops links that do not train from its mask of enabled links (NVIDIA open kernel modules 595.45.04,
    knvlinkFloorSweep).
    """
    missing = expected & ~sum([1 << link.link for link in facts.links])
    return [number for number in range(missing.bit_length()) if missing >> number & 1]


def _beside(facts: GpuFacts, sight: Sight) -> bool:
    """Return True if this GPU, or another of its name, has an active link. If none has, NVLink may be switched off."""
    alike = (other for other in sight.answering if other.name == facts.name)
    return any(link.active for other in alike for link in other.links)


def _fails(state: State, key: Key) -> bool:
    track = state.tracks.get(key)
    return track is not None and track.raised and track.severity is Severity.FAILURE


def _in_use(state: State, facts: GpuFacts, down: Sequence[int]) -> bool:
    """Return True if one of these links went down while a process had the GPU open. The process may have died of it."""
    seen = state.moments.links_seen.get(facts.slot)
    if seen is not None and any(seen.lost_in_use >> number & 1 for number in down):
        return True
    tracks = (state.tracks.get(Key("nvlink_down", link(facts.slot, number))) for number in down)
    return any(track is not None and track.raised and "in_use" in track.evidence for track in tracks)


def _given_up(state: State, sight: Sight) -> Iterator[Subject]:
    """Yield links with a finding that are no longer expected: board replaced, links disabled, an operator's order.

    Only a GPU that answers shows that.
    """
    for track in state.tracks_of("nvlink_down"):
        slot, number = track.key.subject.slot, track.key.subject.part
        facts = sight.gpus.get(slot)
        answers = facts is not None and facts.answer is GpuAnswer.OK
        if answers and number.isdecimal() and not expected_links(state, sight, slot) >> int(number) & 1:
            yield link(slot, int(number))


@lru_cache(maxsize=4)
def _links(of: tuple[tuple[str, tuple[int, ...]], ...]) -> frozenset[Subject]:
    """Return the subjects of these links. Cached, since every pass examines the same links."""
    return frozenset(link(slot, number) for slot, numbers in of for number in numbers)


_COUNTERS = (
    ("nvlink_replay_errors", "nvlink_dl_replay_errors"),
    ("nvlink_recovery_errors", "nvlink_dl_recovery_errors"),
    ("nvlink5_recoveries",),
    ("nvlink5_recovery_failures",),
)
"""Counters of one kind of error. On Hopper the driver's own sums stay 0, or are not supported, and only the counters of the links grow
(DataDog/datadog-agent#55966, NVIDIA/DCGM#173); on Ampere both do."""
NVLINK_ERRORS = tuple(chain.from_iterable(_COUNTERS))
NVLINK_ERRORS_LIMIT, NVLINK_ERRORS_WINDOW = 10, 600.0
"""Own choice. DCGM fails a GPU for one replay per minute, which a retraining link causes; gpuwarden warns."""
ALL_THE_TIME, PARTS = 5.0, 3
"""Replays and recoveries per second, in each third of the window, at which a link carries no useful traffic. A
retraining link counts hundreds at once, in one burst. The worst link in field reports that still worked had 3
recoveries in 21 minutes."""


def nvlink_errors(state: State, sight: Sight) -> Detection:
    """Detect persistent replays and recoveries: more than the retraining of a link causes."""
    sightings, examined = [], []
    for facts in sight.answering:
        counted = _counted(state, facts.slot)
        if not counted:
            continue
        examined.append(facts)
        if sum([series.grown for _, series in counted]) < NVLINK_ERRORS_LIMIT:
            continue
        grown = {name.removeprefix("nvlink_"): series.growth(NVLINK_ERRORS_WINDOW)[0] for name, series in counted}
        if sum(grown.values()) >= NVLINK_ERRORS_LIMIT:
            severity = Severity.FAILURE if _all_the_time([s for _, s in counted]) else Severity.WARNING
            sightings.append(Sighting(Key("nvlink_errors", gpu(facts.slot)), grown, severity))
    return gpu_detection(sightings, examined)


def _counted(state: State, slot: str) -> list[tuple[str, Series]]:
    """Return the windows of a GPU by name; of two counters of one kind the one that grew more."""
    windows, counted = state.moments.windows, []
    for names in _COUNTERS:
        same = [series for name in names if (series := windows.get((slot, name))) is not None]
        if same:
            counted.append((names[0], max(same, key=attrgetter("grown"))))
    return counted


def _all_the_time(counters: Sequence[Series]) -> bool:
    """Return True if each part of the window has at least `ALL_THE_TIME` errors per second."""
    part = NVLINK_ERRORS_WINDOW / PARTS
    until = [sum([series.growth(n * part)[0] for series in counters]) for n in range(PARTS + 1)]
    followed = max(series.followed for series in counters) >= NVLINK_ERRORS_WINDOW
    return followed and all(until[n + 1] - until[n] >= ALL_THE_TIME * part for n in range(PARTS))


FABRIC_FAULTS = {4: "route unhealthy", 6: "access timeout"}
FABRIC_LIMITS = {0: "bandwidth degraded", 2: "route recovery"}
"""Two bits each in the fabric health mask: 1 true, 2 false, 0 not supported (nvml.h, NVML_GPU_FABRIC_HEALTH_MASK_*). With the limits alone the
driver calls a GPU of limited capacity, not unhealthy (NVIDIA open kernel modules 595.45.04, nvlinkGetFabricHealthSummary), and it works: if a
switch or trunk link is out, all GPUs of a rack have less bandwidth (NMX-M, partition health: operational)."""
WRONG_CONFIGURATION = {
    2: "system GUID",
    3: "chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware of the GPU",
    7: "location",
    8: "state of the GPU",
}
"""Four bits of the mask from `CONFIGURATION` on; 0 and 1 are no fault."""
CONFIGURATION, PARTITION, NOT_ASSIGNED = 8, 12, 2
MANAGER, DISCONNECTED = 14, 2
"""The mask's flag for the global fabric manager (nvml.h 13.5, NVML_GPU_FABRIC_HEALTH_MASK_GFM_STATE_*). It is not part of the driver's
summary."""
FABRIC_START = 300.0
"""Seconds allowed for registration with the fabric manager and link training after a boot or a GPU reset. 214 of 288
nodes had links down for one poll after planned reboots (NVSentinel#1701)."""
FABRIC_LASTS = 60.0


UNHEALTHY, LIMITED_CAPACITY = 2, 3
"""fabric_health_summary: the driver's own verdict (nvml.h, NVML_GPU_FABRIC_HEALTH_SUMMARY_*). Newer drivers may have flags in the mask that are not
read here."""
REGISTERED = 3
"""fabric_state: registration with the fabric manager is complete (nvml.h, NVML_GPU_FABRIC_STATE_COMPLETED)."""
_UNNAMED = "for a reason that the health mask does not name"


def _fabric_fault(facts: GpuFacts) -> tuple[str, float] | None:
    r = facts.readings
    if r.fabric_state in (1, 2):
        return ("not registered with the fabric manager", FABRIC_START)
    if r.fabric_state == REGISTERED and r.fabric_status:
        return (f"registration with the fabric failed with status {r.fabric_status}", 0.0)
    mask = r.fabric_health_mask or 0
    bad = [text for bit, text in FABRIC_FAULTS.items() if mask >> bit & 3 == 1]
    if (wrong := mask >> CONFIGURATION & 0xF) not in (0, 1):
        bad.append(f"wrong configuration: {WRONG_CONFIGURATION.get(wrong, wrong)}")
    if mask >> PARTITION & 3 == NOT_ASSIGNED:
        bad.append("no partition is assigned")
    if not bad and r.fabric_health_summary == UNHEALTHY:
        bad.append(f"unhealthy, {_UNNAMED}")
    return (", ".join(bad), FABRIC_LASTS) if bad else None


def _fabric_limits(facts: GpuFacts) -> str:
    """Return what limits the bandwidth of the GPU in the fabric, or ""."""
    mask = facts.readings.fabric_health_mask or 0
    limits = [text for bit, text in FABRIC_LIMITS.items() if mask >> bit & 3 == 1]
    if not limits and facts.readings.fabric_health_summary == LIMITED_CAPACITY:
        limits.append(f"limited capacity, {_UNNAMED}")
    return ", ".join(limits)


def fabric_unhealthy(_: State, sight: Sight) -> Detection:
    sightings, examined = [], []
    for facts in sight.answering:
        readings, subject = facts.readings, gpu(facts.slot)
        if readings.fabric_state is None:
            continue
        examined.append(facts)
        rest: Evidence = {"state": readings.fabric_state, "mask": readings.fabric_health_mask}
        if (fault := _fabric_fault(facts)) is not None:
            key, evidence = Key("fabric_unhealthy", subject), {"why": fault[0], **rest}
            sightings.append(Sighting(key, evidence, Severity.FAILURE, rise=fault[1]))
        if limits := _fabric_limits(facts):
            key, evidence = Key("fabric_unhealthy", subject, LIMITED), {"why": limits, **rest}
            advice = Advice.INSPECT_HARDWARE
            sightings.append(Sighting(key, evidence, Severity.WARNING, advice, rise=FABRIC_LASTS))
        if (readings.fabric_health_mask or 0) >> MANAGER & 3 == DISCONNECTED:
            key = Key("fabric_unhealthy", subject, NO_MANAGER)
            evidence = {"why": "the global fabric manager is disconnected", **rest}
            sightings.append(Sighting(key, evidence, Severity.WARNING, Advice.OBSERVE, rise=FABRIC_START))
    return gpu_detection(sightings, examined)
