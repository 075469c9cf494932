"""The ledger's excerpt for an archive: the judge's memory, the failures, and the events around them. Reads only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import Any

from gpuwarden.base.paths import LEDGER
from gpuwarden.health.conditions import condition
from gpuwarden.health.model import Event, EventKind, Evidence, Key, Severity
from gpuwarden.health.state import State, fold
from gpuwarden.health.to_do import of_raised, to_do
from gpuwarden.ledger.reader import Reader, read_only
from gpuwarden.publish.status import event as document
from gpuwarden_collectors.dataclass import dataclass

BEFORE = 86_400.0
"""Seconds before the first sighting from which events are included."""
EVENTS_MOST, TESTS_MOST = 20_000, 500
"""Most events of the excerpt, and of active tests; the newest are kept."""
_PAGE = 5_000
_NUMBERED = {"xid": "Xid", "sxid": "SXid"}
_TESTS_SINCE = 28 * 86_400.0
_OF_TESTS = (EventKind.TESTED, EventKind.TEST_BEGUN, EventKind.TEST_ENDED, EventKind.GATE_BEGUN, EventKind.GATE_ENDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A finding that an archive is about."""

    key: Key
    """What failed."""
    title: str
    """What that is, for people."""
    since: float
    """First sighting, wall time."""
    to_do: str
    evidence: dict[str, Any] = field(default_factory=dict)
    """The evidence of the finding."""
    over: bool = False
    """It has ended meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The ledger's excerpt for an archive."""

    state: State
    """The judge's memory."""
    failures: tuple[Failure, ...]
    """The requested ones, else all in force."""
    events: tuple[dict[str, Any], ...]
    """Events as `gpuwarden events --json` has them."""
    earlier: bool
    """There were more events than are kept."""
    tests: tuple[dict[str, Any], ...]
    """Events of active tests of the last 28 days."""


def slice_of(state_dir: Path, findings: tuple[str, ...], now: float) -> Slice:
    """Read the ledger. Raises LedgerError."""
    with read_only(state_dir / LEDGER) as reader:
        state = reduce(fold, reader.memory().events, State())
        failures = tuple(_failures(reader, state, findings))
        since = min((failure.since for failure in failures), default=now) - BEFORE
        kept = reader.events(since=since, limit=EVENTS_MOST + 1, newest=True)
        tests = reader.events(since=now - _TESTS_SINCE, kinds=_OF_TESTS, limit=TESTS_MOST, newest=True)
        return Slice(
            state=state,
            failures=failures,
            events=tuple(document(stored.event) for stored in kept[-EVENTS_MOST:]),
            earlier=len(kept) > EVENTS_MOST,
            tests=tuple(document(stored.event) for stored in tests),
        )


def _failures(reader: Reader, state: State, findings: tuple[str, ...]) -> Iterable[Failure]:
    standing = {str(track.key): track for track in state.tracks.values() if track.raised}
    for finding in findings or [
        key for key, track in standing.items() if track.severity is Severity.FAILURE and not _shadow(track.key)
    ]:
        if (track := standing.get(finding)) is not None:
            advice = to_do(track.key, track.advice, track.evidence)
            yield Failure(
                key=track.key,
                title=_title(track.key, track.evidence),
                since=track.first_seen.wall,
                to_do=advice,
                evidence=dict(track.evidence),
            )
        elif (raised := _raised(reader, finding)) is not None and raised.key is not None:
            yield Failure(
                key=raised.key,
                title=_title(raised.key, raised.data),
                since=raised.at.wall,
                to_do=of_raised(raised.key, raised.data),
                over=True,
            )


def _raised(reader: Reader, finding: str) -> Event | None:
    """Return the newest event that raised this finding."""
    subject = str(Key.parse(finding).subject)
    newest: Event | None = None
    after = 0
    while page := reader.events(kinds=(EventKind.RAISED,), subjects=(subject,), after=after, limit=_PAGE):
        newest = next((stored.event for stored in reversed(page) if str(stored.event.key) == finding), newest)
        after = page[-1].id
    return newest


def _shadow(key: Key) -> bool:
    return (row := condition(key.code)) is not None and row.shadow


def _title(key: Key, evidence: Evidence) -> str:
    if key.code in _NUMBERED and evidence.get("meaning"):
        return f"{_NUMBERED[key.code]} {key.detail}: {evidence['meaning']}"
    row = condition(key.code)
    return key.code if row is None else row.title


def of_status(status: dict[str, Any], findings: tuple[str, ...]) -> list[Failure]:
    """Return the failures in a status document, if the ledger cannot be read."""
    failures = []
    for finding in status.get("findings", ()):
        wanted = finding["id"] in findings if findings else finding["severity"] == "failure" and not finding["shadow"]
        if wanted:
            key = Key.parse(finding["id"])
            failures.append(
                Failure(
                    key=key,
                    title=_title(key, finding["evidence"]),
                    since=_wall(finding["first_seen"]),
                    to_do=finding["to_do"],
                    evidence=finding["evidence"],
                )
            )
    return failures


def _wall(text: str | None) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0
