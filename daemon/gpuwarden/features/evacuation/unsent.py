"""Ranks of this host that surely got no signal, for a reason that may pass, and when the next attempt is due.

Until then they count as signalled, so that no scan starts with them again. They are kept in memory only: a daemon that
starts during such a pause does not try again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuwarden.features.evacuation.policy.delivery import Process
from gpuwarden_collectors.backoff import grown
from gpuwarden_collectors.dataclass import dataclass

PAUSE_FIRST, PAUSE_MOST = 1.0, 10.0
"""Seconds between two attempts of one job: a handler is replaced within a scan, a debugger stays for minutes, and each
attempt writes three events."""


FORGOTTEN_AFTER = 60.0
"""Seconds after which the next attempt counts as the first."""


@dataclass(frozen=True, slots=True)
class UnsentJob:
    """Processes of a job that were not sent their signal. `notice`: for which evacuation, by its id; `job` by `key_of`.
    `text`: why, for people; `due`: seconds of CLOCK_BOOTTIME; `attempts`: so far.
    """

    notice: str
    job: str
    processes: frozenset[Process]
    text: str
    due: float
    attempts: int


class Unsent:
    """The unsent signals of one daemon."""

    def __init__(self) -> None:
        self._jobs: dict[str, UnsentJob] = {}

    def add(self, notice: str, job: str, processes: Iterable[Process], text: str, now: float) -> None:
        """Record processes that got no signal. `now` in seconds of CLOCK_BOOTTIME, as below."""
        unsent = self._jobs.get(job)
        attempts, before = (unsent.attempts, unsent.processes) if unsent else (0, frozenset())
        due = now + grown(PAUSE_FIRST, PAUSE_MOST, attempts)
        self._jobs[job] = UnsentJob(notice, job, before | frozenset(processes), text, due, attempts + 1)

    def take(self, now: float) -> list[UnsentJob]:
        """Return the processes whose pause is over, which are to be signalled. Each process is returned once."""
        taken = [unsent for unsent in self._jobs.values() if unsent.processes and now >= unsent.due]
        self._jobs |= {unsent.job: replace(unsent, processes=frozenset()) for unsent in taken}
        self._jobs = {
            job: unsent for job, unsent in self._jobs.items() if unsent.processes or now - unsent.due < FORGOTTEN_AFTER
        }
        return taken
