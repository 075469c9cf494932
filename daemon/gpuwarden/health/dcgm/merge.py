"""Merges NVML's and DCGM's reports of the same fault into one finding, with both as evidence.

The sighting of gpuwarden's own detector is the finding, and DCGM's report is quoted as evidence. It makes a link that
NVML does not list a failure. A fault that only DCGM reports and that has a gpuwarden condition is a sighting of that
condition, with `source` dcgm in its evidence. If NVML was read and does not show the fault, DCGM must report it for the
time in the table of codes, and in two passes. If NVML has no such reading, two passes suffice, unless the table requires
more than a minute: a single error can cause a report of counter growth. A finding that only DCGM raised ends when its
check covers the subject without it (see silence.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator

from gpuwarden.health.dcgm.catalogue import DCGM_CODES, TWO_PASSES
from gpuwarden.health.dcgm.silence import covered_subjects, may_end
from gpuwarden.health.dcgm.statements import Statement, statements
from gpuwarden.health.detection import Detection, Detector, in_two_passes
from gpuwarden.health.model import NODE, Key, Severity, Sighting, Subject, gpu
from gpuwarden.health.nvlink.detectors import FABRIC_START, LEFT_OUT, expected_links
from gpuwarden.health.state import State, Track
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import replace

AGREEING = frozenset(row.agrees for row in DCGM_CODES.values()) - {"", "xid", "sxid"} | {"gpu_recovery_action"}
"""gpuwarden conditions for which DCGM has a code."""
_PASSIVE = frozenset(row.agrees for row in DCGM_CODES.values() if row.passive)
WHEREABOUTS = ("gpu_missing", "gpu_unresponsive", "gpu_reset_required")
"""gpuwarden conditions for which DCGM has no code, but a status of the GPU."""
_AGAINST = 60.0
"""Seconds for a code with an infinite time in the table, if NVML has no reading. Codes with a longer time keep it."""


def with_dcgm(code: str, detector: Detector) -> Detector:
    """Return `detector` with DCGM's reports about the condition `code` merged in."""
    if code in WHEREABOUTS:
        return _with_status(detector)
    return _merged(code, detector) if code in AGREEING else detector


def _merged(code: str, detector: Detector) -> Detector:
    def detect(state: State, sight: Sight) -> Detection:
        own = detector(state, sight)
        theirs = [track for track in state.tracks_of(code) if _only_from_dcgm(track)] if state.tracks else []
        if sight.dcgm is None and not theirs:
            return own
        reported = statements(state, sight, code)
        if not (reported or theirs or own.sightings):
            return own
        covered = covered_subjects(sight)
        mine = {_of_subject(sighting.key) for sighting in own.sightings}
        quoted = [_quoting(s, reported.get(_of_subject(s.key)), covered) for s in own.sightings]
        dcgm_only = _sightings(
            own,
            [statement for key, statement in reported.items() if key not in mine and not _rising(state, key)],
            state,
            sight,
        )
        subjects = {track.key.subject for track in theirs}
        ended = {track.key.subject for track in theirs if may_end(track, covered, sight)}
        return Detection((*quoted, *dcgm_only), own.examined - subjects | ended)

    return detect


def _of_subject(key: Key) -> Key:
    """Return the key without its detail, which DCGM's reports lack."""
    return replace(key, detail="")


def _only_from_dcgm(track: Track) -> bool:
    return track.evidence.get("source") == "dcgm"


def _rising(state: State, key: Key) -> bool:
    """Return True if gpuwarden's own detector saw the fault, not yet raised; DCGM's report must not raise it."""
    track = state.tracks.get(key)
    return track is not None and not track.raised and not _only_from_dcgm(track)


def _quoting(sighting: Sighting, statement: Statement | None, covered: Collection[Subject]) -> Sighting:
    subject = sighting.key.subject
    of_gpu = gpu(subject.slot) if subject.slot else NODE
    if statement is None and (sighting.key.code not in _PASSIVE or of_gpu not in covered):
        return sighting
    text = statement.text if statement else "does not report it"
    sighting = replace(sighting, evidence={**sighting.evidence, "dcgm": text})
    fails = statement is not None and statement.severity is Severity.FAILURE
    left_out = sighting.evidence.get("why") == LEFT_OUT
    return replace(sighting, severity=Severity.FAILURE) if fails and left_out else sighting


def _sightings(own: Detection, dcgm_only: Iterable[Statement], state: State, sight: Sight) -> Iterator[Sighting]:
    for statement in dcgm_only:
        contradicted = statement.key.subject in own.examined
        rise = _rise(statement, contradicted=contradicted, answered=any(sight.answering))
        if statement.severity is None or rise is None or _of_no_link(statement.key, state, sight):
            continue
        unused = _never_active(statement.key, state, sight)
        if statement.key.code == "nvlink_down" and sight.now.boottime < FABRIC_START:
            rise = max(rise, FABRIC_START)
        if not in_two_passes(state.tracks.get(statement.key), sight.view.dcgm.started, sight.now):
            rise = math.inf
        nvml = "never saw the link active" if unused else "does not show it" if contradicted else "has no reading of it"
        yield Sighting(
            statement.key,
            {"source": "dcgm", "dcgm": statement.text, "nvml": nvml},
            Severity.WARNING if unused else statement.severity,
            statement.advice,
            rise,
        )


def _rise(statement: Statement, *, contradicted: bool, answered: bool) -> float | None:
    """Return the seconds for which DCGM alone must report the fault; None if it never counts then.

    `answered`: some GPU answers NVML. A code about counter growth requires it.
    """
    if statement.lasts == math.inf:
        return None if contradicted or not answered or not statement.fresh else _AGAINST
    return statement.lasts if contradicted or statement.lasts > _AGAINST else TWO_PASSES


def _of_no_link(key: Key, state: State, sight: Sight) -> bool:
    """Return True if the GPU has no link to lose.

    DCGM reports every link that is not up in NVML as down, even on a card without a bridge.
    """
    return key.code == "nvlink_down" and not expected_links(state, sight, key.subject.slot)


def _never_active(key: Key, state: State, sight: Sight) -> bool:
    """Return True if the link was never active on this board: it may be unconnected."""
    if key.code != "nvlink_down" or not key.subject.part.isdecimal():
        return False
    return not expected_links(state, sight, key.subject.slot) >> int(key.subject.part) & 1


def _with_status(detector: Detector) -> Detector:
    def detect(state: State, sight: Sight) -> Detection:
        own = detector(state, sight)
        if not own.sightings or sight.dcgm is None:
            return own
        statuses = {each.slot: each.status.value for each in sight.dcgm.gpus if each.slot}
        quoted = (
            replace(s, evidence={**s.evidence, "dcgm": f"status {statuses[s.key.subject.slot]}"})
            if s.key.subject.slot in statuses
            else s
            for s in own.sightings
        )
        return Detection(tuple(quoted), own.examined)

    return detect
