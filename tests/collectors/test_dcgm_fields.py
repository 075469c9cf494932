"""Values of DCGM fields: what has no value is never a number."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from gpuwarden_collectors.dcgm.fields import NODE, by_entity

BLANK_64, BLANK_32, BLANK_FP = 0x7FFFFFFFFFFFFFF0, 0x7FFFFFF0, 140737488355328.0
GPU_0 = (1, 0)


def value(field: int, kind: str, number: Any, *, status: int = 0, entity: tuple[int, int] = GPU_0) -> SimpleNamespace:
    union = SimpleNamespace(i64=0, dbl=0.0, str="")
    setattr(union, {"i": "i64", "d": "dbl", "s": "str"}.get(kind, "i64"), number)
    return SimpleNamespace(
        entityGroupId=entity[0],
        entityId=entity[1],
        fieldId=field,
        fieldType=ord(kind),
        status=status,
        ts=1_700_000_000_500_000,
        value=union,
    )


def test_values_are_grouped_by_entity() -> None:
    values = [value(1523, "i", 2), value(1523, "i", 7, entity=(1, 3)), value(1502, "s", "UP", entity=(0, 0))]
    assert by_entity(values) == {
        GPU_0: {"recovery_action": 2},
        (1, 3): {"recovery_action": 7},
        NODE: {"imex_domain": "UP"},
    }


def test_the_last_xid_comes_with_its_time() -> None:
    assert by_entity([value(230, "i", 79)]) == {GPU_0: {"last_xid": 79, "last_xid_at": 1_700_000_000.5}}


@pytest.mark.parametrize("blank", [0, 1, 2, 3])
def test_blanks_are_no_values(blank: int) -> None:
    """Nothing, not found, not supported, not permitted."""
    values = [
        value(1523, "i", BLANK_64 + blank),
        value(150, "i", BLANK_32 + blank),
        value(1009, "i", BLANK_64 + blank),
        value(1001, "d", BLANK_FP + blank),
        value(1502, "s", ["<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>"][blank]),
    ]
    assert by_entity(values) == {}


def test_a_counter_of_bytes_may_be_larger_than_32_bits() -> None:
    assert by_entity([value(1009, "i", BLANK_32 + 1)]) == {GPU_0: {"pcie_tx_bytes": BLANK_32 + 1}}


@pytest.mark.parametrize(
    "odd",
    [
        value(1523, "i", 1, status=-16),  # not watched
        value(1523, "i", 1, status=-14),  # no sample yet
        value(1523, "d", 1.0),  # another type than it ought to have
        value(1502, "i", 1),
        value(1001, "s", "0.5"),
        value(1001, "b", 0),
        value(1001, "d", math.nan),
        value(1001, "d", math.inf),
        value(9999, "i", 1),  # not asked for
        value(1502, "s", ""),
    ],
)
def test_what_cannot_be_used_is_left_out(odd: Any) -> None:
    assert by_entity([odd]) == {}


def test_a_negative_state_is_a_value() -> None:
    """-1 and -2: IMEX is not installed, not configured."""
    assert by_entity([value(1503, "i", -1, entity=(0, 0))]) == {NODE: {"imex_daemon": -1}}
