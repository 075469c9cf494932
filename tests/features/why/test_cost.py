"""What following jobs costs: the ledger of a node that runs 2,000 short jobs an hour, and the time of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuwarden.features.why.budget import MOST, PER_HOUR, Worth, taken
from gpuwarden.health.model import EventKind
from gpuwarden.ledger.store import Entry, Store
from gpuwarden_collectors.slurm.jobs_facts import Job, JobsFacts
from support.job_hosts import UID
from support.why_hosts import WhyHost

MONTH_HOURS = 30 * 24
LIMIT = 20 << 20
"""Bytes that the records of a month of short jobs may take."""


def no_fault(_: WhyHost, __: int) -> None:
    pass


def fails(host: WhyHost, number: int) -> None:
    host.step(replace(host.xid(number % 8, 31), pid=number))


@pytest.mark.slow
@pytest.mark.parametrize("death", [no_fault, fails])
def test_a_month_of_2000_short_jobs_an_hour_takes_less_than_20_mib(
    death: Callable[[WhyHost, int], None], tmp_path: Path
) -> None:
    """An hour of them is run, whose records are written to a ledger as the daemon writes them."""
    host = WhyHost(8)
    host.processes()
    host.free()
    for number in range(1, 2_001):
        began = host.uptime
        job = Job(id=number, uid=UID, user="ada", job_name=f"sweep-{number}", gpus=(number % 8,), started=began)
        host.job_facts = JobsFacts(jobs=(job,))
        host.step()
        death(host, number)
        host.uptime += 1.8
        host.job_facts = JobsFacts(jobs=(replace(job, ended=host.uptime - 0.1),))
    host.job_facts = JobsFacts()
    host.run(70)
    events = [
        event for event in host.ledger if event.kind in (EventKind.JOB_BEGUN, EventKind.JOB_USED, EventKind.JOB_ENDED)
    ]
    store = Store.open(tmp_path / "ledger.db", now=0.0)
    empty = _size(tmp_path)
    store.append([Entry(events=tuple(events * 20))])
    store.close()
    hour = (_size(tmp_path) - empty) / 20
    assert len(events) <= MOST + PER_HOUR + 1
    assert (hour - hour * MOST / len(events)) * MONTH_HOURS < LIMIT, (
        "once the budget is spent, as from the second hour on"
    )
    assert host.shown().left_out == 2_000 - len([event for event in events if event.kind == EventKind.JOB_ENDED])


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def test_what_something_touched_finds_room_where_what_ended_well_finds_none() -> None:
    budget = None
    granted = 0
    for _ in range(1_000):
        budget, may = taken(budget, Worth.WELL, 0.0)
        granted += may
    assert granted == MOST - Worth.WELL.value
    budget, may = taken(budget, Worth.FAILED, 0.0)
    assert may
    for _ in range(1_000):
        budget, _ = taken(budget, Worth.FAILED, 0.0)
    assert taken(budget, Worth.TOUCHED, 0.0)[1]
    assert taken(budget, Worth.WELL, 3_600.0)[1], "an hour later there is room again"
