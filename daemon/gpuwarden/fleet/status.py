"""The status of a node in the fleet. It imports nothing, since `gpuwarden fleet --help` loads it."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Status of a node, ordered from the best to the worst. `unreachable`: no recent report of its GPUs."""

    HEALTHY = "healthy"
    WARNING = "warning"
    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"
    FAILURE = "failure"


RANK = {status: rank for rank, status in enumerate(Status)}
