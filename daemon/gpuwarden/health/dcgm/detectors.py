"""Detectors of the rows in `conditions.py`: faults of DCGM itself, and faults that only DCGM reports.

An absent engine is no fault and leaves no finding. An engine that is present but does not answer is a fault; its
silence neither clears nor raises what it reported before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from gpuwarden.health.dcgm.conditions import DCGM_CONDITIONS
from gpuwarden.health.dcgm.silence import covered_subjects, may_end
from gpuwarden.health.dcgm.statements import Statement, statements
from gpuwarden.health.detection import NOTHING, Detection, Detector, gpus, in_two_passes, node_detection
from gpuwarden.health.model import NODE, Advice, Evidence, Key, Sighting, Subject, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dcgm.facts import NOT_ANSWERING, PAUSED, DcgmFacts, DcgmGpuStatus, DcgmProblemKind
from gpuwarden_collectors.facts import GpuAnswer, NvmlProblem


def dcgm_unresponsive(state: State, sight: Sight) -> Detection:
    """Detect passes that time out or fail because no engine answers. If there is no engine, the finding ends in time.

    An engine that has not answered yet gets the boot grace of the driver, since its container waits for the driver.
    """
    latest = sight.view.dcgm.latest
    if latest is None:
        return NOTHING
    if latest.outcome is PassOutcome.ABSENT:
        return Detection((), _given_up("dcgm_unresponsive", state, sight))
    failed = latest.outcome is PassOutcome.FAILED and latest.error.startswith(NOT_ANSWERING)
    if latest.outcome is not PassOutcome.TIMED_OUT and not failed:
        return node_detection(())
    raised = any(track.raised for track in state.tracks_of("dcgm_unresponsive"))
    if not raised and sight.nvml is not None and sight.nvml.problem is NvmlProblem.DRIVER_NOT_LOADED:
        return node_detection(())  # the engine keeps the driver in use, so it is stopped first for a driver reload
    evidence: Evidence = {"why": latest.error}
    starting = sight.now.boottime < sight.rules.boot_grace
    if (at := sight.view.dcgm.at) is not None:
        evidence, starting = {**evidence, "silent_seconds": round(sight.now.boottime - at.boottime)}, False
    return node_detection((Sighting(Key("dcgm_unresponsive", NODE), evidence, rise=math.inf if starting else None),))


def unusable(sight: Sight) -> Iterator[Sighting]:
    """Yield a sighting if DCGM is present but cannot be read because of its installation or configuration.

    Requires a working driver: without it DCGM has such errors too, which have their own finding.
    """
    latest = sight.view.dcgm.latest
    if latest is None or latest.outcome is not PassOutcome.FAILED or latest.error.startswith(NOT_ANSWERING):
        return
    if sight.nvml is None or sight.nvml.problem is not None:
        return
    rise = DIAGNOSTIC if PAUSED in latest.error else None
    yield Sighting(
        Key("collector_failed", NODE, "dcgm"), {"why": latest.error}, advice=Advice.FIX_CONFIGURATION, rise=rise
    )


DIAGNOSTIC = 4 * 3600.0
"""Seconds: own choice, twice the one to two hours of DCGM's longest diagnostic (its user guide: dcgmi diag -r 4)."""


# Seconds for which a problem must be seen.
_RISE_OF_PROBLEM: dict[DcgmProblemKind, float] = {
    DcgmProblemKind.NO_GPUS: 120.0,  # an engine that was started before the driver, while the driver is loaded
    DcgmProblemKind.BLIND: 30.0,
}


def dcgm_impaired(state: State, sight: Sight) -> Detection:
    """Detect problems of DCGM itself, only while the driver answers: during a driver reload an engine sees nothing."""
    facts = sight.dcgm
    if facts is None or not any(sight.answering):
        return Detection((), _given_up("dcgm_impaired", state, sight))
    by_kind = {
        problem.kind: Sighting(
            Key("dcgm_impaired", NODE, problem.kind.value),
            {"why": problem.text},
            rise=_RISE_OF_PROBLEM.get(problem.kind),
        )
        for problem in facts.problems
    }
    return node_detection(by_kind.values())


