"""One file of an archive, and how it was obtained."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from gpuwarden_collectors.dataclass import dataclass


class Completeness(StrEnum):
    COMPLETE = "complete"
    CUT = "cut"  # incomplete: `why` says what is missing
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
    """How it was obtained."""
    state: Completeness = Completeness.COMPLETE
    """Whether it is present and complete."""
    why: str = ""
    """Why it is missing or incomplete; empty if it is complete."""
    seconds: float = 0.0
    """How long it took."""
    content: bytes = b""
    """Empty if it is missing."""

    def missing(self, why: str) -> Entry:
        """Return the entry as a missing file."""
        return replace(self, state=Completeness.MISSING, why=why)

    def holding(self, content: bytes, why: str = "") -> Entry:
        """Return the entry with its content. `why`: why that is incomplete; empty if it is not."""
        return replace(self, state=Completeness.CUT if why else Completeness.COMPLETE, why=why, content=content)

    @property
    def is_there(self) -> bool:
        return self.state in (Completeness.COMPLETE, Completeness.CUT)
