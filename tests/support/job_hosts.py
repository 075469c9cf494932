"""A host of the judge's (see `hosts`) with a job of Slurm's on its GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuwarden.health.judge import Step
from gpuwarden.health.model import Evidence, Key, Subject
from gpuwarden.health.view import CheckRule
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.event_facts import HostEvent
from gpuwarden_collectors.facts import GpuProcess
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts
from gpuwarden_collectors.receivers.watched_facts import ContainersFacts
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from support.dcgm_hosts import DcgmHost

JOB, UID = 4711, 1001
STALLED = Key("job_stalled", Subject("job", part=str(JOB)))
TRAINS: dict[str, Any] = {
    "utilization_gpu": 98, "power_usage_mw": 640_000, "clock_sm_mhz": 1755, "clock_sm_max_mhz": 1980,
    "gpm_graphics_active": 99.0, "gpm_sm_active": 90.0, "gpm_tensor_active": 48.0, "gpm_dram_active": 30.0,
}  # fmt: skip
"""An H100 in a training."""
HANGS: dict[str, Any] = {
    "utilization_gpu": 100, "power_usage_mw": 118_000, "clock_sm_mhz": 1980, "gpm_graphics_active": 100.0, "gpm_sm_active": 14.0,
    "gpm_tensor_active": 0.0, "gpm_dram_active": 0.1,
}  # fmt: skip
"""The same, in a collective that does not end."""
WITHOUT_GPM: dict[str, Any] = dict.fromkeys(name for name in TRAINS if name.startswith("gpm_"))


class JobHost(DcgmHost):
    """A job on all GPUs, each with one process of it; the check has effect, which it has not by default. No DCGM."""

    def __init__(self, gpus: int = 4, *, uptime: float = 10_000.0, shadow: bool = False) -> None:
        super().__init__(gpus, uptime=uptime)
        self.outcome = None
        self.rules = replace(self.rules, checks={"job_stalled": CheckRule(shadow=shadow)})
        self.job_facts: JobsFacts | None = JobsFacts(
            jobs=(Job(id=JOB, uid=UID, gpus=tuple(range(gpus)), started=uptime - 100),),
            processes=tuple(
                JobProcess(pid=100 + n, uid=UID, job=JOB, known_from="cgroup", rank=n, cpu_seconds=0.0) for n in range(gpus)
            ),
            cpu_at=uptime,
        )  # fmt: skip
        for n in range(gpus):
            self.gpus[n] = replace(self.gpus[n], processes=(GpuProcess(pid=100 + n),))
        self.all(**TRAINS)
        self.cores: dict[int, float] = {}
        self.nvlink_mib = 0.0
        self.rdma_mib: float | None = None
        """MiB/s that both ports together send; None: nobody reads them."""
        self.sent_bytes = {"mlx5_0": 7 << 40, "mlx5_1": 5}
        self._ports_read: float | None = None
        self.containers: ContainersFacts | None = None

    def all(self, **values: Any) -> None:
        """Change these readings of every GPU."""
        for n in self.gpus:
            self.change(n, **values)

    def job(self, **changes: Any) -> None:
        assert self.job_facts is not None
        (job,) = self.job_facts.jobs
        self.job_facts = replace(self.job_facts, jobs=(replace(job, **changes),))

    def processes(self, *processes: JobProcess) -> None:
        assert self.job_facts is not None
        self.job_facts = replace(self.job_facts, processes=processes)

    def step(self, *events: HostEvent, **more: Any) -> Step:
        """Judge once. Each process uses its `cores` of CPU; each GPU sends `nvlink_mib` in a second, the ports `rdma_mib`."""
        if self.rdma_mib is not None and (self._ports_read is None or self.uptime - self._ports_read >= 10):
            self._read_ports()
        if self.nvlink_mib:
            self.all(nvlink_tx_kib=int((self.uptime - 5000) * self.nvlink_mib * 1024))
        if self.containers is not None:
            self.view = self.view.after(
                Observation(
                    collector="containers",
                    outcome=PassOutcome.OBSERVED,
                    started=self.now,
                    finished=self.now,
                    facts=self.containers,
                )
            )
        if self.job_facts is not None:
            since = self.job_facts.cpu_at or 0.0
            if self.cores and self.uptime - since >= 60:
                used = self.uptime - since
                self.processes(
                    *(
                        replace(p, cpu_seconds=(p.cpu_seconds or 0.0) + self.cores[p.pid] * used)
                        for p in self.job_facts.processes
                    )
                )
                self.job_facts = replace(self.job_facts, cpu_at=self.uptime)
            self.view = self.view.after(
                Observation(
                    collector="jobs",
                    outcome=PassOutcome.OBSERVED,
                    started=self.now,
                    finished=self.now,
                    facts=self.job_facts,
                )
            )
        return super().step(*events, **more)

    def _read_ports(self) -> None:
        seconds = 0.0 if self._ports_read is None else self.uptime - self._ports_read
        self.sent_bytes = {
            name: sent + int((self.rdma_mib or 0.0) * seconds * (1 << 20)) // 2
            for name, sent in self.sent_bytes.items()
        }
        ports = tuple(PortFacts(device=n, port=1, state="active", sent_bytes=b) for n, b in self.sent_bytes.items())
        self._ports_read = self.uptime
        self.view = self.view.after(
            Observation(
                collector="infiniband", outcome=PassOutcome.OBSERVED, started=self.now, finished=self.now,
                facts=InfinibandFacts(ports=ports),
            )
        )  # fmt: skip

    def minutes(self, count: float, *, every: float | None = None, **values: Any) -> None:
        """Run for that long with these readings on every GPU; a long time in larger steps."""
        self.all(**values)
        self.run(60 * count, every=every or (15.0 if count >= 10 else 5.0))

    @property
    def stalled(self) -> bool:
        return STALLED in [finding.key for finding in self.findings]

    @property
    def evidence(self) -> Evidence:
        (stall,) = (finding for finding in self.findings if finding.key == STALLED)
        return stall.evidence

    @property
    def raised(self) -> bool:
        """Return True if it was ever found."""
        return any(event.key == STALLED and event.kind == "raised" for event in self.ledger)
