"""What a detector answers: what it saw wrong, and which subjects it could look at.

A subject that was not examined keeps what it has: a finding is never cleared by silence, and never raised by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from gpuwarden.health.model import NODE, Sighting, Subject, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import GpuAnswer, GpuFacts


@dataclass(frozen=True, slots=True)
class Look:
    sightings: tuple[Sighting, ...] = ()
    examined: frozenset[Subject] = field(default_factory=frozenset)


Detector = Callable[[State, Sight], Look]

NOTHING = Look()


def node_look(sightings: Iterable[Sighting]) -> Look:
    return Look(tuple(sightings), frozenset((NODE,)))


def answering(sight: Sight) -> Iterator[GpuFacts]:
    """The GPUs whose readings of this pass mean something."""
    return (facts for facts in sight.gpus.values() if facts.answer is GpuAnswer.OK)


def per_gpu(check: Callable[[State, Sight, GpuFacts], Sighting | None], *needs: str) -> Detector:
    """A detector that asks `check` for each answering GPU that gave all the readings named in `needs`."""

    def look(state: State, sight: Sight) -> Look:
        sightings, examined = [], []
        for facts in answering(sight):
            if any(getattr(facts.readings, name) is None for name in needs):
                continue
            examined.append(gpu(facts.slot))
            if (sighting := check(state, sight, facts)) is not None:
                sightings.append(sighting)
        return Look(tuple(sightings), frozenset(examined))

    return look
