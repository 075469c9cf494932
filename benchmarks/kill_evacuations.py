"""Kills the daemon with SIGKILL right after a cloud announced the end of its machine, and counts the jobs that are never signalled.

    python benchmarks/kill_evacuations.py [--rounds 200] [--without-slurm] [--most 0.4]

The service announces it all the time, the daemon is restarted at once, and the ranks get only the signal. With Slurm there are two ranks, of
a job on two nodes, which is marked and signalled as a whole; without it one, on this host. Each round is classified by what the killed daemon
left:

    decidable      the ledger says that nothing was sent, or what came of it, or no mark is at the job, or the command that sent it has
                   kept a record: each rank gets one signal, or each of this host where the controller did not answer the second
                   daemon in time
    undecidable    the ledger says that it was being sent, the mark stands, and the second daemon does not know: none or one

Not part of `make bench`: it measures no time. Exit status 1 if a decidable one was never signalled, anybody twice, or if more than one round in
twenty is undecidable.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from apart import apart
from bench_evacuation import SOURCES, Asked
from bench_slurm import cluster
from gpuwarden.base.paths import LEDGER
from gpuwarden.health.model import EventKind
from gpuwarden.ledger.reader import read_only
from support.daemons import FakeHost, RunningDaemon
from support.metadata import Simulator, beside
from support.ranks import Rank, rank
from support.slurm import Slurm, missing_parts
from support.slurm_hosts import SlurmHost
from support.slurm_trainings import Training

SOURCE = SOURCES[-1]
"""Asked by a hanging GET: the daemon knows within milliseconds."""
SIGNAL = "USR1"
"""Declared by the ranks, so that it differs from the SIGTERM that Slurm sends."""
UNDECIDABLE_MOST = 0.05
ORPHANS_END = 0.5  # seconds after the kill in which a command that the daemon had started is over
OUTCOME_WITHIN, SIGNAL_WITHIN = 45.0, 5.0  # seconds
UNKNOWN_FOR = 40  # times that it is asked for
ROUNDS_OF_A_JOB = 20


class Job(Protocol):
    """`signals`: how many each of its ranks got so far; `marked`: a mark stands at it. `begins`: a round does; `started`: a daemon."""

    host: FakeHost

    def signals(self) -> list[int]: ...
    def marked(self) -> bool: ...
    def begins(self) -> None: ...
    def started(self) -> None: ...


class SlurmJob:
    def __init__(self, slurm: Slurm) -> None:
        self._slurm = slurm
        self._training = Training(slurm, answers=False, declares=SIGNAL)
        self._node = min(self._training.nodes())
        folder = slurm.folder / "hosts" / self._node
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.host: FakeHost = SlurmHost(folder, slurm, self._node)

    def signals(self) -> list[int]:
        return [self._training.signals(number).count(f"SIG{SIGNAL}") for number in range(2)]

    def marked(self) -> bool:
        return "gpuwarden" in self._slurm.job(self._training.job).get("AdminComment", "")

    def begins(self) -> None:
        self._slurm.scontrol("update", f"JobId={self._training.job}", "AdminComment=")
        if "DRAIN" in self._slurm.state(self._node):
            self._slurm.scontrol("update", f"NodeName={self._node}", "State=RESUME")

    def started(self) -> None:
        pass


class LocalJob:
    def __init__(self, folder: Path, trainer: Rank) -> None:
        self.host = FakeHost(folder, gpus=1)
        self.host.seclude()
        self.host.admit(trainer.pid)
        self._pid, self._got = trainer.pid, 0
        assert trainer.process.stdout is not None
        self._pipe = trainer.process.stdout.fileno()
        os.set_blocking(self._pipe, False)

    def signals(self) -> list[int]:
        with contextlib.suppress(BlockingIOError):
            self._got += os.read(self._pipe, 65536).count(SIGNAL.encode())
        return [self._got]

    def marked(self) -> bool:
        """There is no mark that could be missing."""
        return True

    def begins(self) -> None:
        pass

    def started(self) -> None:
        self.host.fake.process(0, self._pid, 1 << 30)


# --- a round


@dataclass(frozen=True)
class Round:
    """`left`: nothing, sending, or an outcome, as the ledger says of the job. `got`: signals of each rank. `result`: what the second daemon
    says of the job, empty if it says nothing. `window`: seconds from when it was written that it is being sent to its outcome, in the
    ledger of the daemon that is killed after that.
    """

    left: str
    window: float | None
    marked: bool
    got: tuple[int, ...]
    result: str
    local_only: bool

    @property
    def kind(self) -> str:
        prefix = "undecidable" if self.left == "sending" and self.marked and self.result == "unknown" else "decidable"
        if max(self.got) > 1:
            return f"{prefix}, signalled twice"
        if self.local_only and max(self.got) == 1:
            return f"{prefix}, signalled on this host only"
        return f"{prefix}, signalled" if min(self.got) == 1 else f"{prefix}, never signalled"


def a_round(job: Job, service: Simulator, asked: Asked, delay: float) -> Round:
    service.set_value_from_thread(SOURCE.key, SOURCE.goes_on)
    shutil.rmtree(job.host.state_dir, ignore_errors=True)
    job.begins()
    with running(job) as daemon:
        daemon.wait_status("healthy")
        asked.waits = False
        daemon.wait(lambda: asked.waits, "it to wait for an answer")
        before = job.signals()
        service.set_value_from_thread(SOURCE.key, SOURCE.ends())
        time.sleep(delay)
        daemon.process.kill()
    time.sleep(ORPHANS_END)
    (left, window), marked = what_is_left(job.host.state_dir / LEDGER), job.marked()
    with running(job) as daemon:
        result, local_only = outcome(daemon)
        if result == "sent" and not local_only:
            until(lambda: min(job.signals()) > max(before), SIGNAL_WITHIN)
        passes = daemon.heartbeat()["sequence"]
        daemon.wait(lambda: daemon.heartbeat()["sequence"] >= passes + 5, "some passes")
    got = tuple(after - was for after, was in zip(job.signals(), before, strict=True))
    return Round(left=left, window=window, marked=marked, got=got, result=result, local_only=local_only)


@contextlib.contextmanager
def running(job: Job) -> Iterator[RunningDaemon]:
    with job.host.daemon(more={"GPUWARDEN_MODE": "enforce"}) as daemon:
        job.started()
        yield daemon


def what_is_left(ledger: Path) -> tuple[str, float | None]:
    """Read from a copy into which its log was moved: nobody has it open."""
    with tempfile.TemporaryDirectory(prefix="gw-") as folder:
        for file in ledger.parent.glob(f"{ledger.name}*"):
            shutil.copy(file, folder)
        copy = Path(folder) / ledger.name
        with contextlib.closing(sqlite3.connect(copy)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with read_only(copy) as reader:
            events = reader.memory().events
    began = [e.at.boottime for e in events if e.kind == EventKind.SIGNALLING and e.data.get("processes")]
    ended = [e.at.boottime for e in events if e.kind == EventKind.SIGNALLED]
    if not ended:
        return "sending" if began else "nothing", None
    return "outcome", ended[0] - began[0] if began else None


def outcome(daemon: RunningDaemon) -> tuple[str, bool]:
    """Once a process was signalled, or the result is recorded as unknown; and whether it was on this host only."""
    results: list[str] = []
    local_only: list[bool] = [False]

    def known() -> bool:
        """Return True once the result is final. Unknown counts only if it lasts, since the signal may be under way."""
        jobs = [job for departure in daemon.status()["jobs"]["departures"] for job in departure["jobs"]]
        results.append(next((job["result"] for job in jobs), ""))
        local_only.append(any(job["local_only"] for job in jobs))
        return results[-1] in ("sent", "watched") or results[-UNKNOWN_FOR:] == ["unknown"] * UNKNOWN_FOR

    until(known, OUTCOME_WITHIN)
    return results[-1], local_only[-1]


def until(condition: Callable[[], bool], within: float) -> None:
    end = time.monotonic() + within
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)


# --- all of them


@contextlib.contextmanager
def local_job() -> Iterator[Job]:
    with (
        tempfile.TemporaryDirectory(prefix="gw-", ignore_cleanup_errors=True) as folder,
        rank(SIGNAL, env={**os.environ, "GPUWARDEN_SIGNAL": SIGNAL}) as trainer,
    ):
        yield LocalJob(Path(folder), trainer)


def rounds_of(job: Job, delays: list[float]) -> Iterator[Round]:
    cloud = SOURCE.cloud()
    asked = Asked(cloud, SOURCE)
    with beside(cloud) as service:
        job.host.config.write_text(
            f'{job.host.config.read_text()}[termination]\nsources = ["{SOURCE.name}"]\n[termination.{SOURCE.name}]\n'
            f'endpoint = "{service.endpoint}"\n[jobs]\nrequeue = false\n'
        )
        for number, delay in enumerate(delays):
            yield (finished_round := a_round(job, service, asked, delay))
            print(
                f"{number:>4} {delay:.3f} s  {finished_round.left:<8} {finished_round.got} {finished_round.result:<8} {finished_round.kind}",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--most", type=float, default=0.4, help="seconds from the announcement to the latest kill")
    parser.add_argument("--without-slurm", action="store_true")
    options = parser.parse_args()
    if not options.without_slurm:
        if missing_parts():
            raise SystemExit(f"not tried: {missing_parts()}; --without-slurm needs none of it")
        if not apart(network=False):
            return 1
    delays = [options.most * (number + random.random()) / options.rounds for number in range(options.rounds)]
    random.shuffle(delays)
    rounds: list[Round] = []
    load = os.getloadavg()[0]
    with contextlib.suppress(KeyboardInterrupt):  # what was found so far is reported
        rounds.extend(all_rounds(delays, slurm=not options.without_slurm))
    return report(rounds, load)


def all_rounds(delays: list[float], *, slurm: bool) -> Iterator[Round]:
    if not slurm:
        with local_job() as job:
            yield from rounds_of(job, delays)
        return
    with cluster() as rig:
        for first in range(0, len(delays), ROUNDS_OF_A_JOB):
            rig.clear()
            yield from rounds_of(SlurmJob(rig), delays[first : first + ROUNDS_OF_A_JOB])


def report(rounds: list[Round], load: float) -> int:
    kinds = Counter(run.kind for run in rounds)
    for kind, count in sorted(kinds.items()):
        print(f"{kind:<40} {count}")
    undecidable = sum(count for kind, count in kinds.items() if kind.startswith("undecidable"))
    lost, twice = kinds["decidable, never signalled"], sum(max(run.got) > 1 for run in rounds)
    windows = sorted(run.window for run in rounds if run.window is not None)
    if windows:
        median, most = windows[len(windows) // 2], windows[-1]
        print(
            f"from the record that it is being sent to its outcome: {median * 1e3:.0f} ms, {most * 1e3:.0f} ms at most"
        )
    print(
        f"{len(rounds)} daemons killed: {lost} decidable jobs never signalled, {twice} signalled twice, {undecidable} undecidable "
        f"({undecidable / len(rounds):.1%}); load {load:.1f} before, {os.getloadavg()[0]:.1f} after"
    )
    return int(bool(lost or twice or undecidable > UNDECIDABLE_MOST * len(rounds)))


if __name__ == "__main__":
    sys.exit(main())
