"""The status of a node in the fleet. It imports nothing, since `gpuwarden fleet --help` loads it."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Status of a node, from best to worst. `unreachable`: there is no recent report of its GPUs."""

    HEALTHY = "healthy"
    WARNING = "warning"
    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"
    FAILURE = "failure"


RANK = {status: rank for rank, status in enumerate(Status)}
