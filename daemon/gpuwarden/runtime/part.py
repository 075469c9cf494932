"""What a feature adds to the running daemon: the module `daemon` of a feature has `part`, which makes it.

The daemon calls every part in the order of the list of features (`parts.py`). `part` returns None where the daemon does nothing for the
feature. Whatever a part raises is an error of that feature alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from gpuwarden.actuators.base import Actuator
from gpuwarden.collect.collectors import Readers
from gpuwarden.engine.enforcement import Enforcement
from gpuwarden.engine.engine import Engine
from gpuwarden.engine.journal import Journal, Projection, Step
from gpuwarden.health.components import Component, Source
from gpuwarden.health.model import Event, Verdict
from gpuwarden.ledger.ledger import Ledger
from gpuwarden.policy.requirement import Requirement
from gpuwarden.policy.situation import Situation
from gpuwarden.publish.metrics.exposition import Holder
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.control import Verb
from gpuwarden.publish.sockets.jobs import JobVerb
from gpuwarden_collectors.facts import Stamp


class Service(Protocol):
    """What a part may use of the daemon. All but `actuators` is there only once the daemon is made."""

    actuators: tuple[Actuator, ...]
    engine: Engine
    enforcement: Enforcement
    holder: Holder
    journal: Journal
    ledger: Ledger
    readers: Readers
    verdict: Verdict

    def request_step(self, when: Step = Step.SOON) -> None: ...

    async def saved(self) -> None:
        """Return once all parts have saved what a step may destroy."""


class Part:
    """A feature in the daemon. Each method does nothing here: a part has those that it needs."""

    projections: Sequence[Projection] = ()
    """What folds events besides health and policy."""
    requirements: Mapping[str, Requirement] = MappingProxyType({})
    """By feature, what it demands before the node is restored."""
    outputs: Sequence[Callable[[Iterable[Event]], None]] = ()
    """Called with the events of each append, after they are folded."""

    def errors(self) -> Mapping[Component, Source]:
        """Return why a component of this part does not work, by component."""
        return {}

    def verbs(self) -> Mapping[str, Verb]:
        """Return what the control socket may be asked of this part."""
        return {}

    def job_verbs(self) -> Mapping[str, JobVerb]:
        """Return what the job socket may be asked of this part."""
        return {}

    def settled(self) -> bool:
        """Return True once nothing is left to do here for the imminent end."""
        return True

    async def announced(self) -> str:
        """Return what follows from the imminent end, for the operator who announced it; empty while none is imminent."""
        return ""

    async def saved(self) -> None:
        """Return once what is known so far outlives a step that destroys it, as a boot does; within a bounded time, and also if it cannot be saved."""

    def run(self) -> None:
        """Start. What the ledger knew is there by then."""

    def reloaded(self) -> None:
        """Learn that the configuration was read again."""

    async def stop(self) -> None:
        """Stop. The actuators are closed after it."""

    async def close(self) -> None:
        """End what writes to the end. Nothing of the daemon runs any more."""

    def seen(self, situation: Situation, now: Stamp) -> Situation:  # noqa: ARG002 - for those that add to it
        """Return the situation with what policy must know of this part."""
        return situation

    def step(self) -> None:
        """Follow the step that has been made: its verdict and its intents are there."""

    def shown(self, snapshot: Snapshot, now: Stamp) -> Snapshot:  # noqa: ARG002 - as above
        """Return the snapshot with what is published of this part."""
        return snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Take the snapshot, as published."""
