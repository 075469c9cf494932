"""The published state of archives: the answer for the newest failure."""

from __future__ import annotations

from gpuwarden.features.bundle.memory import NAME, Answer, answers_of
from gpuwarden.health.state import State
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden_collectors.facts import Stamp


def shown(state: State, _: Stamp) -> Answer | None:
    """Return the newest answer; None if no archive was ever requested."""
    answers = list(answers_of(state).values())
    return answers[-1] if answers else None


def of(snapshot: Snapshot) -> Answer | None:
    """Return the part of archives in a snapshot."""
    answer: Answer | None = snapshot.features.get(NAME)
    return answer
