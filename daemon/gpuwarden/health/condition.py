"""The fields of a row in the tables of conditions, and texts that many rows share."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwarden.health.model import Advice, Latch, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """`scope` is the kind of subject: node, gpu, link, switch, port, mount or service. `severity` is the worst it can have.

    `flaps`: raised so often within an hour, it stays until it was quiet for an hour (see `flaps.py`); 0: never.
    """

    code: str
    scope: str
    severity: Severity
    title: str
    advice: Advice
    why: str
    source: str
    rise: float = 0.0
    fall: float = 0.0
    latch: Latch = Latch.NONE
    depends_on: tuple[str, ...] = ()
    history: float = 0.0
    flaps: int = 5


W, F = Severity.WARNING, Severity.FAILURE
NO_DRIVER = ("driver_unresponsive", "driver_not_loaded")
NO_GPU = (*NO_DRIVER, "gpu_missing")
