"""The answer of a source about the end of this machine: no notice, one or more notices, or unknown.

*Unknown* neither makes a notice nor ends one. Silence, a broken answer, and an answer of the wrong shape are all unknown.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

REASON_MOST = 200
"""Characters of a notice's text."""
_ID_MOST = 80


class Kind(StrEnum):
    """What is going to happen."""

    INTERRUPTION = "interruption"  # a spot or preemptible machine is taken back
    REBALANCE = "rebalance"  # a hint that an interruption has become likely
    MAINTENANCE = "maintenance"
    SCALE_IN = "scale_in"  # the group that this machine is in shrinks
    SHUTDOWN = "shutdown"  # the operating system is shutting down
    PLANNED_END = "planned_end"


class Approval(StrEnum):
    """Whether this machine may start an announced end before its time."""

    NONE = ""  # its source accepts no approval, or it is only a hint
    ALONE = "alone"  # it is of this machine and of no other
    SHARED = "shared"  # it is of other machines too: they would end with this one
    BEGUN = "begun"


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminationNotice:
    """One announced end of this machine."""

    source: str
    """Name of the source, as in the configuration."""
    kind: str
    """The kind of end: one of `Kind`, or of a newer version's."""
    reason: str = ""
    """Text for people, on one line."""
    id: str
    """The same in each answer that contains the notice; begins with the question that it answers."""
    hard: bool
    """The machine will stop or reboot; a soft one is a hint."""
    approval: Approval = Approval.NONE
    """Whether this machine may start the end early."""
    deadline: Stamp | None = None
    """When it ends; None: the source gives no time."""
    estimated: bool = False
    """The source names no time: `deadline` is its documented lead time after the notice was first seen."""


class AnswerKind(StrEnum):
    NONE = "none"
    NOTICE = "notice"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one question."""

    kind: AnswerKind
    """Whether there is a notice."""
    notices: tuple[TerminationNotice, ...] = field(default=())
    """The notices that could be read."""
    error: str = ""
    """Why the answer, or a part of it, could not be read; empty if it could."""
    partial: bool = False
    """Not all of it could be read, so that the absence of a notice means nothing."""


NONE = Answer(AnswerKind.NONE)


def unknown(error: str) -> Answer:
    return Answer(AnswerKind.UNKNOWN, error=clean(error, REASON_MOST))


def answer(notices: tuple[TerminationNotice, ...], error: str = "") -> Answer:
    """Returns the answer with these notices; `error` says why a part of it could not be read."""
    if error and not notices:
        return unknown(error)
    kind = AnswerKind.NOTICE if notices else AnswerKind.NONE
    return Answer(kind, notices, clean(error, REASON_MOST), partial=bool(error))


def identity(question: str, text: str) -> str:
    return f"{question}:{clean(text, _ID_MOST).replace(' ', '_')}"


def clean(text: str, most: int) -> str:
    """Returns `text` as one printable line of at most `most` characters."""
    shown = "".join(char if char.isprintable() else " " for char in text[: 4 * most])
    return " ".join(shown.split())[:most]
