"""A feature's part of the running daemon. The function `part` in a feature's module `daemon` creates it.

The daemon calls all parts in the order of the list of features (`parts.py`). `part` returns None if the daemon has
nothing to do for the feature. An exception in a part is an error of that feature only.
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
    """What a part may use of the daemon. All attributes but `actuators` exist only after the daemon was created."""

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
        """Return once all parts have saved what a repair step may destroy."""


class Part:
    """A feature in the daemon. By default each method does nothing; a part overrides those that it needs."""

    projections: Sequence[Projection] = ()
    """Projections in addition to those of health and policy."""
    requirements: Mapping[str, Requirement] = MappingProxyType({})
    """By feature, what it demands before the node is restored."""
    outputs: Sequence[Callable[[Iterable[Event]], None]] = ()
    """Called with the events of each append, after they are folded."""

    def errors(self) -> Mapping[Component, Source]:
        """Return, by component of this part, the function that reports why it does not work."""
        return {}

    def verbs(self) -> Mapping[str, Verb]:
        """Return the requests to this part on the control socket."""
        return {}

    def job_verbs(self) -> Mapping[str, JobVerb]:
        """Return the requests to this part on the job socket."""
        return {}

    def settled(self) -> bool:
        """Return True once this part has nothing left to do before the imminent end."""
        return True

    async def announced(self) -> str:
        """Return what this part does before the imminent end, for the operator who announced it; "" while none is
        imminent.
        """
        return ""

    async def saved(self) -> None:
        """Return once the state is saved against a repair step that destroys it, such as a reboot. Returns within a
        bounded time, also if saving fails.
        """

    def run(self) -> None:
        """Start. Called after the ledger was recalled, if it could be read in time."""

    def reloaded(self) -> None:
        """Handle a reload of the configuration."""

    async def stop(self) -> None:
        """Stop. Called before the actuators are closed."""

    async def close(self) -> None:
        """Close what is written until the end. Called when the rest of the daemon has stopped."""

    def seen(self, situation: Situation, now: Stamp) -> Situation:  # noqa: ARG002 - for parts that add to it
        """Return the situation with this part's input for policy."""
        return situation

    def step(self) -> None:
        """Act on a completed step, whose verdict and intents are available."""

    def shown(self, snapshot: Snapshot, now: Stamp) -> Snapshot:  # noqa: ARG002 - as above
        """Return the snapshot with the published data of this part."""
        return snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Handle the snapshot that was published."""
