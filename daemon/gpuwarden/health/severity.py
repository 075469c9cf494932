"""Severity and advice of a sighting, from the row of its condition, the sighting, the site's rules and earlier repairs.

The site's rule takes precedence over the sighting, and the sighting over the row. The site's rise time does not apply
to an infinite grace, such as that during a boot.
"""

from __future__ import annotations

import math

from gpuwarden.health import flaps
from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import condition
from gpuwarden.health.gpu.jobs import under
from gpuwarden.health.gpu.pods import with_pods
from gpuwarden.health.memory import State, Track, case
from gpuwarden.health.model import Advice, Evidence, Latch, Severity, Sighting
from gpuwarden.health.repair_history import escalated
from gpuwarden.health.view import CheckRule, Rules, Sight
from gpuwarden_collectors.dataclass import dataclass

NO_RULE = CheckRule()


@dataclass(frozen=True, slots=True)
class Assessment:
    """The severity and advice given to a sighting."""

    severity: Severity
    """Severity of the finding."""
    advice: Advice
    """The next step."""
    latch: Latch
    """What ends the finding."""
    evidence: Evidence
    """Evidence of the sighting and of the assessment."""


def in_shadow(code: str, rules: Rules) -> bool:
    """Return True if the check is in shadow: reported without any action."""
    shadow, row = rules.checks.get(code, NO_RULE).shadow, condition(code)
    return row is not None and row.shadow if shadow is None else shadow


def rise(row: Condition, rule: CheckRule, sighting: Sighting) -> float:
    if sighting.rise == math.inf or rule.rise is None:
        return row.rise if sighting.rise is None else sighting.rise
    return rule.rise


def fall(state: State, row: Condition, rule: CheckRule, track: Track) -> float:
    """Return the seconds for which a condition must not be seen before it ends; longer if it flaps."""
    seconds = row.fall if rule.fall is None else rule.fall
    return max(seconds, flaps.QUIET) if flaps.flaps(state.raises, track.key, row.flaps) else seconds


def assess(
    state: State, row: Condition, rule: CheckRule, sighting: Sighting, *, track: Track | None, sight: Sight
) -> Assessment:
    severity = rule.severity or sighting.severity or row.severity
    advice, key = sighting.advice or row.advice, sighting.key
    failure = severity is Severity.FAILURE
    before, slot = track.evidence if track else None, key.subject.slot
    evidence = with_pods(under(sighting.evidence, before, sight, state.pins, slot), before, sight, state.pins, slot)
    if failure and state.repairs and key.subject.slot:
        first = sight.now if track is None else track.first_seen
        advice, why = escalated(advice, state.repairs.get(case(state, key)), first.wall, sight.now.wall)
        evidence = {**evidence, **why} if why else evidence
    if held := flaps.evidence(state.raises, key, row.flaps):
        evidence = {**evidence, **held}
    old_latch = Latch.NONE if track is None else track.latch
    return Assessment(severity, advice, row.latch if failure else old_latch, evidence)
