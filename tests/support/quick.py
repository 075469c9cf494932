"""Cases of a test of which `make test` runs the first and `make test-all` every one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first_quick(number: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases for `parametrize`; those after the first `number` are slow. A tuple has a value for each of several names."""
    made = [
        case if hasattr(case, "marks") else pytest.param(*(case if isinstance(case, tuple) else (case,)))
        for case in cases
    ]
    return [
        case if at < number else pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
        for at, case in enumerate(made)
    ]
