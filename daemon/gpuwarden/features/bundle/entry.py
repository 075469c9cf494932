"""One file of an archive, and how it came there."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass


class Completeness(StrEnum):
    COMPLETE = "complete"
    CUT = "cut"  # not all of it: `why` says what is not there
    MISSING = "missing"
    LEFT_OUT = "left_out"  # on purpose: with --anonymise


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of the archive, or the reason why it is not there."""

    name: str
    """Name in the archive."""
    about: str
    """What it is, for people."""
    how: str
    """How it was got."""
    state: Completeness = Completeness.COMPLETE
    """Whether it is there, and whole."""
    why: str = ""
    """Why it is not there, or not whole; empty if it is whole."""
    seconds: float = 0.0
    """How long it took."""
    content: bytes = b""
    """Empty if it is not there."""

    def missing(self, why: str) -> Entry:
        """Return it as a file that is not there."""
        return replace(self, state=Completeness.MISSING, why=why)

    def holding(self, content: bytes, why: str = "") -> Entry:
        """Return it with its content. `why`: why that is not all of it; empty if it is."""
        return replace(self, state=Completeness.CUT if why else Completeness.COMPLETE, why=why, content=content)

    @property
    def is_there(self) -> bool:
        return self.state in (Completeness.COMPLETE, Completeness.CUT)
