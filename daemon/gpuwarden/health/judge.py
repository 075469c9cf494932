r"""The judge: (state, view, host events, now) -> (new state, events, verdict). Pure.

In each pass GPUs are learned, host events become records, and every condition is examined. Each track moves as its
condition is seen or not:

    not seen -- seen --> rising -- seen for `rise` --> raised -- not seen for `fall` --> cleared
                            \-- not seen --> subsided      \-- not seen, latched --> latched -- released --> cleared

Every transition is an event; only `fold` changes the state by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from gpuwarden.features import parts
from gpuwarden.health import inventory
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import condition
from gpuwarden.health.confirmation import confirmed
from gpuwarden.health.dcgm.silence import given_up
from gpuwarden.health.deduplication import unread
from gpuwarden.health.detection import Detection
from gpuwarden.health.detectors import COUNTERS, DETECTORS, FAMILIES, FOLLOWERS
from gpuwarden.health.event_data import write
from gpuwarden.health.events import HealthSet, Raised
from gpuwarden.health.gpu import resets
from gpuwarden.health.gpu.reading_time import followed_reading_time
from gpuwarden.health.gpu.readings_lost import followed_readings
from gpuwarden.health.gpu.remaps import learn_remaps
from gpuwarden.health.gpu.speed_detectors import with_time_braked
from gpuwarden.health.host.learning import counted_host, learn_counts, learn_downs, learn_host
from gpuwarden.health.incidents import ended, with_follows
from gpuwarden.health.memory import Moments, State, Track, buried, with_error
from gpuwarden.health.model import NODE, Advice, Event, EventKind, Evidence, Health, Key, Latch, Sighting, Verdict
from gpuwarden.health.nvlink.fabrics import followed_fabrics
from gpuwarden.health.nvlink.link_counters import learn_links
from gpuwarden.health.nvlink.lost_in_use import followed_links
from gpuwarden.health.overrides import overridden
from gpuwarden.health.records import records
from gpuwarden.health.severity import NO_RULE, Assessment, assess, fall, in_shadow, rise
from gpuwarden.health.steps import Steps
from gpuwarden.health.verdict import verdict
from gpuwarden.health.view import CheckRule, Rules, Sight, View
from gpuwarden.health.windows import added, kept
from gpuwarden.health.xid.witnesses import believed, is_fallen, observed
from gpuwarden_collectors.dataclass import dataclass, replace
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import Stamp

_SET_ASIDE = parts("set_aside")
SUBSIDES_AFTER = 15.0
"""Seconds without a sighting after which a rising condition starts again: three passes, so that one missed sighting
does not reset it. If NVML passes are further apart: as long as its facts are fresh, but at most half of the rise."""
STILL_SEEN = 120.0
"""Seconds after its last sighting during which a finding cannot be acknowledged. A condition that can no longer be
examined (a reading that a new driver does not have, a reader that hangs) can end in no other way."""
LATCHES_AFTER = 15.0
"""Seconds without a sighting after which a latch becomes an event, so that occasional lines do not each cause one."""


@dataclass(frozen=True, slots=True)
class Step:
    state: State
    events: tuple[Event, ...]
    verdict: Verdict
    disbelieved: int = 0
    """Number of kernel log lines rejected because their slot is empty (`witnesses.py`)."""


def judge(state: State, view: View, host_events: Sequence[HostEvent], rules: Rules, now: Stamp) -> Step:
    """Make one step. `host_events`: those since the last step, which are processed before conditions are examined."""
    sight = Sight.of(view, rules, now)
    is_booted = view.boot_id != state.boot_id
    carried_over = replace(state, moments=Moments(unconfirmed=state.moments.unconfirmed)) if is_booted else state
    steps = Steps(followed_fabrics(observed(carried_over, sight), sight), now, view.boot_id)
    if is_booted:
        steps.emit(EventKind.BOOT)
    learned = (
        *inventory.learn(steps.state, sight),
        *learn_host(steps.state, sight),
        *learn_downs(steps.state, sight),
        *learn_remaps(steps.state.remaps, sight),
        *learn_links(steps.state.links, sight),
    )
    for event in learned:
        steps.take(event)
    news_of = unread(steps.state, host_events)
    taken = believed(steps.state, news_of)
    steps.state, recorded = records(steps.state, taken, view.boot_id)
    for event in (*recorded, *resets.recognised(steps.state, sight)):
        steps.take(event)
    recorded_keys = frozenset([e.key for e in recorded if e.key is not None and e.kind != EventKind.TEST_XID])
    if recorded_keys != steps.state.moments.news:
        asked = {**steps.state.moments.asked, **dict.fromkeys(filter(is_fallen, recorded_keys), now.boottime)}
        steps.state = replace(steps.state, moments=replace(steps.state.moments, news=recorded_keys, asked=asked))
    counted = counted_host(followed_readings(_counted(steps.state, sight), sight), sight)
    steps.state = followed_links(followed_reading_time(counted, sight), sight)
    broken = _follow_features(steps, sight)
    for event in learn_counts(steps.state, sight):
        steps.take(event)
    _run_detectors(steps, sight, broken)
    steps.settle()
    if steps.state.moments.unconfirmed:
        left = confirmed(steps.state, sight, steps.sighted)
        steps.state = replace(steps.state, moments=replace(steps.state.moments, unconfirmed=left))
    for kind, key, data in tuple(overridden(steps.state, rules)):
        steps.emit(kind, key, data)
    _with_causes(steps, state, rules)
    result = verdict(steps.state, sight)
    if result.health is not steps.state.health and not _before_the_first_pass(result, view):
        change = HealthSet(before=steps.state.health, to=result.health, reasons=" ".join(result.reasons[:5]))
        steps.emit(EventKind.HEALTH, data=write(change))
    return Step(steps.state, tuple(steps.events), result, len(news_of) - len(taken))


def _before_the_first_pass(result: Verdict, view: View) -> bool:
    """Return True while the node is unknown only because the daemon has just started.

    That is published, but is no event: a restart changes nothing about the node, and a fleet that is upgraded would send
    each of its receivers two messages for every node. A pass ends within its deadline, with any outcome.
    """
    return result.health is Health.UNKNOWN and result.unknown == ("starting",) and view.nvml.outcome is None


def _follow_features(steps: Steps, sight: Sight) -> dict[str, str]:
    """Run the follower of each feature. Returns the errors by feature; one that raises learns nothing in this step."""
    broken: dict[str, str] = {}
    for name, follow in FOLLOWERS.items():
        try:
            steps.state, learned = follow(steps.state, sight)
            for event in learned:
                steps.take(event)
        except Exception as error:  # noqa: BLE001 - as for detectors
            broken[name] = _short(error)
    return broken


def _with_causes(steps: Steps, before: State, rules: Rules) -> None:
    """Update causes and consequences, and clear findings that end with their cause."""
    shadows = frozenset({key.code for key in steps.state.tracks if in_shadow(key.code, rules)})
    steps.state = with_follows(steps.state, shadows)
    over = tuple(ended(before.moments.follows, steps.state)) if before.moments.follows else ()
    for key, cause in over:
        steps.emit(EventKind.CLEARED, key, {"by": f"its cause ended: {cause}"})
    if over:
        steps.state = with_follows(steps.state, shadows)


def _counted(state: State, sight: Sight) -> State:
    """Add to the windows the counters that were read since the last step."""
    at = sight.view.nvml.at
    if sight.nvml is None or at is None:
        return state
    readings = [
        ((facts.slot, name), min(facts.read_at.get(name, at.boottime), at.boottime), value)
        for facts in sight.answering
        for name, value in zip(COUNTERS, _counters(facts), strict=True)
        if value is not None
    ]
    windows = with_time_braked(added(state.moments.windows, readings), at.boottime, sight.answering)
    return (
        state
        if windows is state.moments.windows
        else replace(state, moments=replace(state.moments, windows=kept(windows, frozenset(state.pins))))
    )


_counters = attrgetter(*(f"readings.{name}" for name in COUNTERS))


def _run_detectors(steps: Steps, sight: Sight, broken: dict[str, str]) -> None:
    """Run the detectors of all conditions that the site has not disabled. An exception in one does not stop the others.

    `broken`: errors from earlier in the step, which are reported with those of detectors.
    """
    off = {code for code, rule in sight.rules.checks.items() if not rule.enabled}
    for code in off:
        _switched_off(steps, code)
    for code, detector in DETECTORS.items():
        try:
            if code not in off:
                _follow_own(steps, code, detector(steps.state, sight), sight)
        except Exception as error:  # noqa: BLE001 - other detectors must still find a dead GPU
            broken[code] = _short(error)
    for name, family in FAMILIES.items():
        try:
            for code, detection in family(steps.state, sight).items():
                if code not in off:
                    _follow(steps, code, detection, sight)
        except Exception as error:  # noqa: BLE001
            broken[name] = _short(error)
    broken = {**steps.state.broken, **broken}
    if broken and "collector_failed" not in off:
        why = "; ".join(f"{name}: {text}" for name, text in broken.items())[:400]
        evidence = {"why": f"a check of gpuwarden's own is broken and sees nothing: {why}"}
        broken_check = Sighting(Key("collector_failed", NODE, "judge"), evidence, advice=Advice.CONTACT_SUPPORT)
        _follow(steps, "collector_failed", Detection((broken_check,)), sight)


def _without_own(steps: Steps, code: str, detection: Detection, now: Stamp) -> Detection:
    """Return the detection without the effects of features' own work on GPUs. A feature that raises removes nothing."""
    for name, feature in _SET_ASIDE.items():
        try:
            detection = feature.without_own(steps.state, code, detection, now)
        except Exception as error:  # noqa: BLE001 - as for detectors
            steps.state = with_error(steps.state, name, error)
    return detection


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:120]


