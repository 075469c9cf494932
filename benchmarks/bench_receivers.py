"""The cost of finding the processes to signal: one scan of a host with 2,000 processes, half of them of 64 Slurm jobs.

The processes are real; each job has a task leader, which holds a GPU, and 15 helpers. In the same turns: a plain os.scandir of
/proc, and reading the control groups of all processes, which is the least that a scan can do. The first scan of a reader reads all
environments; later ones use them. slurmd's list replaces the control groups of jobs, which only root could make: the same is read.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common import spread, table
from gpuwarden_collectors.host_files import read_bytes
from gpuwarden_collectors.receivers.facts import Role
from gpuwarden_collectors.receivers.reader import ReceiversReader
from gpuwarden_collectors.slurm.departing_facts import ListedPid

PROC = Path("/proc")
PROCESSES, JOBS, OF_A_JOB = 2000, 64, 16
ROUNDS = 15
HELPERS = "trap : TERM; n=0; while [ $n -lt $0 ]; do sleep 1000 & n=$((n+1)); done; wait; sleep 1000"


@contextmanager
def host(program: Path) -> Iterator[dict[int, ListedPid]]:
    """Run the processes of jobs and others. Yields those of jobs, as slurmd would list them."""
    listed: dict[int, ListedPid] = {}
    pids: list[int] = []
    try:
        for job in range(1, JOBS + 1):
            leader = _process(str(program), job, "-c", HELPERS, str(OF_A_JOB - 1))
            pids.append(leader)
            listed[leader] = ListedPid(job=job, step="0", local=0, rank=0)
        pids += [_process("sleep", 0, "1000") for _ in range(PROCESSES - JOBS * OF_A_JOB)]
        _until_all_run(listed)
        yield listed
    finally:
        for pid in pids:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _process(program: str, job: int, *words: str) -> int:
    """Start a process in its own session, with an environment of 3 KiB."""
    variables = {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "0",
        **{f"V{n}": "x" * 40 for n in range(60)},
    }
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.execvpe(program, [program, *words], {**os.environ, **variables})
    return pid


def _until_all_run(listed: dict[int, ListedPid]) -> None:
    """Wait until all helpers of the jobs run, and add them to the list."""
    while True:
        leaders = dict(listed)
        helpers: dict[int, ListedPid] = {}
        for folder in PROC.iterdir():
            with suppress(OSError, ValueError):
                parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
                if parent in leaders and int(folder.name) not in leaders:
                    helpers[int(folder.name)] = ListedPid(job=leaders[parent].job, step="0")
        if len(helpers) >= JOBS * (OF_A_JOB - 1):
            listed |= helpers
            return
        time.sleep(0.1)


def milliseconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return (time.perf_counter() - started) * 1e3


def scanned() -> None:
    with os.scandir(PROC) as entries:
        for entry in entries:
            entry.name.isdecimal()


def groups_read() -> None:
    with os.scandir(PROC) as entries:
        for entry in entries:
            if entry.name.isdecimal():
                with suppress(OSError):
                    read_bytes(f"/proc/{entry.name}/cgroup")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        program = Path(folder) / "train"  # a shell by any other name is a trainer
        program.symlink_to(shutil.which("dash") or "/bin/sh")
        measure(program)


def measure(program: Path) -> None:
    with host(program) as listed:
        gpu = {pid for pid, place in listed.items() if place.local is not None}
        reader = ReceiversReader(PROC)
        jobs = [job for job in reader.read(gpu, listed) if job.id.isdecimal() and int(job.id) <= JOBS]
        ranks = sum(process.role is Role.RANK for job in jobs for process in job.processes)
        assert (len(jobs), ranks) == (JOBS, JOBS), f"{len(jobs)} jobs with {ranks} ranks"
        scans: dict[str, Callable[[], object]] = {
            "os.scandir of /proc": scanned,
            "their control groups read": groups_read,
            "a first scan": lambda: ReceiversReader(PROC).read(gpu, listed),
            "a later scan": lambda: reader.read(gpu, listed),
        }
        times: dict[str, list[float]] = {name: [] for name in scans}
        for _ in range(ROUNDS):
            for name, run in scans.items():
                times[name].append(milliseconds(run))
        plain = times["os.scandir of /proc"]
        rows = [
            [name, spread(taken, 1), spread([a / b for a, b in zip(taken, plain, strict=True)], 1)] for name, taken in times.items()
        ]  # fmt: skip
    head = ("what", "ms", "times the scandir")
    table(
        f"{PROCESSES} processes, {JOBS} jobs of {OF_A_JOB} processes; median (least-most) of {ROUNDS} rounds",
        head,
        rows,
    )


if __name__ == "__main__":
    main()
