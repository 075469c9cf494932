"""The jobs on this node and the processes of theirs that have a GPU open.

What is on this host is asked first and costs the controller nothing: the notes of prolog and epilog, the control groups,
slurmd (`scontrol listpids`), the environment of processes. The controller is asked only for what these leave open, at most
`questions` times in four hours, and how a job ended whose first node this is (`jobs_end.py`).
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
from gpuwarden_collectors.slurm.jobs_gres import minors
from gpuwarden_collectors.slurm.jobs_owners import Ask, Owners
from gpuwarden_collectors.slurm.jobs_process import Process, process
from gpuwarden_collectors.slurm.jobs_register import registered

PROCESSES_MAX = 4096
SETTLED_AFTER = 300.0
"""Seconds after its end for which a job is remembered, and for longer only while a process of it holds a GPU."""
DOUBTED_AFTER = 6 * HOUR
"""After this time without a sign of a job it is asked for, lest one whose epilog never ran stays for ever."""


class JobsReader:
    """Reads the jobs on this host.

    `pids` are the processes that have a GPU open, as NVML last listed them. Prolog and epilog write to `register`.
    gres.conf lies beside `conf`, slurm.conf; without that there is no Slurm here. If `ask` is None, only what is on
    this host is read.
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
        self._seen: dict[int, float] = {}  # job: when there was last a sign of it
        self._over: dict[int, Job] = {}  # notes that are still there of jobs that are over
        self._cpu = CpuTimes()

    def is_called(self, node: str) -> None:
        """Sets Slurm's name of this host where it was not known from the start."""
        self._node = self._controller.node = node

    def read(self) -> JobsFacts:
        """Raises SourceAbsent on a host without Slurm."""
        if not self._conf.exists():
            raise SourceAbsent(f"no Slurm on this host: {self._conf} does not exist; slurm.conf says where it is")
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
            minors=minors(self._conf.with_name("gres.conf"), self._node),
        )

    def _marked(self, job: Job, users: Sequence[Process]) -> Job:
        """Returns the job with `watched` narrowed to batch jobs whose user did not decline the judgement.

        One of its processes must show that it is a batch job; the refusal may be in any process or in the job's
        comment.
        """
        claims = [claim for user in users if (claim := self._owners.claim_of(user)) is not None and claim.job == job.id]
        watched = (
            job.watched and any(claim.batch for claim in claims) and not any(claim.ignores_stall for claim in claims)
        )
        return job if watched is job.watched else replace(job, watched=watched)

    def _noted(self, now: float) -> dict[int, Job]:
        """The jobs of the notes, but not those that were found to be over, until one of that number starts or ends again."""
        notes = registered(self._register, now)
        self._over = {number: note for number, note in self._over.items() if notes.get(number) == note}
        return {number: note for number, note in notes.items() if number not in self._over}

    def _add_from_process(self, user: Process, users: Sequence[Process], jobs: dict[int, Job]) -> None:
        """The job that a process belongs to, as far as the process shows it; the GPUs in the prolog's note win."""
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
