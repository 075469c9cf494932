"""What a trace holds, one value for each line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuwarden.health.model import Event
from gpuwarden.health.view import COLLECTORS, Rules
from gpuwarden_collectors.base import Observation
from gpuwarden_collectors.facts import HostEvent, Stamp

FORMAT = 1
FACTS: Mapping[str, Any] = {name: facts | None for name, facts in COLLECTORS.items()}
"""The collectors whose passes a trace holds, and what each of them finds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A daemon starts on the boot `boot_id`. `memory`: what its ledger told it; None: what happened before, in this trace."""

    at: Stamp
    boot_id: str
    rules: Rules = field(default_factory=Rules)
    memory: tuple[Event, ...] | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    observation: Observation[Any]

    @property
    def at(self) -> Stamp:
        return self.observation.finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    at: Stamp
    events: tuple[HostEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubled:
    """`troubles` as the judge's view has them; they hold until the next."""

    at: Stamp
    troubles: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """From now on other rules are in force: the configuration was read again."""

    at: Stamp
    rules: Rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledged:
    at: Stamp
    finding: str
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    at: Stamp


Record = Began | Passed | Happened | Troubled | Ruled | Acknowledged | Accepted
