"""Any story of jobs, faults, restarts and boots: state is a replay of the ledger, each job has one record at most, and none accuses wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuwarden.features.why.memory import memory_of
from gpuwarden.features.why.model import SETTLES, Cause
from gpuwarden.health.model import EventKind
from gpuwarden.health.xid.catalogue import XidClass, xid_row
from gpuwarden_collectors.event_facts import GpuResetEvent
from gpuwarden_collectors.facts import GpuProcess
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from support.hosts import slot
from support.job_hosts import UID
from support.whole_node import durable
from support.why_hosts import WhyHost

GPUS = 3
XIDS = (13, 31, 43, 45, 48, 63, 74, 79, 94, 95, 119)


class Stories(WhyHost):
    """A host whose jobs come and go. `hit`: the GPUs that had an Xid that programs do not bring on themselves."""

    def __init__(self) -> None:
        super().__init__(GPUS)
        self.jobs: dict[int, Job] = {}
        self.hit: set[str] = set()
        self.shows()

    def shows(self) -> None:
        """Let the collectors find the jobs, with a process of each on each of its GPUs."""
        running = {number: job for number, job in self.jobs.items() if job.ended is None}
        self.job_facts = JobsFacts(
            jobs=tuple(self.jobs.values()),
            processes=tuple(JobProcess(pid=1_000 + number, uid=UID, job=number) for number in running),
        )
        for n in self.gpus:
            pids = [1_000 + number for number, job in running.items() if n in job.gpus]
            self.gpus[n] = replace(self.gpus[n], processes=tuple(GpuProcess(pid=pid) for pid in pids))

    def begins(self, n: int) -> None:
        number = n % 5 + 1
        if number not in self.jobs or self.jobs[number].ended is not None:
            self.jobs[number] = Job(id=number, uid=UID, gpus=tuple({n % GPUS, n % 2}), started=self.uptime)
        self.shows()
        self.run(5)

    def finishes(self, n: int) -> None:
        number = n % 5 + 1
        if number in self.jobs and self.jobs[number].ended is None:
            state = ("", "COMPLETED", "FAILED", "TIMEOUT", "CANCELLED")[n % 5]
            self.jobs[number] = replace(self.jobs[number], ended=self.uptime, state=state)
        self.shows()
        self.run(5)

    def vanishes(self, n: int) -> None:
        self.jobs.pop(n % 5 + 1, None)
        self.shows()
        self.run(5)

    def has_xid(self, n: int) -> None:
        number, gpu = XIDS[n % len(XIDS)], n % GPUS
        if xid_row(number).klass is not XidClass.RECORD:
            self.hit.add(slot(gpu))
        pid = None if n % 4 == 0 else 1_000 + n % 7
        self.step(replace(self.xid(gpu, number), pid=pid))
        self.run(5)

    def boots(self, _: int) -> None:
        self.jobs = {}
        self.reboot()
        self.shows()
        self.run(5)


ACTIONS: dict[str, Callable[[Stories, int], object]] = {
    "begin": Stories.begins,
    "end": Stories.finishes,
    "vanish": Stories.vanishes,
    "xid": Stories.has_xid,
    "reset": lambda host, n: host.step(GpuResetEvent(at=host.now, slot=slot(n % GPUS), ok=True)),
    "wait": lambda host, n: host.run(5.0 * n),
    "restart": lambda host, n: host.checkpointed() if n % 2 else host.restart_daemon(),
    "blind": lambda host, n: setattr(host, "job_facts", None),
    "boot": Stories.boots,
}
scripts = st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.integers(0, 40)), max_size=14)


@settings(deadline=None, max_examples=40)
@given(script=scripts)
@example(script=[("begin", 0), ("xid", 36), ("boot", 0)])  # an Xid 45 that nothing explains, which is raised at once
def test_state_is_a_replay_and_no_record_accuses_what_was_well(script: list[tuple[str, int]]) -> None:
    host = Stories()
    host.step()
    for action, number in script:
        ACTIONS[action](host, number)
    host.shows()
    host.run(2 * SETTLES + 40)
    live = durable(host.state)
    cut = Stories()
    cut.ledger, cut.boot_id = list(host.ledger), host.boot_id
    cut.restart_daemon()
    assert durable(cut.state) == live
    cut.uptime, cut.booted = host.uptime, host.booted
    cut.checkpointed()
    assert memory_of(cut.state) == memory_of(host.state)
    epochs = memory_of(host.state).epochs
    assert {int(epoch.id) for epoch in epochs.values()} <= {
        number for number, job in host.jobs.items() if job.ended is None
    }
    begun = [(event.key, event.at.wall) for event in host.ledger if event.kind == EventKind.JOB_BEGUN]
    records = [(record.epoch.name, record.epoch.began.wall) for record in host.records]
    assert len(set(records)) == len(records)
    assert len(begun) >= len(epochs)
    for record in host.records:
        if record.answer.cause is Cause.HARDWARE:
            assert record.answer.slot in host.hit
            assert record.answer.slot in record.epoch.slots
