"""Where there is room for some jobs, a user with many displaces his own, not those of others."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from gpuwarden.features.why.history import ended_of
from gpuwarden.features.why.memory import EPOCHS_MOST, RECORDS_MOST, memory_of
from gpuwarden.features.why.model import SETTLES
from gpuwarden.features.why.writing import SESSIONS_MOST
from gpuwarden.health.model import EventKind
from gpuwarden.ledger.store import Entry, Store
from gpuwarden_collectors.receivers.workloads_facts import Workload, WorkloadProcess
from support.hosts import slot
from support.jobs_ended import job_ended
from support.why_hosts import WhyHost, workload

OTHER = 1002


def session(host: WhyHost, number: int, uid: int) -> Workload:
    process = WorkloadProcess(pid=number, uid=uid, slots=(slot(0),))
    return workload(host, f"session/{number}", uid=uid, processes=(process,))


def test_a_user_with_many_sessions_leaves_room_for_others() -> None:
    host = WhyHost(2)
    host.without_slurm()
    many = [session(host, number, 1001) for number in range(1_000, 1_000 + EPOCHS_MOST)]
    host.runs(*many)
    host.run(1_000, every=20)
    assert host.count(EventKind.JOB_BEGUN) == SESSIONS_MOST
    host.runs(*many, session(host, 5_000, OTHER))
    host.run(700, every=20)
    assert "session/5000" in memory_of(host.state).epochs


def test_records_of_a_user_with_many_jobs_displace_his_own() -> None:
    host = WhyHost(2)
    host.without_slurm()
    first = session(host, 5_000, OTHER)
    host.runs(first)
    host.run(10)
    over = [replace(first, ended=host.uptime, processes=())]
    for number in range(1_000, 1_000 + RECORDS_MOST + 9):
        over = [*over, replace(session(host, number, 1001), ended=host.uptime, processes=())]
    host.runs(*over)
    host.run(SETTLES + 10)
    host.runs()
    host.run(30)
    shown = [record.epoch.name for record in host.shown().ended]
    assert len(shown) == RECORDS_MOST
    assert "session/5000" in shown
    assert "session/1000" not in shown


def test_of_a_job_that_was_requeued_a_thousand_times_the_newest_run_is_read(tmp_path: Path) -> None:
    runs = [job_ended("slurm/7", since=100_000.0 - run) for run in range(1_010)]
    store = Store.open(tmp_path / "ledger.db", now=time.time())
    store.append([Entry(events=tuple(runs))])
    store.close()
    assert ended_of(tmp_path / "ledger.db", ["slurm/7"])[-1].end.at == runs[-1].at
