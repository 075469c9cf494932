"""The answer of a source about the termination of this machine: no notice, one or more notices, or unknown.

*Unknown* neither creates nor withdraws a notice. A timeout, a malformed answer and an unexpected answer are unknown.
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
    """The announced event."""

    INTERRUPTION = "interruption"  # a spot or preemptible machine is taken back
    REBALANCE = "rebalance"  # a hint that an interruption has become likely
    MAINTENANCE = "maintenance"
    SCALE_IN = "scale_in"  # the group that this machine is in shrinks
    SHUTDOWN = "shutdown"  # the operating system is shutting down
    PLANNED_END = "planned_end"


class Approval(StrEnum):
    """Whether this machine may start an announced end before its time."""

    NONE = ""  # the source accepts no approval, or the notice is only a hint
    ALONE = "alone"  # the event affects only this machine
    SHARED = "shared"  # the event affects other machines, too: they would end with this one
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
    """Stable across answers; begins with the name of the question."""
    hard: bool
    """True: the machine will stop or reboot. False: the notice is only a hint."""
    approval: Approval = Approval.NONE
    """Whether this machine may start the end early."""
    deadline: Stamp | None = None
    """When the machine ends; None if the source gives no time."""
    estimated: bool = False
    """True: the source gives no time; `deadline` is its documented lead time after the first sighting."""


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
    """Why the answer, or a part of it, could not be parsed; empty if all of it was."""
    partial: bool = False
    """True: a part could not be parsed, so a missing notice may still be in force."""


NONE = Answer(AnswerKind.NONE)


def unknown(error: str) -> Answer:
    return Answer(AnswerKind.UNKNOWN, error=clean(error, REASON_MOST))


def answer(notices: tuple[TerminationNotice, ...], error: str = "") -> Answer:
    """Returns the answer with these notices; `error` is why a part of it could not be parsed."""
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
