"""Active tests as published. Pure functions of their part of the snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpuwarden.health.active_test.outcome import ActiveVerdict
from gpuwarden.health.active_test.past import PastTest
from gpuwarden.publish.snapshot import GATE_STATES, ActiveTests, ReturnGateShown, Snapshot
from gpuwarden.publish.times import rfc3339, when
from gpuwarden_collectors.active_test.level import Level

Document = dict[str, Any]
Sample = tuple[tuple[str, ...], float]

FIGURES = ("int8", "verify", "write", "to_device", "to_host", "peers")
"""Figures that are published; cycles are constants of the kernels."""


def document(tests: ActiveTests, gate: ReturnGateShown | None) -> Document:
    running = tests.running
    return {
        "running": None
        if running is None
        else {
            "level": running.level.value,
            "gpus": running.gpus.split(),
            "pid": running.pid,
            "until": when(running.until),
        },
        "results": [_result(slot, one) for slot, results in tests.results.items() for one in results],
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
        "figures": _figures(test),
    }


def _figures(test: PastTest) -> Mapping[str, float]:
    values = test.values()
    return {name: values[name] for name in FIGURES if name in values}


# --- samples for metrics


def runs(snapshot: Snapshot) -> Iterator[Sample]:
    """Tests by level and result, every pair once there was any test."""
    counts = snapshot.tests.counts
    if not counts:
        return iter(())
    return (((level, result), counts.get(f"{level}_{result}", 0)) for level in Level for result in ActiveVerdict)


def last(snapshot: Snapshot) -> Iterator[Sample]:
    return (((*labels, one.level.value), one.at.wall) for labels, results in _by_gpu(snapshot) for one in results)


def return_gate(snapshot: Snapshot) -> Iterator[Sample]:
    if (gate := snapshot.enforced.gate) is not None:
        yield from (((state,), int(state == gate.state)) for state in GATE_STATES)


def results(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, tests in _by_gpu(snapshot):
        yield from (((*labels, result.value), int(tests[-1].verdict is result)) for result in ActiveVerdict)


def figures(snapshot: Snapshot) -> Iterator[Sample]:
    for labels, tests in _by_gpu(snapshot):
        newest = next((found for one in reversed(tests) if (found := _figures(one))), {})
        yield from (((*labels, name), value) for name, value in newest.items())


def _by_gpu(snapshot: Snapshot) -> Iterator[tuple[tuple[str, str, str], tuple[PastTest, ...]]]:
    """Yields the label values (index, UUID, slot) and the tests of each GPU that was tested."""
    for gpu in snapshot.verdict.gpus:
        if tests := snapshot.tests.results.get(gpu.slot):
            yield ("" if gpu.index is None else str(gpu.index), gpu.uuid, gpu.slot), tests
