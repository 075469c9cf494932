"""Reads jobs from the controller: only what local sources do not show, and rarely.

Each query causes three requests (measured on 22.05), one of them for all nodes of the cluster and, for the list, one
for all jobs. A healthy node reads its own state with ten requests an hour; the limit for everything is twelve.
"""

from __future__ import annotations

from collections import deque

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.slurm.jobs_facts import Job
from gpuwarden_collectors.slurm.jobs_gres import kinds_of
from gpuwarden_collectors.slurm.jobs_owners import Ask
from gpuwarden_collectors.slurm.jobs_text import SQUEUE_FORMAT, gpus_of, squeue

HOUR = 3600.0
KINDS_AGAIN, KINDS_FAILED = 24 * HOUR, 600.0
"""Seconds until the types of the GPUs are queried again: after an answer, and after a failed query; own choice."""
SPAN = 4 * HOUR
"""Period in seconds of one quota of queries; two queries are one and a half requests an hour."""


class Controller:
    """Queries the controller at most `questions` times in each `SPAN`, including failed queries.

    Half of the queries, but at least one, are for the list of jobs, spread over the period.
    """

    def __init__(self, node: str, ask: Ask | None, questions: int) -> None:
        self.node = node
        self._ask = ask
        self._questions = questions
        self._asked: deque[float] = deque()
        self._listed = float("-inf")
        self._gpus: dict[int, tuple[int, ...]] = {}
        self._kinds: tuple[str, ...] = ()
        self._kinds_due = float("-inf")

    def jobs(self, now: float) -> dict[int, Job] | None:
        """Returns the jobs on this node by number, or None if the controller was not queried or did not answer."""
        if now - self._listed < SPAN / max(1, self._questions // 2):
            return None
        self._listed = now
        command = ("squeue", "--noheader", "--nodelist", self.node, "--states=R,CG,CF,S,ST", "--format", SQUEUE_FORMAT)
        text = self._answer(now, command)
        return None if text is None else {job.id: job for job in squeue(text)}

    def gpus(self, number: int, now: float) -> tuple[int, ...]:
        """Returns the GPUs of a job on this node; queries the controller once per job."""
        if number not in self._gpus:
            text = self._answer(now, ("scontrol", "show", "job", "-d", str(number)))
            if text is None:
                return ()
            self._gpus[number] = gpus_of(text, self.node) or ()
        return self._gpus[number]

    def gpu_kinds(self, now: float) -> tuple[str, ...]:
        """Returns the types of this node's GPUs in slurm.conf's order; empty if unknown. Queries the controller once a
        day, with two small requests.
        """
        if self._ask is not None and self.node and now >= self._kinds_due:
            command = ("sinfo", "--local", "--all", "--noheader", "--Node", f"--nodes={self.node}", "--format=%G")
            try:
                self._kinds, self._kinds_due = kinds_of(self._ask(command).partition("\n")[0]), now + KINDS_AGAIN
            except CollectorError:
                self._kinds_due = now + KINDS_FAILED
        return self._kinds

    def keep(self, numbers: set[int]) -> None:
        self._gpus = {number: gpus for number, gpus in self._gpus.items() if number in numbers}

    def _answer(self, now: float, command: tuple[str, ...]) -> str | None:
        while self._asked and now - self._asked[0] >= SPAN:
            self._asked.popleft()
        if self._ask is None or len(self._asked) >= self._questions:
            return None
        self._asked.append(now)
        try:
            return self._ask(command)
        except CollectorError:
            return None
