"""Reads from Slurm which nodes gpuwarden tests now: jobs on idle nodes, marks of returning nodes (at_once.py)."""

from __future__ import annotations

from gpuwarden.actuators.fleet_turn import read_marks
from gpuwarden.features.active_test.at_once import TEST
from gpuwarden.policy.fleet_marks import LASTS_MOST
from gpuwarden.policy.model import Held
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.client import Commands

JOB_NAME = "gpuwarden-test"
"""Name of every job that tests an idle node. Any user may use it: only `BELIEVED` and `test.slurm_user` count."""
BELIEVED = ("root", "gpuwarden")
"""Users from whom the daemon accepts results, besides its own user."""
_STATES = "PD,R,CF,S,CG"
_FORMAT = "%A|%u|%T|%S|%n|%N"
_PENDING = "PENDING"
_JOBS_MOST = 10_000


@dataclass(frozen=True, slots=True)
class TesterJob:
    """A job that tests an idle node: pending, running or completing."""

    number: str
    pending: bool
    started: str
    """Unix time of its start, if it has started."""
    wanted: str
    """The node that it is submitted for."""
    node: str
    """The node that it is allocated; empty: none yet."""


@dataclass(frozen=True, slots=True)
class FleetTests:
    """The nodes under test, each with its start; and the number of pending jobs, which may never start."""

    held: tuple[Held, ...]
    pending: int


async def read_tester_jobs(commands: Commands, slurm_user: str) -> list[TesterJob]:
    """Read the jobs that test nodes, of all nodes, `_JOBS_MOST` at most. One request. Raises SlurmError."""
    listed = ("squeue", "--noheader", "--all", f"--name={JOB_NAME}", f"--states={_STATES}", f"--format={_FORMAT}")
    queue = await commands.ask("cannot read the jobs that test nodes", *listed)
    users = {*BELIEVED, slurm_user}
    rows = [row for line in queue.splitlines() if len(row := line.strip().split("|")) == 6 and row[1] in users]
    return [
        TesterJob(number, state == _PENDING, started, wanted, node)
        for number, _, state, started, wanted, node in rows[:_JOBS_MOST]
    ]


async def read_testers(commands: Commands, slurm_user: str, now: float) -> FleetTests:
    """Read which nodes are under test. Two requests; the answer about nodes grows with the cluster. `now`: Unix time.
    Raises SlurmError.
    """
    jobs = await read_tester_jobs(commands, slurm_user)
    by_node = await read_marks(commands, TEST)
    counting = {node: [mark.since for mark in marks if mark.counts(now)] for node, marks in by_node.items()}
    marked = [Held(min(since), node) for node, since in counting.items() if since]
    begun = [Held(_time(job.started, now), job.node) for job in jobs if not job.pending and job.node]
    running = [held for held in begun if now - held.since <= LASTS_MOST]  # one may stay COMPLETING until a reboot
    return FleetTests((*running, *marked), sum(job.pending for job in jobs))


def _time(text: str, now: float) -> float:
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 13 else now
