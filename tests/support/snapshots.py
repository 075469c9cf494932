"""Snapshots as the daemon publishes them, without a host behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from gpuwarden.health.model import Advice, Finding, GpuVerdict, Health, Key, Latch, Severity, Subject, Verdict, gpu
from gpuwarden.publish.snapshot import CollectorStatus, Service, Snapshot
from gpuwarden_collectors.base import PassOutcome, WorkerReport
from gpuwarden_collectors.facts import GpuFacts, NvmlFacts, Stamp
from gpuwarden_collectors.gpu_readings import GpuReadings

BOOTED = 1_800_000_000.0
UPTIME = 1000.0
FRESH_FOR = 15.0

NOT_ON_H100 = ("retired_pages_", "nvlink5_")
"""Readings of older GPUs and of a newer NVLink."""


def at(uptime: float) -> Stamp:
    return Stamp(uptime, BOOTED + uptime)


def slot(index: int) -> str:
    return f"0000:{0x4E + index:02x}:00.0"


def h100_readings() -> GpuReadings:
    """Every reading that an H100 can give, each with another number."""
    names = [field.name for field in fields(GpuReadings) if not field.name.startswith(NOT_ON_H100)]
    numbers = {name: number for number, name in enumerate(names, start=1)}
    return replace(GpuReadings(**numbers), memory_total_bytes=80 * 2**30, memory_used_bytes=20 * 2**30)


def gpu_facts(index: int, readings: GpuReadings | None = None) -> GpuFacts:
    return GpuFacts(
        slot=slot(index), index=index, uuid=f"GPU-{index:04d}", name="NVIDIA H100 80GB HBM3", serial=f"165{index}",
        minor=index, readings=readings or h100_readings(),
    )  # fmt: skip


def gpu_verdict(index: int, health: Health = Health.HEALTHY) -> GpuVerdict:
    return GpuVerdict(
        slot=slot(index), health=health, index=index, uuid=f"GPU-{index:04d}", name="NVIDIA H100 80GB HBM3",
        serial=f"165{index}",
    )  # fmt: skip


def finding(
    code: str, subject: Subject, severity: Severity = Severity.FAILURE, *, detail: str = "", latch: Latch = Latch.NONE
) -> Finding:
    return Finding(
        key=Key(code, subject, detail), severity=severity, title=f"the title of {code}", advice=Advice.OBSERVE,
        evidence={"count": 1, "text": "what was seen"}, first_seen=at(UPTIME - 60), last_seen=at(UPTIME), latch=latch,
    )  # fmt: skip


def collector(name: str = "nvml", outcome: PassOutcome = PassOutcome.OBSERVED) -> CollectorStatus:
    return CollectorStatus(
        name=name, outcome=outcome, duration=0.25, last_success=at(UPTIME - 1), timeouts=2,
        worker=WorkerReport(pid=4711, restarts=3),
    )  # fmt: skip


def service(*, simulated: bool = False) -> Service:
    return Service(
        node="gpu-node01", boot_id="a-boot", started=at(100.0), version="1.2.3", mode="observe", simulated=simulated,
        interval=5.0, fresh_for=FRESH_FOR,
    )  # fmt: skip


def snapshot(
    gpus: int = 8,
    *,
    health: Health = Health.HEALTHY,
    findings: Sequence[Finding] = (),
    readings: GpuReadings | None = None,
    simulated: bool = False,
) -> Snapshot:
    """A node as of `UPTIME`, observed in that moment."""
    now = at(UPTIME)
    return Snapshot(
        service=service(simulated=simulated),
        sequence=7,
        made=now,
        observed=now,
        verdict=Verdict(
            at=now, health=health, findings=tuple(findings), gpus=tuple(gpu_verdict(i) for i in range(gpus)),
            reasons=tuple(f.key.code for f in findings), expected=gpus, expected_from="learned", present=gpus,
        ),
        nvml=NvmlFacts(gpus=tuple(gpu_facts(i, readings) for i in range(gpus)), driver_version="550.163.01"),
        collectors=(collector(), collector("kernel_log"), collector("pci")),
        dropped={"log": 0, "ledger": 0, "files": 0},
        ready=True,
    )  # fmt: skip


def missing(shown: Snapshot, index: int) -> Snapshot:
    """The same node after NVML stopped listing one GPU."""
    gone = gpu(slot(index))
    verdict = replace(
        shown.verdict, health=Health.FAILURE, findings=(finding("gpu_missing", gone),), present=shown.verdict.present - 1,
        gpus=tuple(
            replace(g, index=None, health=Health.FAILURE, present=False) if g.slot == gone.slot else g
            for g in shown.verdict.gpus
        ),
    )  # fmt: skip
    nvml = shown.nvml and replace(shown.nvml, gpus=tuple(g for g in shown.nvml.gpus if g.slot != gone.slot))
    return replace(shown, verdict=verdict, nvml=nvml)
