"""Reads the jobs on this node, and their processes that have a GPU open.

Local sources come first, at no cost for the controller: the notes of prolog and epilog, control groups, slurmd
(`scontrol listpids`), environments of processes. The controller is only queried for what is still missing, at most
`questions` times in four hours, and for the end of a job whose first node this is (`jobs_end.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

from gpuwarden_collectors.base import Clock, SourceAbsent, host_clock
from gpuwarden_collectors.slurm.jobs_controller import HOUR, Controller
from gpuwarden_collectors.slurm.jobs_cpu import CpuTimes
from gpuwarden_collectors.slurm.jobs_end import Ends
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from gpuwarden_collectors.slurm.jobs_gres import conf_text, gpu_lines, has_kinds, minors
from gpuwarden_collectors.slurm.jobs_owners import Ask, Owners
from gpuwarden_collectors.slurm.jobs_process import Process, process
from gpuwarden_collectors.slurm.jobs_register import registered

PROCESSES_MAX = 4096
SETTLED_AFTER = 300.0
"""Seconds for which an ended job is remembered; longer only while one of its processes holds a GPU."""
DOUBTED_AFTER = 6 * HOUR
"""Seconds without a trace of a job after which the controller is queried: its epilog may never have run."""


class JobsReader:
    """Reads the jobs on this host.

    `pids` returns the processes with an open GPU, from NVML's last list. Prolog and epilog write to `register`. `conf`
    is slurm.conf, with gres.conf in the same folder; if it is missing, the host has no Slurm. If `ask` is None, only
    local sources are read.
    """

    def __init__(
        self,
        proc: Path,
        register: Path,
        conf: Path,
        *,
        node: str,
        pids: Callable[[], Collection[int]],
        ask: Ask | None = None,
        questions: int = 2,
        clock: Clock = host_clock,
    ) -> None:
        self._proc = proc
        self._register = register
        self._conf = conf
        self._node = node
        self._pids = pids
        self._clock = clock
        self._owners = Owners(proc, ask)
        self._controller = Controller(node, ask, questions)
        self._ends = Ends(ask)
        self._listed: dict[int, Job] = {}
        self._seen: dict[int, float] = {}  # by job: when it was last seen
        self._over: dict[int, Job] = {}  # existing notes of jobs that have ended
        self._cpu = CpuTimes()

    def is_called(self, node: str) -> None:
        """Sets Slurm's name of this host if it was unknown at the start."""
        self._node = self._controller.node = node

    def read(self) -> JobsFacts:
        """Reads the jobs. Raises SourceAbsent on a host without Slurm."""
        if not self._conf.exists():
            raise SourceAbsent(f"no Slurm on this host: {self._conf} does not exist; set slurm.conf to its path")
        at = self._clock()
        now = at.boottime
        notes = self._noted(now)
        jobs = dict(notes)
        users = [user for pid in sorted(self._pids())[:PROCESSES_MAX] if (user := process(self._proc, pid))]
        self._owners.learn(users, jobs, now)
        for user in users:
            self._add_from_process(user, users, jobs)
        self._ask_for_the_rest(users, jobs, now)
        self._cpu.read(users, now)
        processes = tuple(replace(self._owners.belongs(user, jobs), cpu_seconds=self._cpu.of(user)) for user in users)
        self._settle(processes, jobs, now)
        self._ends.learn(jobs.values(), at)
        self._over |= {number: note for number, note in notes.items() if number not in jobs}
        return JobsFacts(
            jobs=tuple(self._ends.of(self._marked(jobs[number], users), self._node) for number in sorted(jobs)),
            processes=processes,
            cpu_at=self._cpu.at,
            minors=self._minors(now),
        )

    def _minors(self, now: float) -> tuple[int, ...]:
        lines = gpu_lines(conf_text(self._conf.with_name("gres.conf")), self._node)
        return minors(lines, self._controller.gpu_kinds(now) if has_kinds(lines) else ())

    def _marked(self, job: Job, users: Sequence[Process]) -> Job:
        """Returns the job, with `watched` only for batch jobs that have not opted out of `job_stalled`.

        A process must show that it is a batch job. The opt-out may be in the environment of any process or in the job's
        comment.
        """
        claims = [claim for user in users if (claim := self._owners.claim_of(user)) is not None and claim.job == job.id]
        watched = (
            job.watched and any(claim.batch for claim in claims) and not any(claim.ignores_stall for claim in claims)
        )
        return job if watched is job.watched else replace(job, watched=watched)

    def _noted(self, now: float) -> dict[int, Job]:
        """Returns the jobs in the notes, except those known to have ended, unless their note has changed."""
        notes = registered(self._register, now)
        self._over = {number: note for number, note in self._over.items() if notes.get(number) == note}
        return {number: note for number, note in notes.items() if number not in self._over}

    def _add_from_process(self, user: Process, users: Sequence[Process], jobs: dict[int, Job]) -> None:
        """Adds the job of a process, if the process shows it. GPUs in the prolog's note take precedence."""
        number = self._owners.job_of(user)
        if number is None:
            return
        job = jobs.get(number) or self._listed.get(number) or Job(id=number, uid=self._owners.user_of(number, users))
        claimed = self._owners.claim_of(user)
        if claimed is not None:
            gpus = job.gpus if job.started is not None else tuple(sorted({*job.gpus, *claimed.gpus}))
            job = replace(job, gpus=gpus, job_name=job.job_name or claimed.job_name)
        jobs[number] = job if job.sluid else replace(job, sluid=self._owners.sluid_of(number))

    def _ask_for_the_rest(self, users: Sequence[Process], jobs: dict[int, Job], now: float) -> None:
        with_process = {self._owners.job_of(user) for user in users}
        self._seen = {number: now if number in with_process else self._seen.get(number, now) for number in jobs}
        doubted = [n for n, job in jobs.items() if job.ended is None and now - self._seen[n] > DOUBTED_AFTER]
        nameless = any(self._owners.is_open(user) for user in users)
        if (doubted or nameless) and (listed := self._controller.jobs(now)) is not None:
            self._listed = listed
            for number in doubted:
                self._seen[number] = now
                if number not in listed:
                    del jobs[number]
        for number, listed_job in self._listed.items():
            if (job := jobs.get(number)) is not None:
                jobs[number] = replace(
                    job, user=job.user or listed_job.user, job_name=job.job_name or listed_job.job_name
                )
        self._controller.keep(set(jobs))
        for number, job in list(jobs.items()):
            if job.started is None and job.ended is None and not job.gpus:
                jobs[number] = replace(job, gpus=self._controller.gpus(number, now))

    def _settle(self, processes: Sequence[JobProcess], jobs: dict[int, Job], now: float) -> None:
        held = {process.job for process in processes if process.ended is not None}
        for number, job in list(jobs.items()):
            if job.ended is not None and number not in held and now - job.ended > SETTLED_AFTER:
                del jobs[number]
