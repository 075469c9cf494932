r"""The judge: (state, what is seen, what happened, now) -> (new state, events, verdict). Pure.

Each pass: GPUs are learned, host events become records, every condition is looked for, and what is seen or no longer
seen moves its track:

    not seen -- seen --> rising -- seen for `rise` --> raised -- not seen for `fall` --> cleared
                            \-- not seen --> subsided      \-- not seen, latched --> latched -- released --> cleared

Every such step is an event; `fold` alone changes the state by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuwarden.health import inventory
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import CONDITIONS, condition
from gpuwarden.health.detectors import COUNTERS, DETECTORS, FAMILIES
from gpuwarden.health.look import Look, answering
from gpuwarden.health.model import Advice, Event, EventKind, Evidence, Key, Latch, Severity, Sighting, Verdict
from gpuwarden.health.records import records
from gpuwarden.health.state import State, Track, fold
from gpuwarden.health.verdict import verdict
from gpuwarden.health.view import Rules, Sight, View
from gpuwarden.health.windows import added, kept
from gpuwarden_collectors.facts import HostEvent, Stamp

SUBSIDES_AFTER = 15.0
"""Seconds without a sighting after which a rising condition starts anew: three passes, so that one gap is no gap."""


@dataclass(frozen=True, slots=True)
class Step:
    state: State
    events: tuple[Event, ...]
    verdict: Verdict


class _Steps:
    """The state within one step: each event that is decided is folded at once and remembered."""

    def __init__(self, state: State, now: Stamp, boot_id: str) -> None:
        self.state = state
        self.events: list[Event] = []
        self._now = now
        self._boot_id = boot_id

    def take(self, event: Event) -> None:
        self.events.append(event)
        self.state = fold(self.state, event)

    def happened(self, kind: EventKind, key: Key | None = None, data: Evidence | None = None) -> None:
        self.take(Event(kind=kind, at=self._now, boot_id=self._boot_id, key=key, data=data or {}))

    def update(self, track: Track) -> None:
        """Refresh what needs no event: sightings that go on, and since when there are none."""
        if self.state.tracks.get(track.key) != track:
            self.state = replace(self.state, tracks={**self.state.tracks, track.key: track})


def judge(state: State, view: View, happened: Sequence[HostEvent], rules: Rules, now: Stamp) -> Step:
    """One step. `happened` are the host events since the last one; they are taken before the conditions are looked at."""
    sight = Sight.of(view, rules, now)
    steps = _Steps(state, now, view.boot_id)
    if view.boot_id != state.boot_id:
        steps.happened(EventKind.BOOT)
    for event in inventory.learn(steps.state, sight):
        steps.take(event)
    steps.state, recorded = records(steps.state, happened, view.boot_id)
    for event in recorded:
        steps.take(event)
    steps.state = replace(steps.state, news=frozenset(event.key for event in recorded if event.key is not None))
    steps.state = _counted(steps.state, sight)
    for code, detector in DETECTORS.items():
        _follow(steps, CONDITIONS[code], detector(steps.state, sight), sight)
    for family in FAMILIES:
        for code, look in family(steps.state, sight).items():
            if (row := condition(code)) is not None:
                _follow(steps, row, look, sight)
    result = verdict(steps.state, sight)
    if result.health is not steps.state.health:
        data = {"from": steps.state.health.value, "to": result.health.value, "reasons": " ".join(result.reasons[:5])}
        steps.happened(EventKind.HEALTH, data=data)
    return Step(steps.state, tuple(steps.events), result)


def _counted(state: State, sight: Sight) -> State:
    """Add this pass to the windows, unless it was added already."""
    at = sight.view.nvml.at
    if sight.nvml is None or at is None:
        return state
    readings = {
        (facts.slot, name): value
        for facts in answering(sight)
        for name in COUNTERS
        if (value := getattr(facts.readings, name)) is not None
    }
    old = next(iter(readings), None)
    if old is not None and (known := state.windows.get(old)) is not None and known.at >= at.boottime:
        return state
    slots = frozenset(state.pins)
    return replace(state, windows=kept(added(state.windows, at.boottime, readings), slots))


def _follow(steps: _Steps, row: Condition, look: Look, sight: Sight) -> None:
    for sighting in look.sightings:
        _seen(steps, row, sighting, sight.now)
    seen = {sighting.key for sighting in look.sightings}
    for key, track in list(steps.state.tracks.items()):
        if key.code == row.code and key not in seen and key.subject in look.examined:
            _not_seen(steps, row, track, sight)


def _seen(steps: _Steps, row: Condition, sighting: Sighting, now: Stamp) -> None:
    severity, advice = sighting.severity or row.severity, sighting.advice or row.advice
    rise = row.rise if sighting.rise is None else sighting.rise
    track = steps.state.tracks.get(sighting.key)
    if track is None:
        kind = EventKind.RISING if rise > 0 else EventKind.RAISED
        latch = row.latch if severity is Severity.FAILURE else Latch.NONE
        steps.happened(kind, sighting.key, _data(sighting, severity, advice, latch, now))
        return
    changed = (severity, advice) != (track.severity, track.advice)
    due = not track.raised and now.boottime - track.first_seen.boottime >= rise
    if due or (track.raised and changed) or (track.raised and track.latched):
        latch = row.latch if severity is Severity.FAILURE else track.latch
        data = _data(sighting, severity, advice, latch, track.first_seen)
        steps.happened(EventKind.RAISED, sighting.key, data)
    else:
        track = replace(track, severity=severity, advice=advice)
        steps.update(replace(track, evidence=sighting.evidence, last_seen=now, clean_since=None))


def _data(sighting: Sighting, severity: Severity, advice: Advice, latch: Latch, first: Stamp) -> Evidence:
    return {
        **sighting.evidence, "count": sighting.count, "severity": severity.value, "advice": advice.value, "latch": latch.value,
        "first_boottime": first.boottime, "first_wall": first.wall,
    }  # fmt: skip


def _known_long_enough(state: State, row: Condition, slot: str) -> bool:
    """Whether the counters of this GPU were followed for as long as the condition looks back."""
    spans = [series.at - series.samples[0][0] for (of, _), series in state.windows.items() if of == slot]
    return not row.history or max(spans, default=0.0) >= row.history


def _not_seen(steps: _Steps, row: Condition, track: Track, sight: Sight) -> None:
    now = sight.now
    if not _known_long_enough(steps.state, row, track.key.subject.slot):
        return
    since = track.clean_since or now
    clean = now.boottime - since.boottime
    if not track.raised:
        if clean >= SUBSIDES_AFTER:
            steps.happened(EventKind.SUBSIDED, track.key)
            return
    elif _released(track, sight):
        steps.happened(EventKind.CLEARED, track.key, {"by": "reset, reboot or replacement"})
        return
    elif track.latch is not Latch.NONE:
        if not track.latched:
            steps.happened(EventKind.LATCHED, track.key)
            track = steps.state.tracks[track.key]
    elif clean >= row.fall:
        steps.happened(EventKind.CLEARED, track.key)
        return
    steps.update(replace(track, clean_since=since))


def _released(track: Track, sight: Sight) -> bool:
    """Something ended the latch, and a GPU pass that began after it did not see the condition again."""
    latest = sight.view.nvml.latest
    if track.released is None or latest is None or sight.nvml is None:
        return False
    return track.latch is not Latch.NONE and latest.started.boottime > track.released.boottime


def acknowledge(state: State, key: Key, by: str, now: Stamp, boot_id: str) -> Event:
    """The event by which an operator ends a finding that is no longer seen. Raises ValueError, with the reason, for others."""
    track = state.tracks.get(key)
    if track is None or not track.raised:
        raise ValueError(f"there is no finding {key}; `gpuwarden status` lists them with their ids")
    if not track.latched and track.clean_since is None:
        raise ValueError(f"{key} is still seen, so it cannot be acknowledged away: {_ends(track)}")
    return Event(kind=EventKind.ACKNOWLEDGED, at=now, boot_id=boot_id, key=key, data={"by": by})


def _ends(track: Track) -> str:
    return f"it ends when its cause does (advice: {track.advice.value.replace('_', ' ')})"
