"""What a detector answers: what it saw wrong, and which subjects it could look at.

A subject that was not examined keeps what it has: a finding is never cleared by silence, and never raised by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter

from gpuwarden.health.model import NODE, Sighting, Subject, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import GpuFacts


@dataclass(frozen=True, slots=True)
class Look:
    sightings: tuple[Sighting, ...] = ()
    examined: frozenset[Subject] = field(default_factory=frozenset)


Detector = Callable[[State, Sight], Look]

NOTHING = Look()


_THE_NODE = frozenset((NODE,))


_NODE_WELL = Look((), _THE_NODE)


def node_look(sightings: Iterable[Sighting]) -> Look:
    found = tuple(sightings)
    return Look(found, _THE_NODE) if found else _NODE_WELL


@lru_cache(maxsize=32)
def gpus(slots: tuple[str, ...]) -> frozenset[Subject]:
    """Made once: most detectors look at the same GPUs in every pass."""
    return frozenset(map(gpu, slots))


@lru_cache(maxsize=32)
def _gpus_well(slots: tuple[str, ...]) -> Look:
    return Look((), gpus(slots))


def gpu_look(sightings: Sequence[Sighting], examined: Iterable[GpuFacts]) -> Look:
    slots = tuple([facts.slot for facts in examined])
    return Look(tuple(sightings), gpus(slots)) if sightings else _gpus_well(slots)


def per_gpu(check: Callable[[State, Sight, GpuFacts], Sighting | None], needs: str) -> Detector:
    """A detector that asks `check` for each answering GPU that gave the reading `needs`."""
    reading = attrgetter(f"readings.{needs}")

    def look(state: State, sight: Sight) -> Look:
        given = [facts for facts in sight.answering if reading(facts) is not None]
        sightings = [sighting for facts in given if (sighting := check(state, sight, facts)) is not None]
        return gpu_look(sightings, given)

    return look
