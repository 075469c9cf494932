"""Condition `gpu_recovery_action`: the recovery action that the driver requests, as NVML reports it (the current value)
or as Xid 154 does (a change).

Both are one condition, so that one fault is one finding. The line counts at once, until an NVML pass that started after
it reads the GPU's recovery action; from then on the reading decides. With a driver that prints the line but has no such
reading (R565), the finding lasts until a line with *None*, a reset of the GPU, or a reboot.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.detection import Detection
from gpuwarden.health.gpu.detectors import RECOVERY_ACTIONS
from gpuwarden.health.gpu.detectors import gpu_recovery_action as level_of
from gpuwarden.health.memory import Record, State, counts
from gpuwarden.health.model import Advice, Evidence, Key, Severity, Sighting, Subject, gpu
from gpuwarden.health.view import Sight
from gpuwarden.health.xid.catalogue import XidClass
from gpuwarden.health.xid.detectors import SEEN_FOR
from gpuwarden.health.xid.lines import recovery_action
from gpuwarden.health.xid.ruling import newest_signs

CODE = "gpu_recovery_action"
REPORTED_BY = "Xid 154"


def gpu_recovery_action(state: State, sight: Sight) -> Detection:
    lines = {record.key.subject: record for record in _lines(state, sight)}
    sightings: list[Sighting] = []
    examined: set[Subject] = set()
    for facts in sight.answering:
        subject, answered = gpu(facts.slot), facts.readings.recovery_action is not None
        line = lines.get(subject)
        if answered and (line is None or _read_since(sight, line)):
            examined.add(subject)
            lines.pop(subject, None)
            if (level := level_of(state, sight, facts)) is not None:
                sightings.append(level)
        elif not answered and line is None and _from_line(state, subject):
            examined.add(subject)  # a later line withdrew the request, and no reading exists that could contradict it
    for subject, line in lines.items():
        if line.key in state.moments.news or sight.now.boottime - line.last.boottime <= SEEN_FOR:
            sightings.append(_edge(subject, line))
    return Detection(tuple(sightings), frozenset(examined))


def _lines(state: State, sight: Sight) -> Iterator[Record]:
    """Yield the lines that request an action and still count; none if the site only records Xid 154."""
    rule = sight.rules.xids.get("154")
    if rule is not None and rule.severity == XidClass.RECORD.value:
        return
    for record in state.records.values():
        if (record.key.code, record.key.detail) != ("xid", "154") or record.history or not counts(state, record):
            continue
        slot = record.key.subject.slot
        if slot and slot not in state.given_up and _action(record):
            yield record


def _action(record: Record) -> int | None:
    signs = newest_signs(record)
    return recovery_action(signs[-1]) if signs else None


def _edge(subject: Subject, line: Record) -> Sighting:
    value = _action(line) or 0
    name, severity, advice = RECOVERY_ACTIONS.get(value, ("unknown", Severity.FAILURE, Advice.CONTACT_SUPPORT))
    evidence: Evidence = {"action": name, "value": value, "reported_by": REPORTED_BY, "text": line.text}
    return Sighting(Key(CODE, subject), evidence, severity, advice)


def _read_since(sight: Sight, line: Record) -> bool:
    """Return True if the NVML pass that gave the current facts began after the line. A later pass may have failed."""
    started = sight.view.nvml.started
    return started is not None and started.boottime > line.last.boottime


def _from_line(state: State, subject: Subject) -> bool:
    track = state.tracks.get(Key(CODE, subject))
    return track is not None and track.evidence.get("reported_by") == REPORTED_BY
