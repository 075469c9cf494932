"""Groups the findings of one fault into an incident: a cause and its consequences. Uses only findings and records.

Findings silenced by `inhibition.py` are consequences of their root. In addition, one fault appears in lines and
readings of several components in sequence; `incident_rules.py` defines which one is the cause. This hides nothing: each
finding keeps its severity, its reason and its place in the verdict. A cause is at least as severe as its consequences,
and a finding of a shadow check is never a cause.

A consequence whose cause has ended becomes a separate incident, unless it ends with its cause (`Rule.ends`): the
switches of a lost GPU need no repair. A later finding is a separate incident too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from gpuwarden_collectors.dataclass import dataclass, replace
from gpuwarden_collectors.facts import Stamp

ENDS_WITHIN = 60.0
"""Seconds. A finding with at most this fall time that is not observed makes no incident when its cause ends."""
_GPUS = ("gpu", "link")
_OVER_THE_FABRIC = (Where.OTHER_GPUS, Where.GPUS, Where.SWITCHES)
_RECORDED = frozenset(name.removeprefix("xid.") for rule in RULES for name in rule.consequences if "xid." in name)
"""Xids that are consequences even if they are only recorded."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """A finding, or a line that is only recorded (`severity` None), with its first and last time."""

    key: Key
    severity: Severity | None
    began: Stamp
    ended: Stamp
    silenced: Key | None = None
    """Its cause by `inhibition.py`."""
    may_cause: bool = True


_Causes = dict[tuple[str, str], list[_Sign]]
"""By name (a code, or `xid.79`) and slot. `_ANYWHERE`: all with that name."""
_ANYWHERE = "*"


def with_follows(state: State, shadows: frozenset[str]) -> State:
    """Return the state with `Moments.follows`: the first cause of each consequence (a finding or a recorded line).

    A consequence that is no longer seen and will soon end keeps a cause that ended before it. Recomputed only if a
    finding or a record appeared, ended or changed.
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
    """Yield findings that end because their cause has ended, with the cause. `before`: the previous `follows`."""
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
    """Return an incident for each finding without a cause: worst first, then oldest first."""
    causes = [track for track in raised if track.key not in follows]
    causes.sort(key=lambda track: (track.severity is not Severity.FAILURE, track.first_seen.wall, track.key))
    consequences: dict[Key, list[Key]] = {track.key: [] for track in causes}
    for key, (cause, _) in follows.items():
        if cause in consequences:
            consequences[cause].append(key)
    return tuple([Incident(cause, tuple(of)) for cause, of in consequences.items()])


def _of_track(state: State, track: Track, silenced: Mapping[Key, Key]) -> _Sign:
    """Return the sign of a finding. One from lines begins with its newest burst, so that a repeat counts separately."""
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
    """Yield signs of recorded Xids. An Xid 45 counts only if its line names its cause, since ending jobs log many."""
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
    """Return the rules by which this code and detail can be a consequence."""
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
        return False  # the lost GPU has no slot, or no link leads there
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
    """Return True if the times fit the rule by both clocks, since boot time restarts with a reboot.

    Of two equal codes, the earlier is the cause.
    """
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