def dcgm_disagrees(state: State, sight: Sight) -> Detection:
    """Detect GPUs that answer NVML but are missing in DCGM, and GPUs that only DCGM lists."""
    facts = sight.dcgm
    nvml_answers = sight.nvml is not None and sight.nvml.problem is None
    if facts is None or not nvml_answers or not facts.gpus:
        return Detection((), _given_up("dcgm_disagrees", state, sight))
    differences = dict(_differences(state, sight, facts))
    sightings = [Sighting(Key("dcgm_disagrees", gpu(slot)), evidence) for slot, evidence in differences.items()]
    slots = dict.fromkeys((*sight.gpus, *state.pins, *(each.slot for each in facts.gpus if each.slot)))
    tracked = {track.key.subject for track in state.tracks_of("dcgm_disagrees")}
    return Detection(tuple(sightings), gpus(tuple(slots)) | tracked)


_AWAY = (DcgmGpuStatus.LOST, DcgmGpuStatus.INACCESSIBLE, DcgmGpuStatus.DETACHED)
_HERE = (DcgmGpuStatus.OK, DcgmGpuStatus.FAKE)


def _differences(state: State, sight: Sight, facts: DcgmFacts) -> Iterator[tuple[str, Evidence]]:
    statuses = {each.slot: each.status for each in facts.gpus}
    nameless = "" in statuses
    for slot, nvml in sight.gpus.items():
        if nvml.answer is not GpuAnswer.OK or slot in state.given_up:
            continue
        status = statuses.get(slot)
        if status in _AWAY:
            yield slot, {"nvml": "answers", "dcgm": f"status {status}"}
        elif status is None and not nameless:
            yield slot, {"nvml": "answers", "dcgm": "does not list it"}
    for slot, status in statuses.items():
        accounted_for = not slot or slot in sight.gpus or slot in state.pins or slot in state.given_up
        if not accounted_for and status in _HERE:
            yield slot, {"nvml": "does not list it", "dcgm": f"status {status}"}


def _given_up(code: str, state: State, sight: Sight) -> frozenset[Subject]:
    tracks = state.tracks_of(code)
    return frozenset(track.key.subject for track in tracks if may_end(track, (), sight))


DETECTORS: Mapping[str, Detector] = {
    "dcgm_unresponsive": dcgm_unresponsive,
    "dcgm_impaired": dcgm_impaired,
    "dcgm_disagrees": dcgm_disagrees,
}
_ROWS = frozenset(row.code for row in DCGM_CONDITIONS)


def family(state: State, sight: Sight) -> Mapping[str, Detection]:
    """Return detections for DCGM reports that belong to no other condition, by code such as `dcgm_faulty_memory`."""
    by_key = statements(state, sight)
    tracks = [track for track in state.tracks.values() if _is_own(track.key.code)]
    covered = covered_subjects(sight) if tracks else frozenset()
    detections = {}
    for code in {*(key.code for key in by_key), *(track.key.code for track in tracks)}:
        sightings = tuple(
            _sighting(statement, state, sight)
            for key, statement in by_key.items()
            if key.code == code and statement.severity is not None
        )
        ends = (t.key.subject for t in tracks if t.key.code == code and may_end(t, covered, sight))
        detections[code] = Detection(sightings, frozenset(ends))
    return detections


def _is_own(code: str) -> bool:
    return code.startswith("dcgm_") and code not in _ROWS


def _sighting(statement: Statement, state: State, sight: Sight) -> Sighting:
    twice = in_two_passes(state.tracks.get(statement.key), sight.view.dcgm.started, sight.now)
    evidence = {"source": "dcgm", "dcgm": statement.text}
    return Sighting(statement.key, evidence, statement.severity, statement.advice, None if twice else math.inf)
