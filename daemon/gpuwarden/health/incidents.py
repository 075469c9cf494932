"""One fault, one incident: which finding is the cause of which others. Derived from findings and records alone.

What `inhibition.py` silences follows from its root. Besides, one fault shows in lines and readings of several components, one after
the other: `incident_rules.py` says which of them is the cause. Nothing is hidden by that: each keeps its severity, its reason and
its place in the verdict. A cause is at least as severe as what follows from it, and no finding of a shadow check is one.

A consequence whose cause is over is an incident of its own; of those that end with their cause (`Rule.ends`) none is left:
the switches of a lost GPU have nothing that is to be repaired. What comes later stands for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import is_

from gpuwarden.health.conditions import condition
from gpuwarden.health.incident_rules import RULES, Rule, Where
from gpuwarden.health.inhibition import as_severe, root_causes
from gpuwarden.health.memory import Follows, Record, State, Track, counts
from gpuwarden.health.model import Incident, Key, Latch, Severity
from gpuwarden.health.nvlink.fabrics import in_one_fabric
from gpuwarden.health.xid.lines import followed
from gpuwarden.health.xid.ruling import newest_signs
from gpuwarden.health.xid.witnesses import CONTRADICTED
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

ENDS_WITHIN = 60.0
"""Seconds: a finding that falls this fast and is no longer observed is about to end, and makes no incident when its
cause ends."""
_GPUS = ("gpu", "link")
_OVER_THE_FABRIC = (Where.OTHER_GPUS, Where.GPUS, Where.SWITCHES)
_RECORDED = frozenset(name.removeprefix("xid.") for rule in RULES for name in rule.consequences if "xid." in name)
"""Numbers of the Xids that are consequences even if they are only recorded."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """A finding, or a line that is only recorded (`severity` None): when it began and last came."""

    key: Key
    severity: Severity | None
    began: Stamp
    ended: Stamp
    silenced: Key | None = None
    """What it follows from by `inhibition.py`."""
    may_cause: bool = True


_Causes = dict[tuple[str, str], list[_Sign]]
"""By name (a code, or `xid.79`) and slot; under `_ANYWHERE` all of that name."""
_ANYWHERE = "*"


def with_follows(state: State, shadows: frozenset[str]) -> State:
    """State with `Moments.follows`: for each consequence, a finding or a recorded line, the finding that its incident begins with.

    A consequence that is about to end, since it is seen no more, still follows from a cause that has ended before it. Recomputed
    only if a finding or a record came, went or changed.
    """
    raised = [track for track in state.tracks.values() if track.raised and track.key.code not in shadows]
    if not raised:
        return (
            replace(state, moments=replace(state.moments, follows={}, incidents=(), follows_of=()))
            if state.moments.follows_of
            else state
        )
    identities = tuple([(track.key, track.severity, track.first_seen) for track in raised])
    before = state.moments.follows_of
    sources = (state.records, state.resets, state.moments.fabrics)
    if before and all(map(is_, before[0], sources)) and before[1] == identities:
        current = before[2]
    else:
        current = _found(state, raised, shadows)
        state = replace(state, moments=replace(state.moments, follows_of=(sources, identities, current)))
    if current is state.moments.follows:
        return state
    left = {
        key: of for key, of in state.moments.follows.items() if key not in current and _is_ending(state.tracks.get(key))
    }
    follows = {**current, **left} if left else current
    return replace(state, moments=replace(state.moments, follows=follows, incidents=_incidents(raised, follows)))


def _found(state: State, raised: Sequence[Track], shadows: frozenset[str]) -> Follows:
    silenced = root_causes(raised, shadows)
    signs = [_of_track(state, track, silenced) for track in raised]
    if any(sign.key.code in ("xid", "sxid") for sign in signs):
        signs += _recorded(state)
    return _follows(signs, state)


def _is_ending(track: Track | None) -> bool:
    if track is None or not track.raised or track.clean_since is None or track.latch is not Latch.NONE:
        return False
    row = condition(track.key.code)
    return row is not None and row.fall <= ENDS_WITHIN


def ended(before: Follows, state: State) -> Iterator[tuple[Key, Key]]:
    """Findings that end because their cause has, with that cause. `before`: the consequences and causes of the previous step."""
    for key, (cause, ends) in before.items():
        track, gone = state.tracks.get(key), state.tracks.get(cause)
        over = gone is None or not gone.raised
        if (
            ends
            and over
            and key not in state.moments.follows
            and track is not None
            and track.raised
            and key not in state.moments.news
        ):
            yield key, cause


def _incidents(raised: Sequence[Track], follows: Follows) -> tuple[Incident, ...]:
    """Incidents, one for each finding that follows from nothing: the worst first, then the oldest."""
    causes = [track for track in raised if track.key not in follows]
    causes.sort(key=lambda track: (track.severity is not Severity.FAILURE, track.first_seen.wall, track.key))
    consequences: dict[Key, list[Key]] = {track.key: [] for track in causes}
    for key, (cause, _) in follows.items():
        if cause in consequences:
            consequences[cause].append(key)
    return tuple([Incident(cause, tuple(of)) for cause, of in consequences.items()])


def _of_track(state: State, track: Track, silenced: Mapping[Key, Key]) -> _Sign:
    """Sign of a finding. A finding made of lines began with the first line of its newest burst: what comes again stands for itself."""
    record = state.records.get(track.key)
    began, last = (track.first_seen, track.first_seen) if record is None else _times(record)
    may_cause = CONTRADICTED not in track.evidence
    return _Sign(track.key, track.severity, began, last, silenced.get(track.key), may_cause)


def _times(record: Record) -> tuple[Stamp, Stamp]:
    if not record.bursts:
        return record.last, record.last
    began = record.bursts[-1].began
    return Stamp(began, record.last.wall - (record.last.boottime - began)), record.last


def _recorded(state: State) -> Iterator[_Sign]:
    """Yield signs of recorded Xids. An Xid 45 counts only if its line names the Xid before it, since jobs that end
    cause many.
    """
    for record in state.records.values():
        named = record.key.code == "xid" and record.key.detail in _RECORDED and record.key not in state.tracks
        if not named or record.history or not counts(state, record):
            continue
        if record.key.detail != "45" or any(map(followed, newest_signs(record))):
            yield _Sign(record.key, None, *_times(record))


def _follows(signs: Sequence[_Sign], state: State) -> Follows:
    causes: _Causes = {}
    for sign in signs:
        if sign.may_cause and sign.severity is not None:
            for name in _names(sign.key.code, sign.key.detail):
                causes.setdefault((name, sign.key.subject.slot), []).append(sign)
                causes.setdefault((name, _ANYWHERE), []).append(sign)
    direct: dict[Key, tuple[Key, bool]] = {}
    for sign in signs:
        if sign.silenced is not None:
            direct[sign.key] = sign.silenced, False
        elif (cause := _cause(sign, causes, state)) is not None:
            direct[sign.key] = cause
    return {key: _first(key, direct) for key in sorted(direct)}


def _first(key: Key, direct: Follows) -> tuple[Key, bool]:
    """Return the first cause in the chain, and whether any finding in it ends with its cause."""
    ends = False
    for _ in direct:
        if key not in direct:
            break
        key, link_ends = direct[key]
        ends = ends or link_ends
    return key, ends


@lru_cache(maxsize=512)
def _names(code: str, detail: str) -> tuple[str, ...]:
    return (code, f"{code}.{detail}") if detail else (code,)


@lru_cache(maxsize=512)
def _rules(code: str, detail: str) -> tuple[Rule, ...]:
    """Rules by which this code and detail can be a consequence."""
    names = set(_names(code, detail))
    return tuple(rule for rule in RULES if not names.isdisjoint(rule.consequences))


def _cause(sign: _Sign, causes: _Causes, state: State) -> tuple[Key, bool] | None:
    """Return the cause that is nearest in time, and whether the finding ends with it."""
    key, severity = sign.key, sign.severity
    candidates = [
        (_apart(cause, sign), cause.key, rule.ends)
        for rule in _rules(key.code, key.detail)
        for cause in causes.get((rule.cause, key.subject.slot if rule.where is Where.SAME_SLOT else _ANYWHERE), ())
        if cause.key != key and (severity is None or as_severe(cause.severity, severity))
        if _there(rule.where, cause.key, key, state) and _then(rule, cause, sign)
    ]
    if not candidates:
        return None
    _, nearest, ends = min(candidates)
    return nearest, ends


def _there(where: Where, cause: Key, other: Key, state: State) -> bool:
    of, at = cause.subject, other.subject
    elsewhere = where in _OVER_THE_FABRIC and of.slot != at.slot and not in_one_fabric(state, of.slot, at.slot)
    if not of.slot or elsewhere:
        return False  # no slot names what is lost, or no link leads there
    match where:
        case Where.SAME_SLOT:
            return of.slot == at.slot
        case Where.OTHER_GPUS:
            return at.kind in _GPUS and of.slot != at.slot
        case Where.GPUS:
            return at.kind in _GPUS
        case Where.SWITCHES:
            return at.kind == "switch"
    return at.kind == "node"


def _then(rule: Rule, cause: _Sign, sign: _Sign) -> bool:
    """True if the times fit the rule by both clocks: boot time means nothing for what outlived a reboot. Of two alike, the earlier is the cause."""
    if cause.key.code == sign.key.code and rule.before == 0.0 and (cause.began, cause.key) >= (sign.began, sign.key):
        return False
    return all(
        first - rule.before <= at <= last + rule.within
        for first, last, at in (
            (cause.began.boottime, cause.ended.boottime, sign.began.boottime),
            (cause.began.wall, cause.ended.wall, sign.began.wall),
        )
    )


def _apart(cause: _Sign, sign: _Sign) -> float:
    return abs(cause.began.boottime - sign.began.boottime)
