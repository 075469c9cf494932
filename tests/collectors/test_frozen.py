"""Copies of frozen facts: as `dataclasses.replace` makes them, and as frozen."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from gpuwarden_collectors.facts import GpuFacts, GpuReadings, NvmlFacts, Stamp
from gpuwarden_collectors.frozen import with_values
from gpuwarden_collectors.pci_facts import PciFacts

OLD: list[tuple[Any, dict[str, Any]]] = [
    (GpuReadings(temperature=60, fabric_state=3), {"temperature": 61, "pcie_replays": None}),
    (GpuFacts(slot="0000:1a:00.0", index=0), {"readings": GpuReadings(temperature=61)}),
    (NvmlFacts(driver_version="580.1"), {}),
    (PciFacts(), {"devices": ()}),
    (Stamp(1.0, 2.0), {"wall": 3.0}),
]


@pytest.mark.parametrize(("old", "values"), OLD, ids=lambda value: type(value).__name__)
def test_a_copy_is_what_replace_makes(old: Any, values: dict[str, Any]) -> None:
    before, new = pickle.dumps(old), with_values(old, values)
    assert new == replace(old, **values)
    assert (type(new), hash(new), repr(new)) == (type(old), hash(replace(old, **values)), repr(replace(old, **values)))
    assert pickle.loads(pickle.dumps(new)) == new
    assert pickle.dumps(old) == before


def test_a_copy_is_as_frozen_as_the_first() -> None:
    new = with_values(Stamp(1.0, 2.0), {"wall": 3.0})
    with pytest.raises(FrozenInstanceError):
        new.wall = 4.0  # type: ignore[misc]


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(AttributeError):
        with_values(Stamp(1.0, 2.0), {"boot": 3.0})
