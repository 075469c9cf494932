"""A fault of the evaluation for each condition, with which a test raises it."""

from __future__ import annotations

import re
from functools import cache

from evaluate.classes import CLASSES
from evaluate.fault_class import FaultClass
from evaluate.faults import reading
from gpuwarden.health.conditions import CONDITIONS

LATER = 120.0
NOT_BY_A_FAULT = {"lemon_node": "it is made of the faults of days: tests/health/test_lemons.py"}
CODES = sorted(set(CONDITIONS) - set(NOT_BY_A_FAULT))


@cache
def fault(code: str) -> FaultClass:
    """The shortest one that raises it."""
    if code == "row_remap_overdue":  # a week by the table; its time is the key that is tried
        pending = reading(remapped_rows_pending=1)
        return FaultClass(name="row remapping pending", strike=pending, expects=(code,), grace=LATER)
    rows = [row for row in CLASSES if any(re.match(rf"{code}(\W|$)", pattern) for pattern in row.expects)]
    assert rows, f"no fault of the evaluation raises {code}"
    return min(rows, key=lambda row: (bool(row.also), row.detected_within))