def _switched_off(steps: Steps, code: str) -> None:
    for track in steps.state.tracks_of(code):
        by = f"the site: checks.{code}.enabled is false"
        steps.emit(EventKind.CLEARED if track.raised else EventKind.SUBSIDED, track.key, {"by": by})


def _follow_own(steps: Steps, code: str, detection: Detection, sight: Sight) -> None:
    if detection.sightings or steps.state.tracks:
        _follow(steps, code, _without_own(steps, code, detection, sight.now), sight)


def _follow(steps: Steps, code: str, detection: Detection, sight: Sight) -> None:
    row = condition(code)
    if row is None:
        return
    before = steps.state.tracks_of(code)
    seen = {sighting.key for sighting in detection.sightings} if before else ()
    for sighting in detection.sightings:
        _seen(steps, row, sighting, sight)
    for track in before:
        if track.key not in seen and track.key.subject in detection.examined:
            _not_seen(steps, row, track, sight)


def _seen(steps: Steps, row: Condition, sighting: Sighting, sight: Sight) -> None:
    rule = sight.rules.checks.get(row.code, NO_RULE)
    key, now, track = sighting.key, sight.now, steps.track(sighting.key)
    wait, assessment = rise(row, rule, sighting), assess(steps.state, row, rule, sighting, track=track, sight=sight)
    if track is None:
        if not buried(steps.state, key):
            kind = EventKind.RISING if wait > 0 else EventKind.RAISED
            steps.emit(kind, key, _data(sighting, assessment, sighting.since or now, sight))
        return
    if key in steps.state.moments.unconfirmed:
        steps.sighted[key] = wait
    source, old_source = assessment.evidence.get("reported_by"), track.evidence.get("reported_by")
    changed = (assessment.severity, assessment.advice, source) != (track.severity, track.advice, old_source)
    due = not track.raised and now.boottime - track.first_seen.boottime >= wait
    if due or (track.raised and (changed or track.latched)):
        steps.emit(EventKind.RAISED, key, _data(sighting, assessment, track.first_seen, sight))
    else:
        steps.refresh(track.seen(assessment.severity, assessment.advice, assessment.evidence, now))


