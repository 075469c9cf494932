"""The daemon's verdicts, which use the past of each GPU. Without them the run is judged on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuwarden.features.active_test.judging.outcome import Outcome
from gpuwarden_collectors.active_test.facts import GpuTest
from gpuwarden_collectors.codec import CodecError, from_wire


def by_daemon(answer: Mapping[str, Any], tests: Sequence[GpuTest]) -> dict[str, Outcome] | None:
    """Return the outcomes by UUID in the answer to `test-result`; None if it is malformed or lacks a GPU."""
    try:
        outcomes = {uuid: from_wire(Outcome, value) for uuid, value in answer["outcomes"].items()}
    except (CodecError, KeyError, AttributeError):
        return None
    return outcomes if {test.uuid for test in tests} <= outcomes.keys() else None
