"""Assigns processes to jobs. Sources in the order of trust: control group, slurmd, environment, user.

An assignment is kept as long as the process lives, because a program can overwrite its environment. slurmd is only
queried for unassigned processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from gpuwarden_collectors.base import CollectorError
from gpuwarden_collectors.control_groups import RootFolders
from gpuwarden_collectors.slurm.departing_text import listed_pids
from gpuwarden_collectors.slurm.jobs_cgroup import job_cgroup_of
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess
from gpuwarden_collectors.slurm.jobs_process import Claim, Process, claim
from gpuwarden_collectors.slurm.own_pids import own_pids

Ask = Callable[[tuple[str, ...]], str]
"""Runs a Slurm command with these arguments and returns its output. Raises CollectorError."""
LISTPIDS_SPACING = 60.0

_WHOLE = 1.0
"""Precision in seconds of the times in notes, which are truncated."""

_Key = tuple[int, float]


class Owners:
    """Assigns processes to jobs. `listpids` is answered by slurmd and does not load the controller."""

    def __init__(self, proc: Path, ask: Ask | None) -> None:
        self._proc = proc
        self._ask = ask
        self._known: dict[_Key, tuple[int, str]] = {}
        self._claims: dict[_Key, Claim | None] = {}
        self._sluids: dict[_Key, str] = {}
        self._listed = float("-inf")

    def learn(self, users: Sequence[Process], jobs: Mapping[int, Job], now: float) -> None:
        alive = {_key(user) for user in users}
        self._known = {key: value for key, value in self._known.items() if key in alive}
        self._claims = {key: value for key, value in self._claims.items() if key in alive}
        self._sluids = {key: value for key, value in self._sluids.items() if key in alive}
        folders = RootFolders(self._proc)
        noted = {job.sluid: job.id for job in jobs.values() if job.sluid}
        for user in users:
            self._locate(user, folders, noted)
        self._list([user for user in users if self.is_open(user)], now, folders)
        self._believe(users, jobs)
        self._share()

    def _believe(self, users: Sequence[Process], jobs: Mapping[int, Job]) -> None:
        """Accepts credible claims only, because any user can write a job number into an environment.

        A claim counts if it is made by the job's user, as shown by Slurm or by a process that Slurm placed in the job.
        If neither shows the user, it counts if only one user claims the job.
        """
        placed, claimants = dict[int, set[int]](), dict[int, set[int]]()
        for user in users:
            number, source = self._known.get(_key(user), (None, ""))
            claimed = self._claims.get(_key(user))
            if number is not None and source != "environ":
                placed.setdefault(number, set()).add(user.uid)
            elif claimed is not None:
                claimants.setdefault(claimed.job, set()).add(user.uid)
        for user in users:
            if self._known.get(_key(user), (0, "environ"))[1] != "environ":
                continue
            claimed = self._claims.get(_key(user))
            job = None if claimed is None else jobs.get(claimed.job)
            if claimed is not None and _credible(claimed, user, job, placed, claimants):
                self._known[_key(user)] = claimed.job, "environ"
            else:
                self._known.pop(_key(user), None)

    def _share(self) -> None:
        """Assigns all processes in one SLUID's control group to the job of any of them."""
        shown = {sluid: self._known[key] for key, sluid in self._sluids.items() if key in self._known}
        for key, sluid in self._sluids.items():
            if key not in self._known and sluid in shown:
                self._known[key] = shown[sluid]

    def _locate(self, user: Process, folders: RootFolders, noted: Mapping[str, int]) -> None:
        key = _key(user)
        if self._known.get(key, (0, ""))[1] != "cgroup":
            cgroup = job_cgroup_of(self._proc, user.pid, folders)
            if cgroup.job is not None:
                self._known[key] = cgroup.job, "cgroup"
            elif cgroup.sluid:
                self._sluids[key] = cgroup.sluid
                if cgroup.sluid in noted:
                    self._known[key] = noted[cgroup.sluid], "cgroup"
        if key not in self._claims and not user.stuck:
            self._claims[key] = claim(self._proc, user)

    def _list(self, users: Sequence[Process], now: float, folders: RootFolders) -> None:
        if self._ask is None or not users or now - self._listed < LISTPIDS_SPACING:
            return
        self._listed = now
        try:
            listed = listed_pids(self._ask(("scontrol", "listpids")))
        except CollectorError:  # also fails while there are no steps
            return
        groups = ((pid, job_cgroup_of(self._proc, pid, folders)) for pid in listed)
        places = {pid: (group.job, group.sluid) for pid, group in groups if group.job is not None or group.sluid}
        own = own_pids(listed, places)
        for user in users:
            if user.pid in own:
                self._known[_key(user)] = own[user.pid].job, "listpids"

    def is_open(self, user: Process) -> bool:
        """True if the process is unassigned and may belong to a job; root's services do not."""
        return _key(user) not in self._known and (self._claims.get(_key(user)) is not None or user.uid != 0)

    def sluid_of(self, number: int) -> str:
        """The SLUID of the control group of the job's processes; empty if there is none or more than one."""
        sluids = {sluid for key, sluid in self._sluids.items() if self._known.get(key, (None, ""))[0] == number}
        return sluids.pop() if len(sluids) == 1 else ""

    def job_of(self, user: Process) -> int | None:
        return self._known.get(_key(user), (None, ""))[0]

    def user_of(self, number: int, users: Sequence[Process]) -> int | None:
        """The job's user by its processes; None for several. Root is ignored: it has processes in other users' jobs."""
        theirs = {user.uid for user in users if self.job_of(user) == number} - {0} or {0}
        return theirs.pop() if len(theirs) == 1 else None

    def claim_of(self, user: Process) -> Claim | None:
        """Returns the claim in the process's environment, if it names the job that the process belongs to."""
        claimed = self._claims.get(_key(user))
        return claimed if claimed is not None and claimed.job == self.job_of(user) else None

    def belongs(self, user: Process, jobs: Mapping[int, Job]) -> JobProcess:
        number, source = self._known.get(_key(user)) or _only_job_of(user, jobs.values())
        job = None if number is None else jobs.get(number)
        ended = None if job is None or not _before_its_end(user.started, job) else job.ended
        claimed = self.claim_of(user)
        rank = None if claimed is None else claimed.rank
        return JobProcess(pid=user.pid, uid=user.uid, job=number, known_from=source, ended=ended, rank=rank)


def _key(user: Process) -> _Key:
    return user.pid, user.started


def _credible(
    claimed: Claim, user: Process, job: Job | None, placed: Mapping[int, set[int]], claimants: Mapping[int, set[int]]
) -> bool:
    """True if a process's claim of a job is credible.

    `placed`: by job, the users of processes that Slurm placed in it; `claimants`: the users of those that claim it.
    """
    if user.uid == 0:
        return True
    if job is not None and job.uid is not None:
        return user.uid == job.uid
    users = placed.get(claimed.job) or claimants.get(claimed.job, set())
    return users - {0} == {user.uid}


def _only_job_of(user: Process, jobs: Iterable[Job]) -> tuple[int | None, str]:
    """Returns the user's job that was running when the process started, if there was exactly one."""
    if user.uid == 0:
        return None, ""
    theirs = [job.id for job in jobs if job.uid == user.uid and _ran(job, user.started)]
    return (theirs[0], "user") if len(theirs) == 1 else (None, "")


def _ran(job: Job, when: float) -> bool:
    started = job.started is not None and job.started - _WHOLE <= when
    return started and (job.ended is None or _before_its_end(when, job))


def _before_its_end(when: float, job: Job) -> bool:
    return job.ended is not None and when < job.ended + _WHOLE
