"""A node on which everything is on and much is wrong: as many series as there ought to be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gpuwarden.base.process_usage import process_usage
from gpuwarden.features import FEATURES
from gpuwarden.health.conditions import CONDITIONS
from gpuwarden.health.gpu.pods import PodsOnGpus
from gpuwarden.health.host.port_errors import EXPORTED
from gpuwarden.health.lemons.memory import What
from gpuwarden.health.model import NODE, Finding, LemonDays, gpu
from gpuwarden.notify.delivery import Result
from gpuwarden.notify.notifications import DROPPED
from gpuwarden.policy.model import NodeState, Owner, Why
from gpuwarden.publish.metrics.table import FAILURE_XIDS, INFOS_MOST
from gpuwarden.publish.snapshot import (
    Clients,
    CollectorStatus,
    Enforced,
    JobLabels,
    NoticeSource,
    ReceiverState,
    Snapshot,
    XidCount,
)
from gpuwarden.trace.records import COLLECTORS
from gpuwarden_collectors.dcgm.facts import DcgmFacts, DcgmGpu, DcgmReadings
from gpuwarden_collectors.facts import MigInstance, NvmlFacts
from gpuwarden_collectors.gpu_readings import GpuReadings
from gpuwarden_collectors.host_facts import InfinibandFacts, PortFacts
from gpuwarden_collectors.kubelet.facts import PodContainer
from gpuwarden_collectors.slurm.jobs_facts import Job, JobsFacts
from support.snapshots import UPTIME, at, collector, finding, gpu_facts, h100_readings, slot, snapshot

XIDS_OF_A_GPU = (13, 31, 43, 45, 63, 94, 109, 154, int(FAILURE_XIDS[0]), int(FAILURE_XIDS[1]))
"""The events of each GPU."""


WORKERS = ("nvml", "dcgm")
ACTUATORS = ("slurm", "kubernetes", "load_balancer")
OUTCOMES = (*(result.value for result in Result), DROPPED)


def everything(gpus: int = 8, instances: int = 0) -> Snapshot:
    """`instances`: MIG instances of each GPU."""
    numbers = range(gpus)
    facts = tuple(replace(gpu_facts(n, _readings()), mig=tuple(map(_instance, range(instances)))) for n in numbers)
    shown = snapshot(gpus, findings=tuple(_findings(gpus)))
    lemons = tuple(LemonDays(what=kind, days=3, slot=slot(n)) for n in numbers for kind in What)
    return replace(
        shown,
        verdict=replace(shown.verdict, lemons=lemons),
        nvml=NvmlFacts(gpus=facts, driver_version="570.172.08"),
        dcgm=DcgmFacts(gpus=tuple(map(_of_dcgm, numbers)), watched_since=at(0.0)),
        infiniband=InfinibandFacts(ports=tuple(map(_port, range(PORTS)))),
        jobs=JobsFacts(jobs=tuple(Job(id=4711 + n, user="alice", gpus=(n,), started=5.0) for n in numbers)),
        pods=PodsOnGpus(containers={(slot(n), None): (_pod(n),) for n in numbers}, matched=gpus),
        collectors=tuple(map(_collector, (*COLLECTORS, "kernel_log"))),
        xids=tuple(
            XidCount(slot=slot(n), xid=x, count=1, last=at(UPTIME).wall) for n in numbers for x in XIDS_OF_A_GPU
        ),
        enforced=Enforced(
            actuators=ACTUATORS,
            excluded=tuple((name, "failure") for name in ACTUATORS),
            breaker="too many",
            node_states={
                name: NodeState(at=at(UPTIME), owner=Owner.OURS, why=Why.FAILURE, since=5.0) for name in ACTUATORS
            },
        ),
        receivers=tuple(
            ReceiverState(target=name, counts=dict.fromkeys(OUTCOMES, 1)) for name in ("pager", "chat", "tickets")
        ),
        notice_sources=tuple(NoticeSource(name=name, up=True) for name in ("aws", "shutdown")),
        process=process_usage(),
        feature_errors=dict.fromkeys(FEATURES, 0),
        clients=Clients(turned_away=1, refused={"login": 1}),
        hpc_jobs=JobLabels(jobs={str(n): ("4711",) for n in numbers}),
    )


def _pod(number: int) -> PodContainer:
    return PodContainer(namespace="team-a", pod=f"training-{number}", container="main")


PORTS = 12


def _port(number: int) -> PortFacts:
    """Return a port of an InfiniBand adapter, which has no counters of EFA."""
    counters = {name: 0 for name in EXPORTED if not name.startswith(OF_EFA)}
    return PortFacts(device=f"mlx5_{number}", port=1, state="active", rate_gbps=400.0, **counters)  # type: ignore[arg-type]


OF_EFA = ("no_completion_cmds", "cmds_err", "rx_drops", "unresponsive", "impaired")


def _collector(name: str) -> CollectorStatus:
    row = collector(name)
    return row if name in WORKERS else replace(row, worker=None)


def _readings() -> GpuReadings:
    """Return the readings of an H100 without memories whose errors it does not count."""
    readings = h100_readings()
    unknown = [n for n in GpuReadings.__dataclass_fields__ if n.startswith("ecc_") and n.endswith(_NOT_COUNTED)]
    return replace(readings, **dict.fromkeys(unknown))


_NOT_COUNTED = ("_l1", "_l2", "_register", "_texture")


def _instance(number: int) -> MigInstance:
    fields = dict.fromkeys(MigInstance.__dataclass_fields__, 5) | {
        "profile": "1g.10gb",
        "uuid": f"MIG-{number}",
        "memory_reserved_bytes": 0,
    }
    return MigInstance(**fields | {"gpu_instance": 7 + number, "compute_instance": 0})  # type: ignore[arg-type] # by name


def _of_dcgm(number: int) -> DcgmGpu:
    return DcgmGpu(id=number, slot=slot(number), readings=DcgmReadings(memory_unrepairable=0))


def _findings(gpus: int) -> Iterator[Finding]:
    """Yield more findings of GPU checks than are listed in text."""
    checks = [row.code for row in CONDITIONS.values() if row.scope == "gpu"]
    for n in range(INFOS_MOST + 10):
        yield finding(checks[n % len(checks)], gpu(slot(n % gpus)), detail=str(n))
    for n in range(16):
        yield finding(f"site_{n}", NODE)  # no check of gpuwarden has such a name: a series more for each
