"""Which nodes of the cluster gpuwarden tests now, as Slurm shows it: jobs of idle nodes, and marks of nodes that return (policy/at_once.py)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuwarden.policy.at_once import marked_since
from gpuwarden.policy.model import Held
from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.parse import TEXTS_FORMAT, sinfo_texts

JOB_NAME = "gpuwarden-test"
"""Of every job that tests an idle node. Any user may give a job this name: those of `BELIEVED` and of `test.slurm_user` count."""
BELIEVED = ("root", "gpuwarden")
"""From whom the daemon takes results, beside its own user."""
_STATES = "PD,R,CF,S,CG"
_FORMAT = "%u|%T|%S|%N"
_PENDING = "PENDING"
_JOBS_MOST = 10_000


@dataclass(frozen=True, slots=True)
class FleetTests:
    """Those that test now, each node since when; and jobs that have not started, which may never."""

    held: tuple[Held, ...]
    pending: int


async def read_testers(commands: Commands, slurm_user: str, now: float) -> FleetTests:
    """Two requests, of which the one for the nodes has the size of the cluster. `now`: Unix time. Raises SlurmError."""
    undone = "cannot count the nodes that are tested"
    queue = await commands.ask(
        undone, "squeue", "--noheader", "--all", f"--name={JOB_NAME}", f"--states={_STATES}", f"--format={_FORMAT}"
    )
    nodes = await commands.ask(undone, "sinfo", "--local", "--all", "--noheader", "--Node", f"--Format={TEXTS_FORMAT}")
    users = {*BELIEVED, slurm_user}
    split = (line.strip().split("|") for line in queue.splitlines())
    rows = [row[1:] for row in split if len(row) == 4 and row[0] in users][:_JOBS_MOST]
    marks = dict.fromkeys(_marked(nodes, now))
    running = (Held(_time(since, now), node) for state, since, node in rows if state != _PENDING and node)
    return FleetTests((*running, *marks), sum(state == _PENDING for state, _, _ in rows))


def _marked(text: str, now: float) -> Iterator[Held]:
    for node in sinfo_texts(text):
        since = [one for field in (node.comment, node.extra) if (one := marked_since(field, now)) is not None]
        if since:
            yield Held(min(since), node.name)


def _time(text: str, now: float) -> float:
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 13 else now
