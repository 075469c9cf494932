"""Merges NVML's and DCGM's reports of the same fault into one finding, with both as evidence.

What gpuwarden's own detector sees is the finding, and DCGM's report is quoted beside it. A report of DCGM alone about a fault that we
have a condition for is a sighting of that condition, with `source` dcgm in its evidence. Where NVML was read and shows
nothing, DCGM must report it for as long as the table of codes asks, a minute and two passes at least; where NVML has no such reading,
two passes are enough, unless the code is about growth, which one error makes. A finding that DCGM alone raised ends
when DCGM's check covers the subject and no longer reports it (see silence.py).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from gpuwarden.health.dcgm.catalogue import DCGM_CODES, TWO_PASSES
from gpuwarden.health.dcgm.silence import covered_subjects, may_end
from gpuwarden.health.dcgm.statements import Statement, statements
from gpuwarden.health.detection import Detection, Detector, in_two_passes
from gpuwarden.health.model import NODE, Key, Severity, Sighting, Subject, gpu
from gpuwarden.health.nvlink.detectors import FABRIC_START, expected_links
from gpuwarden.health.state import State, Track
from gpuwarden.health.view import Sight

AGREEING = frozenset(row.agrees for row in DCGM_CODES.values()) - {"", "xid", "sxid"} | {"gpu_recovery_action"}
"""Our conditions that DCGM has a code for."""
_PASSIVE = frozenset(row.agrees for row in DCGM_CODES.values() if row.passive)
WHEREABOUTS = ("gpu_missing", "gpu_unresponsive", "gpu_reset_required")
"""Our conditions that DCGM has no code for, but a status of the GPU."""
_AGAINST = 60.0
"""Seconds for which DCGM must contradict a reading of NVML where the table asks for no longer time."""


def with_dcgm(code: str, detector: Detector) -> Detector:
    """`detector`, with DCGM's reports about the condition `code`."""
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
        mine = {sighting.key for sighting in own.sightings}
        quoted = [_quoting(s, reported.get(s.key), covered) for s in own.sightings]
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


def _only_from_dcgm(track: Track) -> bool:
    return track.evidence.get("source") == "dcgm"


def _rising(state: State, key: Key) -> bool:
    """True if our own detector was about to raise it and sees it no longer: DCGM's older report must not raise it in its stead."""
    track = state.tracks.get(key)
    return track is not None and not track.raised and not _only_from_dcgm(track)


def _quoting(sighting: Sighting, statement: Statement | None, covered: Collection[Subject]) -> Sighting:
    subject = sighting.key.subject
    of_gpu = gpu(subject.slot) if subject.slot else NODE
    if statement is None and (sighting.key.code not in _PASSIVE or of_gpu not in covered):
        return sighting
    text = statement.text if statement else "does not report it"
    return replace(sighting, evidence={**sighting.evidence, "dcgm": text})


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
    """Seconds for which DCGM alone must report it; None if that never counts. `answered`: some GPU answers NVML.

    A code about growth needs NVML beside it: while the driver is away the growth is not known.
    """
    if statement.lasts == math.inf:
        return None if contradicted or not answered or not statement.fresh else _AGAINST
    return statement.lasts if contradicted or statement.lasts > _AGAINST else TWO_PASSES


def _of_no_link(key: Key, state: State, sight: Sight) -> bool:
    """True if the GPU has no link to lose.

    DCGM calls every link that NVML does not have up a link that is down, also on a card without any bridge.
    """
    return key.code == "nvlink_down" and not expected_links(state, sight, key.subject.slot)


def _never_active(key: Key, state: State, sight: Sight) -> bool:
    """True if the link was never on, and its GPU has others: it may lead nowhere."""
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
