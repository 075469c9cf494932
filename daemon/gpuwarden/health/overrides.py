"""Applies the severity that the site configures to failures that are already latched, after a reload or a restart.

A condition that is still seen is assessed again in each pass. A latched one is not; it is reassessed here.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuwarden.health.condition import Condition
from gpuwarden.health.conditions import condition
from gpuwarden.health.event_data import write
from gpuwarden.health.events import Raised
from gpuwarden.health.memory import State, Track
from gpuwarden.health.model import EventKind, Evidence, Key, Latch, Severity
from gpuwarden.health.view import Rules

RECORD = "record"
_EVIDENCE: Evidence = {"classed_by": "this site's configuration"}


def overridden(state: State, rules: Rules) -> Iterator[tuple[EventKind, Key, Evidence]]:
    """Yield the event that gives a latched finding the severity that the site configured, if it differs."""
    if not (rules.checks or rules.xids or rules.sxids):
        return
    for track in state.tracks.values():
        row = condition(track.key.code)
        if row is None or not track.raised or track.latch is Latch.NONE:
            continue
        configured = _configured(track.key, rules)
        if configured == RECORD:
            yield (
                EventKind.CLEARED,
                track.key,
                {"by": f"the site: {track.key.code}s.{track.key.detail}.severity is record"},
            )
        elif configured and (configured != track.severity or configured == Severity.WARNING):
            # Even if it is a warning already, since a warning by the site's configuration does not latch.
            yield EventKind.RAISED, track.key, _data(track, Severity(configured), row)


def _configured(key: Key, rules: Rules) -> str:
    """Return the severity that the site configured for `key`: `record`, a severity, or ""."""
    check = rules.checks.get(key.code)
    numbers = {"xid": rules.xids, "sxid": rules.sxids}.get(key.code, {})
    number = numbers.get(key.detail)
    if number is not None and number.severity == RECORD:
        return RECORD
    if check is not None and check.severity is not None:
        return check.severity
    return "" if number is None else number.severity


def _data(track: Track, severity: Severity, row: Condition) -> Evidence:
    latch = row.latch if severity is Severity.FAILURE else Latch.NONE
    data = Raised(
        evidence={**track.evidence, **_EVIDENCE},
        count=track.count,
        severity=severity,
        advice=track.advice,
        latch=latch,
        first=track.first_seen,
    )
    return write(data)
