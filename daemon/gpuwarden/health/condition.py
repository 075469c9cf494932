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
    """Worst severity of its findings."""
    title: str
    """Short description for people."""
    advice: Advice
    """The next step."""
    why: str
    """The rule and its meaning."""
    source: str
    """Source of the rule."""
    rise: float = 0.0
    """Seconds for which it must be seen."""
    fall: float = 0.0
    """Seconds for which it must be examined and not seen."""
    latch: Latch = Latch.NONE
    """What ends it once it is no longer seen."""
    depends_on: tuple[str, ...] = ()
    """Codes of the conditions that can cause it."""
    history: float = 0.0
    """Seconds for which the counters of a GPU must have been followed before its absence counts."""
    jobs_go_on: bool = False
    """Jobs on the GPU continue to work. A failure only keeps new jobs away, and `jobs.failing_gpu` does not apply."""
    shadow: bool = False
    """Reported without any action, unless the site sets it otherwise."""
    ends: str = ""
    """What ends the finding, for people, if the latch alone does not explain it."""
    from_memory: bool = False
    """Derived from memory only, so it may be acknowledged while it is seen."""
    flaps: int = 5
    """If raised so often within an hour, it stays until quiet for an hour (see `flaps.py`); 0: never."""


W, F = Severity.WARNING, Severity.FAILURE
NO_DRIVER = ("driver_unresponsive", "driver_not_loaded")
NO_GPU = (*NO_DRIVER, "gpu_missing")
LIMITED, NO_MANAGER = "limited_capacity", "no_manager"
"""Details of `fabric_unhealthy` for a GPU of limited capacity in the fabric, and for a fabric without its global manager. Such
GPUs work. They are apart, so that they do not become a failure with the first pass of a fault."""
