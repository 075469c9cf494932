"""What can be wrong beside the GPUs: rows of the table of conditions."""

from __future__ import annotations

from gpuwarden.health.condition import Condition

HOST_CONDITIONS: tuple[Condition, ...] = ()


def plugin_condition(code: str) -> Condition | None:
    return None
