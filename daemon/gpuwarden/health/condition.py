"""The fields of a row in the tables of conditions, and texts that many rows share."""

from __future__ import annotations

from gpuwarden.health.model import Advice, Latch, Severity
from gpuwarden_collectors.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One row of the table."""

    code: str
    """Lower snake case, stable: it is published and configured."""
    scope: str
    """Kind of its subject: node, gpu, link, switch, adapter, port, mount or service."""
    severity: Severity
    """The worst that it can have."""
    title: str
    """What is wrong, for people."""
    advice: Advice
    """The next step."""
    why: str
    """When it holds, and what it means."""
    source: str
    """Where the rule comes from."""
    rise: float = 0.0
    """Seconds for which it must be seen."""
    fall: float = 0.0
    """Seconds for which it must be examined and not seen."""
    latch: Latch = Latch.NONE
    """What ends it once it is no longer seen."""
    depends_on: tuple[str, ...] = ()
    """Codes of the conditions that it can be a consequence of."""
    history: float = 0.0
    """Seconds for which the counters of a GPU must have been followed before its absence counts."""
    jobs_go_on: bool = False
    """Jobs on the GPU work, worse at most: as a failure it only keeps new ones away, and `jobs.failing_gpu` leaves them alone."""
    shadow: bool = False
    """It is reported, and nothing follows from it, unless the site has it otherwise."""
    ends: str = ""
    """What ends the finding, for people, where its latch does not say it."""
    from_memory: bool = False
    """It is seen in memory alone, for as long as that says so: it may be acknowledged while it is seen."""
    flaps: int = 5
    """Raised so often within an hour, it stays until it was quiet for an hour (see `flaps.py`); 0: never."""


W, F = Severity.WARNING, Severity.FAILURE
NO_DRIVER = ("driver_unresponsive", "driver_not_loaded")
NO_GPU = (*NO_DRIVER, "gpu_missing")
