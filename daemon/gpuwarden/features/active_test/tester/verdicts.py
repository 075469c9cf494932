"""The verdicts of the daemon, which knows the past of each GPU; without it the run is judged alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuwarden.features.active_test.judging.outcome import Outcome
from gpuwarden_collectors.active_test.facts import GpuTest
from gpuwarden_collectors.codec import CodecError, from_wire


def by_daemon(answer: Mapping[str, Any], tests: Sequence[GpuTest]) -> dict[str, Outcome] | None:
    """Outcomes by UUID, from the answer to `test-result`; None if that has another form or lacks a GPU that was tested."""
    try:
        outcomes = {uuid: from_wire(Outcome, value) for uuid, value in answer["outcomes"].items()}
    except (CodecError, KeyError, AttributeError):
        return None
    return outcomes if {test.uuid for test in tests} <= outcomes.keys() else None
