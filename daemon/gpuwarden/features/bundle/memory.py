"""The memory of archives: the newest answer for each finding for which one was requested."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from gpuwarden.health.event_data import cut, read, write
from gpuwarden.health.memory import State
from gpuwarden.health.model import Event, EventKind, Key
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

NAME = "bundle"
KINDS = frozenset({EventKind.BUNDLE_MADE, EventKind.BUNDLE_FAILED})
FINDING_MOST, TEXT_MOST = 400, 1_000
"""Most characters of a finding's id, and of any other text."""
ANSWERS_MOST = 32
"""Most findings whose answer is remembered. The oldest is dropped first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleMade:
    """BUNDLE_MADE."""

    finding: Annotated[str, cut(FINDING_MOST)]
    """Id of the finding that the archive was made for."""
    file: Annotated[str, cut(TEXT_MOST)]
    """Path of the archive."""
    missing: Annotated[str, cut(TEXT_MOST)] = ""
    """Names of files that are not in it, separated by commas."""
    since: float = 0.0
    """Wall time since which the finding existed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleFailed:
    """BUNDLE_FAILED."""

    finding: Annotated[str, cut(FINDING_MOST)]
    """Id of the finding for which an archive was requested."""
    why: Annotated[str, cut(TEXT_MOST)]
    """Why no archive was made."""
    since: float = 0.0
    """Wall time since which the finding existed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of the archive for one finding."""

    at: Stamp
    """When it was made, or failed."""
    boot_id: str
    what: BundleMade | BundleFailed
    """The archive, or why there is none."""

    def is_for(self, since: float) -> bool:
        """Return True if it is for the failure that began then, even if the clock was set back in between."""
        return max(self.at.wall, self.what.since) >= since


Answers = Mapping[str, Answer]
"""Answers by id of the finding, the newest last."""
EMPTY: Answers = {}


def answers_of(state: State) -> Answers:
    answers: Answers = state.features.get(NAME, EMPTY)
    return answers


def fold(answers: Answers, event: Event, _: State) -> Answers:
    """Return the answers after an event of KINDS; the same object if it names no finding."""
    is_made = event.kind == EventKind.BUNDLE_MADE
    outcome: BundleMade | BundleFailed = read(BundleMade, event) if is_made else read(BundleFailed, event)
    if not outcome.finding:
        return answers
    others = {finding: answer for finding, answer in answers.items() if finding != outcome.finding}
    newest = (outcome.finding, Answer(at=event.at, boot_id=event.boot_id, what=outcome))
    return dict([*others.items(), newest][-ANSWERS_MOST:])


def events(answers: Answers, _: Stamp, __: State) -> Iterator[Event]:
    """Yield the events whose fold gives these answers."""
    return (answered(answer.what, answer.at, answer.boot_id) for answer in answers.values())


def answered(outcome: BundleMade | BundleFailed, at: Stamp, boot_id: str) -> Event:
    """Return the event with the answer for a finding."""
    kind = EventKind.BUNDLE_MADE if isinstance(outcome, BundleMade) else EventKind.BUNDLE_FAILED
    return Event(kind=kind, at=at, boot_id=boot_id, key=Key.parse(outcome.finding), data=write(outcome))
