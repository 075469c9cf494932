"""The declaration of a host collector, below its reader. `registry.py` lists all declarations.

Configuration table, thread, staleness, state in the view, encoding in a trace, metrics and documentation derive from
it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from gpuwarden_collectors.base import Clock, NamedFacts
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import PolledOptions

Facts = TypeVar("Facts", bound=NamedFacts)
Found_co = TypeVar("Found_co", covariant=True)
Options = TypeVar("Options", bound=PolledOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The paths and the clock for a collector."""

    proc: Path
    """Where proc is mounted."""
    sysfs: Path
    """Where sysfs is mounted."""
    root: Path | None = None
    """Where the host's root is mounted, if this process runs in a container; `proc` is then the host's."""
    clock: Clock
    """The clock of the facts."""


class Reader(Protocol[Found_co]):
    """Reads a source. Called in its own thread, never concurrently."""

    def read(self) -> Found_co:
        """Reads the source once. Raises SourceAbsent if it does not exist, CollectorError if it cannot be read."""


@runtime_checkable
class Closing(Protocol):
    """A reader that must be closed."""

    def close(self) -> None:
        """Releases the reader's resources. Called once, in a thread, after the last pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSpec(Generic[Facts, Options]):
    """A host collector, with the name of its facts."""

    facts: type[Facts]
    """The class of the facts of a pass."""
    options: type[Options]
    """Its table `[collectors.NAME]`."""
    reader: Callable[[Host, Options], Reader[Facts]]
    source: str
    """Description of the source, for the documentation."""
    limits: str = "a thread with a deadline"
    """Description of what limits a pass, for the documentation."""

    @property
    def name(self) -> str:
        return self.facts.collector


AnySpec = CollectorSpec[Any, Any]
