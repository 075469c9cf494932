"""A host of the judge's with jobs, of which the records are read."""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.features.why.memory import record_of
from gpuwarden.features.why.model import SETTLES, Record
from gpuwarden.features.why.snapshot import Shown, shown
from gpuwarden.health.judge import Step
from gpuwarden.health.model import EventKind
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import GpuProcess
from gpuwarden_collectors.receivers.workloads_facts import Workload, WorkloadProcess, WorkloadsFacts
from support.hosts import slot
from support.job_hosts import UID, JobHost


class WhyHost(JobHost):
    """Its job began 100 s before. `workloads`: what the collector finds; None while it does not answer."""

    workloads: WorkloadsFacts | None = None

    def step(self, *events: HostEvent, **more: object) -> Step:
        if self.workloads is not None:
            seen = Observation(
                collector="workloads", outcome=PassOutcome.OBSERVED, started=self.now, finished=self.now, facts=self.workloads
            )  # fmt: skip
            self.view = self.view.after(seen)
        return super().step(*events, **more)

    def without_slurm(self) -> None:
        """Let no job of Slurm's be here, and no process."""
        self.job_facts = None
        self.free()

    def free(self) -> None:
        """Let no process be on a GPU."""
        for n in self.gpus:
            self.gpus[n] = replace(self.gpus[n], processes=())

    def runs(self, *workloads: Workload) -> None:
        """Let these run, with their processes on their GPUs."""
        self.workloads = WorkloadsFacts(workloads=workloads)
        self.free()
        for n, facts in self.gpus.items():
            pids = [process.pid for work in workloads for process in work.processes if facts.slot in process.slots]
            self.gpus[n] = replace(facts, processes=tuple(GpuProcess(pid=pid) for pid in pids))

    def shown(self) -> Shown:
        return shown(self.state, self.now)

    @property
    def records(self) -> list[Record]:
        """All records in its ledger."""
        job_records = [record_of(event) for event in self.ledger if event.kind == EventKind.JOB_ENDED]
        return [record for record in job_records if record is not None]

    def count(self, kind: EventKind) -> int:
        return sum(event.kind == kind for event in self.ledger)

    def ends(self) -> None:
        """Let the epilog report the end of the job, whose processes are gone."""
        self.job(ended=self.uptime)
        self.processes()
        self.free()

    def settles(self) -> Record:
        self.run(SETTLES + 5)
        return self.records[-1]


def workload(host: WhyHost, name: str = "container/0123456789ab", pid: int = 300, **more: object) -> Workload:
    """Return a container of one process on the first GPU, unless it is to be otherwise."""
    process = WorkloadProcess(pid=pid, uid=UID, slots=(slot(0),))
    made = Workload(name=name, uid=UID, started=host.uptime, slots=(slot(0),), processes=(process,), group="/x")
    return replace(made, **more)  # type: ignore[arg-type]
