"""What a sighting comes to: the row of its condition, what the sighting itself says, what the site wants, what was done before.

The site's word wins over the sighting's, and that over the row's. Only for a grace that has no end, as that of a boot, does
the site's rise time not count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuwarden.health import flaps
from gpuwarden.health.condition import Condition
from gpuwarden.health.gpu_jobs import under
from gpuwarden.health.memory import State, Track, case
from gpuwarden.health.model import Advice, Evidence, Latch, Severity, Sighting
from gpuwarden.health.treatments import escalated
from gpuwarden.health.view import CheckRule, Sight

AS_THE_TABLE_HAS_IT = CheckRule()


@dataclass(frozen=True, slots=True)
class Weight:
    severity: Severity
    advice: Advice
    latch: Latch
    evidence: Evidence


def rise(row: Condition, rule: CheckRule, sighting: Sighting) -> float:
    if sighting.rise == math.inf or rule.rise is None:
        return row.rise if sighting.rise is None else sighting.rise
    return rule.rise


def fall(state: State, row: Condition, rule: CheckRule, track: Track) -> float:
    """Longer for what flaps."""
    seconds = row.fall if rule.fall is None else rule.fall
    return max(seconds, flaps.QUIET) if flaps.flaps(state.raises, track.key, row.flaps) else seconds


def weigh(
    state: State, row: Condition, rule: CheckRule, sighting: Sighting, *, known: Track | None, sight: Sight
) -> Weight:
    severity = rule.severity or sighting.severity or row.severity
    advice, key = sighting.advice or row.advice, sighting.key
    failure = severity is Severity.FAILURE
    evidence = under(sighting.evidence, known.evidence if known else None, sight, state.pins, key.subject.slot)
    if failure and state.treatments and key.subject.slot:
        first = sight.now if known is None else known.first_seen
        advice, why = escalated(advice, state.treatments.get(case(state, key)), first.wall, sight.now.wall)
        evidence = {**evidence, **why} if why else evidence
    if flapping := flaps.evidence(state.raises, key, row.flaps):
        evidence = {**evidence, **flapping}
    old_latch = Latch.NONE if known is None else known.latch
    return Weight(severity, advice, row.latch if failure else old_latch, evidence)