def _data(sighting: Sighting, assessment: Assessment, first: Stamp, sight: Sight) -> Evidence:
    counters = resets.counters(sight, sighting.key.subject.slot) if assessment.latch is Latch.RESET else ""
    data = Raised(
        evidence=assessment.evidence,
        count=sighting.count,
        severity=assessment.severity,
        advice=assessment.advice,
        latch=assessment.latch,
        first=first,
        counters=counters or None,
    )
    return write(data)


def _known_long_enough(state: State, row: Condition, slot: str) -> bool:
    """Return True if the counters of this GPU were followed for the whole window of the condition."""
    if not row.history:
        return True
    return max((s.followed for (of, _), s in state.moments.windows.items() if of == slot), default=0.0) >= row.history


def _not_seen(steps: Steps, row: Condition, track: Track, sight: Sight) -> None:
    now = sight.now
    if not _known_long_enough(steps.state, row, track.key.subject.slot):
        return
    if (reset := resets.answered(steps.state, track, sight)) is not None:
        steps.take(reset)
    clean = now.boottime - (track.clean_since or now).boottime
    rule = sight.rules.checks.get(row.code, NO_RULE)
    if not track.raised:
        if clean >= _subsides_after(row, rule, sight):
            steps.emit(EventKind.SUBSIDED, track.key)
            return
    elif _released(row, track, sight):
        steps.emit(EventKind.CLEARED, track.key, {"by": "reset, reboot or replacement"})
        return
    elif track.latch is not Latch.NONE:
        if not track.latched and _quiet(steps.state, track, now, clean) >= LATCHES_AFTER:
            steps.emit(EventKind.LATCHED, track.key)
            track = steps.state.tracks[track.key]
    elif clean >= fall(steps.state, row, rule, track):
        steps.emit(EventKind.CLEARED, track.key, given_up(track, sight))
        return
    if track.clean_since is None:
        steps.refresh(replace(track, clean_since=now))


