"""Detectors of active tests: a result makes a finding, which lasts until another result or an operator ends it."""

from __future__ import annotations

from gpuwarden.features.active_test.judging.outcome import BANDWIDTH_LOW, SM_SLOW, TEST_FAILED, TEST_HUNG
from gpuwarden.features.active_test.judging.results import Standing, standing
from gpuwarden.features.active_test.memory import memory_of
from gpuwarden.health.detection import Detection, Detector, gpus
from gpuwarden.health.memory import State
from gpuwarden.health.model import Event, Key, Sighting, gpu
from gpuwarden.health.view import Sight

_OTHERS = Detection()


def _found(code: str) -> Detector:
    def detect(state: State, _: Sight) -> Detection:
        tests = memory_of(state).tests
        if not tests:
            return _OTHERS
        sightings = [
            _sighting(slot, name, result)
            for slot, pin in state.pins.items()
            for name, result in standing(tests.get(pin.uuid, ())).items()
            if name.partition(".")[0] == code
        ]
        return Detection(tuple(sightings), gpus(tuple(state.pins)))

    return detect


def _sighting(slot: str, name: str, finding: Standing) -> Sighting:
    code, _, detail = name.partition(".")
    evidence = {
        "found": finding.test.text_of(name),
        "level": finding.test.level.value,
        "ends_with_level": finding.level.value,
    }
    return Sighting(Key(code, gpu(slot), detail), evidence, finding.severity, since=finding.test.at)


DETECTORS: dict[str, Detector] = {code: _found(code) for code in (TEST_FAILED, TEST_HUNG, SM_SLOW, BANDWIDTH_LOW)}


def follow(state: State, _: Sight) -> tuple[State, tuple[Event, ...]]:
    """Return the state unchanged: active tests remember nothing from readings."""
    return state, ()
