"""Decides when the absence of a DCGM report means that a subject is healthy, and when DCGM's findings may end."""

from __future__ import annotations

from collections.abc import Collection

from gpuwarden.health.model import NODE, Evidence, Subject, gpu
from gpuwarden.health.state import Track
from gpuwarden.health.view import Sight
from gpuwarden_collectors.base import PassOutcome
from gpuwarden_collectors.dcgm.facts import DcgmGpu, DcgmGpuStatus, DcgmProblemKind

SETTLED = 90.0
"""Seconds after the watches were set before silence means health: two samples 30 s apart, and a pass."""
FORGOTTEN = 600.0
"""Seconds without any engine on this host after which what only it reported is given up: as long as a slow boot takes."""

_USABLE = (DcgmGpuStatus.OK, DcgmGpuStatus.FAKE)
_DEAF = (DcgmProblemKind.BLIND, DcgmProblemKind.CHECK_INCOMPLETE, DcgmProblemKind.WATCHES_CHANGED)
"""Problems with which a check that reports nothing does not mean health."""


def covered_subjects(sight: Sight) -> frozenset[Subject]:
    """The GPUs, as subjects, and the node, that DCGM's check covers now: it would report what is wrong with them."""
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
    """True if a check without a report ends DCGM's finding about a subject; `covered` is what `covered_subjects` gives.

    While an engine does not answer, the state is not known and the finding stays. Once there has been no engine for `FORGOTTEN`
    seconds, its report is dropped. What is not yet a finding needs its report at every pass.
    """
    subject = track.key.subject
    of_gpu = gpu(subject.slot) if subject.slot else NODE
    return not track.raised or of_gpu in covered or forgotten(track, sight)


def forgotten(track: Track, sight: Sight) -> bool:
    """True if DCGM's report about the finding is old, and there is no engine or DCGM is switched off."""
    read = sight.rules.dcgm_fresh_for > 0
    if read and sight.view.dcgm.outcome is not PassOutcome.ABSENT:
        return False
    waited = sight.now.boottime - track.last_seen.boottime  # the clock of this boot, which may be another than then
    return sight.now.boottime >= FORGOTTEN and (waited >= FORGOTTEN or waited < 0)


def given_up(track: Track, sight: Sight) -> Evidence:
    """Return, for its event, why a finding ended that no check covers any more; nothing for any other finding."""
    theirs = track.evidence.get("source") == "dcgm" or track.key.code.startswith("dcgm_")
    if not theirs or not forgotten(track, sight):
        return {}
    return {"by": "time: there is no DCGM here any more"}
