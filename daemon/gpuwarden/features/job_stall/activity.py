"""Measures in one pass how busy a job's GPUs are here, and what they do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from gpuwarden.features.job_stall.past import Means
from gpuwarden.health.dcgm.profiling import profiled
from gpuwarden.health.gpu.jobs import GpuJob, seen_on_gpus
from gpuwarden.health.view import Sight
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.dcgm.facts import DcgmFacts, DcgmReadings
from gpuwarden_collectors.facts import GpuFacts
from gpuwarden_collectors.host_facts import InfinibandFacts
from gpuwarden_collectors.receivers.watched_facts import ContainersFacts
from gpuwarden_collectors.slurm.jobs_facts import JobProcess, JobsFacts

BUSY = 95
"""Utilisation in per cent from which a GPU is busy. A kernel that waits for another GPU keeps it at 100."""
GPUS_LEAST = 2
"""GPUs that a job must have here: a single one waits for no other on this host."""
CONTAINER = "container-"
"""Prefix of a container's id, used where Slurm's jobs have their number."""
_ANSWERS, _MOST = 50.0, 101.0
"""Per cent. Profiling fields of a busy GPU count only while they also show it busy: under a profiler they are blank, 0
or beyond 100 (NVIDIA/DCGM#303, #202, #152)."""
MOVES = 300.0
"""MiB/s over PCIe from which a GPU works in any case: a checkpoint is saved or loaded (scitix/sichek, GPUHang)."""
FULL, IDLE_POWER, NO_TRAFFIC = 99, 0.23, 1.0
"""Per cent of utilisation; share of the power limit, which an H100 has at 160 W (scitix/sichek, GPUHang); per cent of time that memory transfers data."""
PORTS_COUNT_FOR = 90.0
"""Seconds for which a reading of the ports is used: they are read every 10 s, or at the longest every 60."""
SLOW_CLOCK = 0.5
"""Share of its highest SM clock below which a busy GPU is slow rather than waiting: 650 of 3003 MHz (story B43)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHere:
    """A job that may be judged, and its place on this node."""

    uid: int | None = None
    """Its user."""
    pids: Mapping[str, tuple[int, ...]]
    """By slot, its processes that have the GPU open."""
    processes: tuple[JobProcess, ...] = ()
    """The same processes, with their facts."""
    whole_node: bool = False
    """It has all GPUs of the node, and no other Slurm job is here: all traffic of the ports is its own."""
    cpu_at: float | None = None
    """When their CPU times were read, seconds of CLOCK_BOOTTIME."""

    @property
    def cpu_times(self) -> Mapping[int, tuple[float, float]]:
        """Return the CPU time of each process, by PID: when it was read, and that time, in seconds."""
        if self.cpu_at is None:
            return {}
        return {
            process.pid: (self.cpu_at, process.cpu_seconds)
            for process in self.processes
            if process.cpu_seconds is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuWork:
    """The work on one GPU of a job, by one pass."""

    index: int
    """NVML's index."""
    utilization: int
    """Per cent."""
    power_w: float
    """Power, watts."""
    clock_mhz: int | None
    """SM clock."""
    slow: bool
    """Its SM clock is low, compared with its own highest."""
    tensor: float | None
    """Per cent of time that tensor cores were active; None where no source answers."""
    dram: float | None
    """Per cent of time that memory transferred data; None where no source answers."""
    sent_bytes: int | None
    """Bytes sent over NVLink since driver load."""
    moves: bool
    """It transfers much over PCIe."""
    spins: bool
    """Fully busy at the power of an idle GPU and without memory traffic: its kernels only wait."""


def jobs_here(pins: Collection[str], sight: Sight) -> Mapping[str, JobHere]:
    """Return the jobs that may be judged: batch jobs of Slurm by number, unless they opted out, and containers that
    opted in by `container-ID`.

    Each has at least two whole GPUs here for itself. `pins`: the slots of the GPUs that belong in this machine.
    """
    jobs, containers, gpus = sight.jobs, sight.fresh(ContainersFacts), sight.gpus
    if sight.nvml is None:
        return {}
    by_slot = seen_on_gpus(pins, sight)
    slurm_jobs = {} if jobs is None else _jobs_here(jobs, by_slot, gpus)
    return slurm_jobs if containers is None else {**slurm_jobs, **_containers_here(containers, by_slot, gpus)}


def container_name(container: str) -> str:
    return f"{CONTAINER}{container}"


def _jobs_here(
    facts: JobsFacts, by_slot: Mapping[str, tuple[GpuJob, ...]], gpus: Mapping[str, GpuFacts]
) -> dict[str, JobHere]:
    owners = {process.pid: process for process in facts.processes}
    by_number = {}
    for job in facts.jobs:
        if job.ended is not None or not job.watched:
            continue
        mine = {slot: use for slot, jobs in sorted(by_slot.items()) for use in jobs if use.job == job.id}
        alone = all(_alone(use, by_slot[slot], gpus.get(slot), owners) for slot, use in mine.items())
        if len(mine) >= GPUS_LEAST and alone:
            pids = {slot: use.pids for slot, use in mine.items()}
            processes = tuple(owners[pid] for use in mine.values() for pid in use.pids)
            others = any(other.ended is None and other.id != job.id for other in facts.jobs)
            by_number[str(job.id)] = JobHere(
                uid=job.uid,
                pids=pids,
                processes=processes,
                whole_node=pids.keys() == gpus.keys() and not others,
                cpu_at=facts.cpu_at,
            )
    return by_number


def _containers_here(
    facts: ContainersFacts, by_slot: Mapping[str, tuple[GpuJob, ...]], gpus: Mapping[str, GpuFacts]
) -> dict[str, JobHere]:
    """Return the containers that may be judged. The GPUs of a container are those that it uses."""
    by_name = {}
    jobs = any(by_slot.values())
    for container in facts.containers:
        own = {process.pid for process in container.processes}
        on = {slot: [process.pid for process in gpu.processes] for slot, gpu in sorted(gpus.items())}
        pids = {
            slot: tuple(pid for pid in users if pid in own) for slot, users in on.items() if own.intersection(users)
        }
        alone = all(len(pids[slot]) == len(on[slot]) and _whole(gpus[slot]) and not by_slot.get(slot) for slot in pids)
        if len(pids) >= GPUS_LEAST and alone:
            whole = pids.keys() == gpus.keys() and not jobs
            here = JobHere(pids=pids, processes=container.processes, whole_node=whole, cpu_at=facts.cpu_at)
            by_name[container_name(container.id)] = here
    return by_name


def _whole(gpu: GpuFacts) -> bool:
    return not gpu.mig and not gpu.readings.mig_mode


def _alone(job: GpuJob, here: tuple[GpuJob, ...], gpu: GpuFacts | None, owners: Mapping[int, JobProcess]) -> bool:
    """Return True if the job has the whole GPU: no MIG, no other job, no process of another user but root."""
    if gpu is None:
        return len(here) == 1
    processes = (owners[process.pid] for process in gpu.processes if process.pid in owners)
    others = any(
        process.job != job.job and (process.job is not None or process.uid not in (0, job.uid)) for process in processes
    )
    return len(here) == 1 and _whole(gpu) and not others


def work(job: JobHere, sight: Sight) -> tuple[GpuWork, ...] | None:
    """Return the work of each of the job's GPUs; None if a needed reading of one is missing."""
    by_slot = _by_slot(sight.dcgm)
    answers = [_work(facts, by_slot.get(facts.slot)) for facts in sight.answering if facts.slot in job.pids]
    gpu_work = tuple(use for use in answers if use is not None)
    return gpu_work if len(gpu_work) == len(job.pids) else None


def _by_slot(facts: DcgmFacts | None) -> Mapping[str, DcgmReadings]:
    return {} if facts is None else {gpu.slot: gpu.readings for gpu in facts.gpus if gpu.slot}


def _work(facts: GpuFacts, dcgm: DcgmReadings | None) -> GpuWork | None:
    r = facts.readings if dcgm is None else profiled(facts.readings, dcgm)
    if r.utilization_gpu is None or r.power_usage_mw is None:
        return None
    believed = r.gpm_graphics_active is None or r.gpm_graphics_active >= _ANSWERS
    shares = [
        share if believed and share is not None and share <= _MOST else None
        for share in (r.gpm_tensor_active, r.gpm_dram_active)
    ]
    sent = r.nvlink5_tx_bytes if r.nvlink_tx_kib is None else r.nvlink_tx_kib << 10
    highest, limit = r.clock_sm_max_mhz, r.power_enforced_limit_mw or r.power_limit_mw
    idle = bool(limit) and r.power_usage_mw <= IDLE_POWER * (limit or 0)
    return GpuWork(
        index=facts.index,
        utilization=r.utilization_gpu,
        power_w=r.power_usage_mw / 1000,
        clock_mhz=r.clock_sm_mhz,
        slow=bool(highest and r.clock_sm_mhz is not None and r.clock_sm_mhz < SLOW_CLOCK * highest),
        tensor=shares[0],
        dram=shares[1],
        sent_bytes=sent,
        moves=max(r.gpm_pcie_tx_mib or 0.0, r.gpm_pcie_rx_mib or 0.0) >= MOVES,
        spins=idle and r.utilization_gpu >= FULL and shares[1] is not None and shares[1] <= NO_TRAFFIC,
    )


def busy(job: JobHere, gpus: Iterable[GpuWork]) -> bool:
    """Return True if each GPU is busy and has a process of the job."""
    return all(job.pids.values()) and all(gpu.utilization >= BUSY for gpu in gpus)


def sent(gpus: Iterable[GpuWork]) -> int | None:
    """Return the bytes that all of them sent over NVLink since driver load."""
    counts = [gpu.sent_bytes for gpu in gpus]
    byte_counts = [count for count in counts if count is not None]
    return sum(byte_counts) if len(byte_counts) == len(counts) else None


class PortTraffic(NamedTuple):
    """Traffic that the InfiniBand, RoCE and EFA ports sent, by one pass of their collector."""

    at: float
    """Seconds of CLOCK_BOOTTIME."""
    sent: Mapping[str, int]
    """By port, bytes."""
    mib: float | None = None
    """MiB/s of all ports since the previous pass; None if it is not known for one of them."""


def port_traffic(before: PortTraffic | None, sight: Sight) -> PortTraffic | None:
    """Return the traffic of the ports by the newest pass; None if there is none, or it is old."""
    facts, at = sight.fresh(InfinibandFacts), sight.view.seen(InfinibandFacts).at
    if facts is None or at is None or sight.now.boottime - at.boottime > PORTS_COUNT_FOR:
        return None
    if before is not None and before.at == at.boottime:
        return before
    sent = {port.name: port.sent_bytes for port in facts.ports if port.sent_bytes is not None}
    return PortTraffic(at.boottime, sent, None if before is None else _ports_mib(before, sent, at.boottime))


def _ports_mib(before: PortTraffic, sent: Mapping[str, int], at: float) -> float | None:
    goes_on = sent.keys() == before.sent.keys() and all(sent[name] >= count for name, count in before.sent.items())
    if not sent or not goes_on or at <= before.at:
        return None
    return (sum(sent.values()) - sum(before.sent.values())) / (at - before.at) / (1 << 20)


def means(gpus: tuple[GpuWork, ...], nvlink_mib: float | None, ports: PortTraffic | None) -> Means:
    return Means(
        power_w=sum(gpu.power_w for gpu in gpus) / len(gpus),
        clock_mhz=_mean(gpu.clock_mhz for gpu in gpus),
        tensor_percent=_mean(gpu.tensor for gpu in gpus),
        dram_percent=_mean(gpu.dram for gpu in gpus),
        nvlink_mib=nvlink_mib,
        rdma_mib=None if ports is None or ports.mib is None else ports.mib / len(gpus),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    readings = list(values)
    numbers = [value for value in readings if value is not None]
    return sum(numbers) / len(numbers) if numbers and len(numbers) == len(readings) else None
