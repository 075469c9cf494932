"""Decides when the absence of a DCGM report means that a subject is healthy, and when DCGM's findings may end."""

from __future__ import annotations

from collections.abc import Collection

from gpuwarden.health.model import NODE, Evidence, Subject, gpu
from gpuwarden.health.state import Track
from gpuwarden.health.view import Sight
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dcgm.facts import DcgmGpu, DcgmGpuStatus, DcgmProblemKind

SETTLED = 90.0
"""Seconds after the watches are set until silence means health: two samples 30 s apart, and a pass."""
FORGOTTEN = 600.0
"""Seconds without an engine on this host after which its reports are dropped: the duration of a slow boot."""

_USABLE = (DcgmGpuStatus.OK, DcgmGpuStatus.FAKE)
_DEAF = (DcgmProblemKind.BLIND, DcgmProblemKind.CHECK_INCOMPLETE, DcgmProblemKind.WATCHES_CHANGED)
"""Problems that make silence of the check meaningless."""


def covered_subjects(sight: Sight) -> frozenset[Subject]:
    """Return the GPUs and the node, as subjects, that DCGM's check covers now, so that it would report their faults."""
    facts = sight.dcgm
    if facts is None or any(problem.kind in _DEAF for problem in facts.problems):
        return frozenset()
    if sight.now.boottime - facts.watched_since.boottime < SETTLED:
        return frozenset()
    gpus = frozenset(gpu(each.slot) for each in facts.gpus if each.slot and _watched(each))
    whole = not any(problem.kind is DcgmProblemKind.NOT_WATCHED for problem in facts.problems)
    return gpus | {NODE} if whole else gpus


def _watched(each: DcgmGpu) -> bool:
    return each.watched and each.status in _USABLE


def may_end(track: Track, covered: Collection[Subject], sight: Sight) -> bool:
    """Return True if a check without a report ends DCGM's finding. `covered` is the result of `covered_subjects`.

    While an engine does not answer, the state is unknown and the finding stays. After `FORGOTTEN` seconds without an
    engine the report is dropped. A finding that is not yet raised needs a report in every pass.
    """
    subject = track.key.subject
    of_gpu = gpu(subject.slot) if subject.slot else NODE
    return not track.raised or of_gpu in covered or forgotten(track, sight)


def forgotten(track: Track, sight: Sight) -> bool:
    """Return True if DCGM's report about the finding is old, and there is no engine or DCGM is disabled."""
    read = sight.rules.dcgm_fresh_for > 0
    if read and sight.view.dcgm.outcome is not PassOutcome.ABSENT:
        return False
    waited = sight.now.boottime - track.last_seen.boottime  # negative if last_seen is from another boot
    return sight.now.boottime >= FORGOTTEN and (waited >= FORGOTTEN or waited < 0)


def given_up(track: Track, sight: Sight) -> Evidence:
    """Return the reason, for the event, if a DCGM finding ended because there is no engine; otherwise nothing."""
    theirs = track.evidence.get("source") == "dcgm" or track.key.code.startswith("dcgm_")
    if not theirs or not forgotten(track, sight):
        return {}
    return {"by": "time: there is no DCGM here any more"}
