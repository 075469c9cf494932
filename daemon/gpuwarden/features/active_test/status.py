"""Active tests in the status document."""

from __future__ import annotations

from typing import Any

from gpuwarden.features.active_test.judging.past import PastTest
from gpuwarden.features.active_test.snapshot import figures, of
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.times import rfc3339, when

Document = dict[str, Any]


def document(snapshot: Snapshot) -> Document:
    return {"tests": _tests(snapshot)}


def _tests(snapshot: Snapshot) -> Document:
    tests = of(snapshot)
    running, gate = tests.running, tests.gate
    return {
        "running": None
        if running is None
        else {
            "level": running.level.value,
            "gpus": running.gpus.split(),
            "pid": running.pid,
            "until": when(running.until),
        },
        "results": [_result(slot, result) for slot, results in tests.results.items() for result in results],
        "return_gate": None if gate is None else {"state": gate.state, "level": gate.level, "text": gate.text},
    }


def _result(slot: str, test: PastTest) -> Document:
    return {
        "pci_bus_id": slot,
        "uuid": test.uuid,
        "level": test.level.value,
        "at": rfc3339(test.at.wall),
        "seconds": test.seconds,
        "result": test.verdict.value,
        "text": test.shown,
        "figures": figures(test),
    }
