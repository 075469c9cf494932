"""Finds who cancelled a job. Only Slurm's accounting (`sacct`, slurmdbd) stores that, not the controller.

It is queried for jobs of this node that the controller reports as cancelled. If it does not answer, as on a site
without slurmdbd, it is not queried for an hour.
"""

from __future__ import annotations

import re

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.slurm.jobs_facts import Job
from gpuwarden_collectors.slurm.jobs_owners import Ask

AGAIN_AFTER = 3600.0
"""Seconds."""
_FIELDS = "JobIDRaw,UID,State"
_CANCELLED = re.compile(r"(?P<job>\d{1,10})\|(?P<uid>\d{1,10})\|CANCELLED by (?P<by>\d{1,10})", re.ASCII)


def cancelled_by(text: str, job: int, uid: int | None) -> int | None:
    """Parses `sacct -XnP -o JobIDRaw,UID,State` for one job. None if it names no user, or the job's user is not `uid`.

    For the last task of an array, whose number is that of the array, the answer has all tasks. For the first component
    of a heterogeneous job it has all components (seen with 22.05.8).
    """
    lines = [match for line in text.splitlines() if (match := _CANCELLED.fullmatch(line)) and int(match["job"]) == job]
    if len(lines) != 1 or uid not in (None, int(lines[0]["uid"])):
        return None
    return int(lines[0]["by"])


class Accounting:
    """Queries accounting for who cancelled jobs; does nothing if `ask` is None."""

    def __init__(self, ask: Ask | None) -> None:
        self._ask = ask
        self._again = float("-inf")

    def cancelled_by(self, job: Job, now: float) -> int | None:
        """Returns the uid of the user who cancelled the job, or None. `now`: seconds of CLOCK_BOOTTIME."""
        if self._ask is None or now < self._again:
            return None
        try:
            return cancelled_by(self._ask(("sacct", "-XnP", "-o", _FIELDS, "-j", str(job.id))), job.id, job.uid)
        except CollectorError:
            self._again = now + AGAIN_AFTER
            return None
