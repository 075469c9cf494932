"""Counts jobs that ended since the daemon started, by cause: a part of the snapshot that no event carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuwarden.features.why.model import Cause
from gpuwarden.health.model import Event, EventKind
from gpuwarden.publish.snapshot import Snapshot

_NAME = "why.counts"


class Counts:
    """Counts the ends of jobs as they are appended."""

    def __init__(self) -> None:
        self._by_cause: Counter[str] = Counter()

    def appended(self, events: Iterable[Event]) -> None:
        for event in events:
            if event.kind == EventKind.JOB_ENDED and (cause := event.data.get("cause")) in set(Cause):
                self._by_cause[str(cause)] += 1

    def shown(self, snapshot: Snapshot) -> Snapshot:
        return replace(snapshot, features={**snapshot.features, _NAME: dict(self._by_cause)})


def counts(snapshot: Snapshot) -> Mapping[str, int]:
    by_cause: Mapping[str, int] = snapshot.features.get(_NAME, {})
    return by_cause
