"""The detectors of the rows in `host_conditions.py`."""

from __future__ import annotations

from collections.abc import Mapping

from gpuwarden.health.look import Detector, Look
from gpuwarden.health.state import State
from gpuwarden.health.view import Sight

DETECTORS: Mapping[str, Detector] = {}


def family(state: State, sight: Sight) -> Mapping[str, Look]:
    return {}
