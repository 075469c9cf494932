"""The result of a detector: the problems it observed, and the subjects it could examine.

A subject that was not examined keeps its findings: missing data neither clears nor raises one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from functools import lru_cache
from operator import attrgetter

from gpuwarden.health.memory import Track
from gpuwarden.health.model import NODE, Event, Sighting, Subject, gpu
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import GpuFacts, Stamp


@dataclass(frozen=True, slots=True)
class Detection:
    """The result of one detector in one step."""

    sightings: tuple[Sighting, ...] = ()
    """Problems it observed."""
    examined: frozenset[Subject] = field(default_factory=frozenset)
    """Subjects it could examine; only their findings may end."""


Detector = Callable[[State, Sight], Detection]
Follower = Callable[[State, Sight], tuple[State, Sequence[Event]]]
"""Returns the state updated by a step, and events for what was learned."""

NOTHING = Detection()


_THE_NODE = frozenset((NODE,))


_NODE_WELL = Detection((), _THE_NODE)


def node_detection(sightings: Iterable[Sighting]) -> Detection:
    all_sightings = tuple(sightings)
    return Detection(all_sightings, _THE_NODE) if all_sightings else _NODE_WELL


def tracked_detection(
    code: str, state: State, sightings: Iterable[Sighting] = (), unseen: AbstractSet[Subject] = frozenset()
) -> Detection:
    """Return a detection in which all subjects with this finding count as examined, except `unseen` ones."""
    tracked = {track.key.subject for track in state.tracks_of(code)}
    return Detection(tuple(sightings), frozenset(tracked - unseen))


def in_two_passes(track: Track | None, started: Stamp | None, now: Stamp) -> bool:
    """Return False while only one pass has shown the condition, since passes may be a whole rise time apart.

    `track`: its track, if any. `started`: when the newest pass with facts began.
    """
    if track is None or track.raised or started is None or track.first_seen.boottime > now.boottime:
        return True
    return started.boottime > track.first_seen.boottime


@lru_cache(maxsize=32)
def gpus(slots: tuple[str, ...]) -> frozenset[Subject]:
    """Return the subjects of these GPUs. Cached, since most detectors examine the same GPUs in every pass."""
    return frozenset(map(gpu, slots))


@lru_cache(maxsize=32)
def _gpus_well(slots: tuple[str, ...]) -> Detection:
    return Detection((), gpus(slots))


def gpu_detection(sightings: Sequence[Sighting], examined: Iterable[GpuFacts]) -> Detection:
    slots = tuple([facts.slot for facts in examined])
    return Detection(tuple(sightings), gpus(slots)) if sightings else _gpus_well(slots)


def per_gpu(check: Callable[[State, Sight, GpuFacts], Sighting | None], needs: str) -> Detector:
    """Return a detector that calls `check` for each answering GPU with the reading `needs`."""
    reading = attrgetter(f"readings.{needs}")

    def detect(state: State, sight: Sight) -> Detection:
        examined = [facts for facts in sight.answering if reading(facts) is not None]
        sightings = [sighting for facts in examined if (sighting := check(state, sight, facts)) is not None]
        return gpu_detection(sightings, examined)

    return detect
