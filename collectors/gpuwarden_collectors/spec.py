"""How a collector of the host is declared: once, below its reader. `registry.py` has all declarations.

Table of the configuration, thread, staleness, state in the view, form in a trace, metrics and row of the docs follow from it.
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
    """Where a collector reads."""

    proc: Path
    """Where proc is mounted."""
    sysfs: Path
    """Where sysfs is mounted."""
    root: Path | None = None
    """Where the host's root is mounted, if this process is in a container; `proc` is the host's then."""
    clock: Clock
    """The time by which it reads."""


class Reader(Protocol[Found_co]):
    """Called in a thread of its own, never twice at a time."""

    def read(self) -> Found_co:
        """Reads the source once. Raises SourceAbsent if it does not exist, CollectorError if it cannot be read."""


@runtime_checkable
class Closing(Protocol):
    """A reader that has something to end."""

    def close(self) -> None:
        """Ends what the reader has open. Called in a thread, once, after the last pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectorSpec(Generic[Facts, Options]):
    """A collector of the host, named as its facts are."""

    facts: type[Facts]
    """The class of the facts of a pass."""
    options: type[Options]
    """Its table `[collectors.NAME]`."""
    reader: Callable[[Host, Options], Reader[Facts]]
    """Makes what reads."""
    source: str
    """What is read, for people."""
    limits: str = "a thread with a deadline"
    """What bounds a pass, for people."""

    @property
    def name(self) -> str:
        return self.facts.collector


AnySpec = CollectorSpec[Any, Any]
