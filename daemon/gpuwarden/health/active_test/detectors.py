"""Findings of active tests: what the results of each board say until something ends it; and which warnings wait while a test runs."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.health.active_test.lease import WARNINGS_THAT_WAIT
from gpuwarden.health.active_test.outcome import BANDWIDTH_LOW, SM_SLOW, TEST_FAILED, TEST_HUNG
from gpuwarden.health.active_test.results import Standing, standing
from gpuwarden.health.detection import Detection, Detector, gpus
from gpuwarden.health.memory import State
from gpuwarden.health.model import Key, Severity, Sighting, gpu
from gpuwarden.health.view import Sight
from gpuwarden_collectors.facts import Stamp

_OTHERS = Detection()


def _found(code: str) -> Detector:
    def detect(state: State, _: Sight) -> Detection:
        if not state.tests:
            return _OTHERS
        sightings = [
            _sighting(slot, name, one)
            for slot, pin in state.pins.items()
            for name, one in standing(state.tests.get(pin.uuid, ())).items()
            if name.partition(".")[0] == code
        ]
        return Detection(tuple(sightings), gpus(tuple(state.pins)))

    return detect


def _sighting(slot: str, name: str, one: Standing) -> Sighting:
    code, _, detail = name.partition(".")
    evidence = {"found": one.test.text_of(name), "level": one.test.level.value, "ends_with_level": one.level.value}
    return Sighting(Key(code, gpu(slot), detail), evidence, one.severity, since=one.test.at)


DETECTORS: dict[str, Detector] = {code: _found(code) for code in (TEST_FAILED, TEST_HUNG, SM_SLOW, BANDWIDTH_LOW)}


def beside_test(state: State, code: str, detection: Detection, now: Stamp) -> Detection:
    """Detection without the warnings that wait while a test runs on the GPU: they neither rise nor end. Failures are kept."""
    if state.lease is None or code not in WARNINGS_THAT_WAIT or not state.lease.holds(now):
        return detection
    under = frozenset(map(gpu, state.lease.slots(state.pins)))
    sightings = tuple(
        one for one in detection.sightings if one.key.subject not in under or one.severity is Severity.FAILURE
    )
    return replace(detection, sightings=sightings, examined=detection.examined - under)
