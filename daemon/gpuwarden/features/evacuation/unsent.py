"""Ranks of this host that were surely not sent their signal for a reason that may pass, and when they are signalled after all.

Until then they count as signalled, so that no scan begins with them again. They are kept in memory alone: a daemon that
starts in such a pause leaves them as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpuwarden.features.evacuation.policy.delivery import Process
from gpuwarden_collectors.backoff import grown
from gpuwarden_collectors.dataclass import dataclass

PAUSE_FIRST, PAUSE_MOST = 1.0, 10.0
"""Seconds between two attempts of one job: a handler is replaced within a scan, a debugger stays for minutes, and each attempt is three events."""


FORGOTTEN_AFTER = 60.0
"""Seconds after which an attempt is the first one again."""


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
        """Remember processes that were not sent their signal. `now` in seconds of CLOCK_BOOTTIME, as below."""
        unsent = self._jobs.get(job)
        attempts, before = (unsent.attempts, unsent.processes) if unsent else (0, frozenset())
        due = now + grown(PAUSE_FIRST, PAUSE_MOST, attempts)
        self._jobs[job] = UnsentJob(notice, job, before | frozenset(processes), text, due, attempts + 1)

    def take(self, now: float) -> list[UnsentJob]:
        """Processes whose pause is over and which are to be signalled. Each process is returned once."""
        taken = [unsent for unsent in self._jobs.values() if unsent.processes and now >= unsent.due]
        self._jobs |= {unsent.job: replace(unsent, processes=frozenset()) for unsent in taken}
        self._jobs = {
            job: unsent for job, unsent in self._jobs.items() if unsent.processes or now - unsent.due < FORGOTTEN_AFTER
        }
        return taken
