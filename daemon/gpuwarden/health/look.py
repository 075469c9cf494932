"""What a detector answers: what it saw wrong, and which subjects it could look at.

A subject that was not examined keeps what it has: a finding is never cleared by silence, and never raised by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

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


_THE_NODE = frozenset((NODE,))


def node_look(sightings: Iterable[Sighting]) -> Look:
    return Look(tuple(sightings), _THE_NODE)


@lru_cache(maxsize=32)
def gpus(slots: tuple[str, ...]) -> frozenset[Subject]:
    """Made once: most detectors look at the same GPUs in every pass."""
    return frozenset(map(gpu, slots))


def answering(sight: Sight) -> Sequence[GpuFacts]:
    """The GPUs whose readings of this pass mean something."""

    def make() -> tuple[GpuFacts, ...]:
        return tuple([facts for facts in sight.gpus.values() if facts.answer is GpuAnswer.OK])

    return sight.once("answering", (sight.nvml,), make)


def per_gpu(check: Callable[[State, Sight, GpuFacts], Sighting | None], needs: str) -> Detector:
    """A detector that asks `check` for each answering GPU that gave the reading `needs`."""

    def look(state: State, sight: Sight) -> Look:
        sightings, examined = [], []
        for facts in answering(sight):
            if getattr(facts.readings, needs) is None:
                continue
            examined.append(facts.slot)
            if (sighting := check(state, sight, facts)) is not None:
                sightings.append(sighting)
        return Look(tuple(sightings), gpus(tuple(examined)))

    return look