def _subsides_after(row: Condition, rule: CheckRule, sight: Sight) -> float:
    if row.scope not in ("gpu", "link"):
        return SUBSIDES_AFTER
    half = (row.rise if rule.rise is None else rule.rise) / 2
    return max(SUBSIDES_AFTER, min(sight.rules.nvml_fresh_for, half))


def _quiet(state: State, track: Track, now: Stamp, clean: float) -> float:
    """Return the seconds since the newest kernel line of a latch, which the ledger keeps, or else the last sighting."""
    record = state.records.get(track.key)
    if record is None or record.boot_id != state.boot_id:
        return clean
    return now.boottime - record.last.boottime


def _released(row: Condition, track: Track, sight: Sight) -> bool:
    """Return True if the latch was released, and a GPU pass that began after that did not observe the condition again.

    A condition of the node is observed by other readers and needs no GPU pass: a host may have no GPU.
    """
    if track.released is None or track.latch is Latch.NONE:
        return False
    if row.scope == "node":
        return True
    started = sight.view.nvml.started  # of the current facts; a later pass may have failed
    return sight.nvml is not None and started is not None and started.boottime > track.released.boottime


def acknowledge(state: State, key: Key, by: str, now: Stamp, boot_id: str) -> Event:
    """Return the event by which an operator ends a finding that is no longer seen. Raises ValueError for others."""
    track = state.tracks.get(key)
    if track is None or not track.raised:
        alike = [str(other) for other, of in state.tracks.items() if of.raised and _named(other) == _named(key)]
        listed = f"did you mean {' or '.join(alike[:8])}?" if alike else "`gpuwarden status` lists them with their ids"
        raise ValueError(f"there is no finding {key}; {listed}")
    observed_now = not track.latched and track.clean_since is None
    row = condition(key.code)
    from_memory = row is not None and row.from_memory
    if observed_now and 0.0 <= now.boottime - track.last_seen.boottime <= STILL_SEEN and not from_memory:
        raise ValueError(f"{key} is still seen, so it cannot be acknowledged away: {_ends(track)}")
    return Event(kind=EventKind.ACKNOWLEDGED, at=now, boot_id=boot_id, key=key, data={"by": by})


def _named(key: Key) -> tuple[str, str]:
    return key.code, key.detail


def _ends(track: Track) -> str:
    return f"it ends when its cause does (advice: {track.advice.value.replace('_', ' ')})"
