"""What the fields are."""

# ruff: noqa: N801, N802, N803, N815 - these are the names of the bindings
from __future__ import annotations

from typing import NamedTuple

import fake_engine  # type: ignore[import-not-found] # found by path


class c_dcgm_field_meta_t(NamedTuple):
    fieldId: int


def DcgmFieldGetById(fieldId: int) -> c_dcgm_field_meta_t | None:
    with fake_engine.call("DcgmFieldGetById") as engine:
        is_supported = fieldId in fake_engine.KNOWN and fieldId not in engine["unknown"]
    return c_dcgm_field_meta_t(fieldId) if is_supported else None
