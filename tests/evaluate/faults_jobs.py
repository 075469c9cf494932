"""What goes wrong with jobs themselves: the GPUs are well."""

from __future__ import annotations

from evaluate.clockwork import Process
from evaluate.node import Node
from gpuwarden_collectors.facts import GpuProcess
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts

WORKED_FOR = 24 * 60.0
"""Seconds: a restart somewhere in them leaves enough on one side to learn the past of."""


def job_stalls(node: Node, n: int) -> Process:
    """A training on all GPUs, and then a collective that does not end, for GPU `n` draws a little less than the others."""
    gpus = range(len(node.gpus))
    for g in gpus:
        node.put(g, processes=(GpuProcess(pid=8000 + g),))
        node.give(
            g, utilization_gpu=98, power_usage_mw=640_000, clock_sm_mhz=1755, clock_sm_max_mhz=1980, gpm_graphics_active=99,
            gpm_tensor_active=48, gpm_dram_active=30,
        )  # fmt: skip
    processes = tuple(JobProcess(pid=8000 + g, uid=1000, job=4711, known_from="cgroup", rank=g) for g in gpus)
    job = Job(id=4711, uid=1000, gpus=tuple(gpus), started=node.now.boottime)
    node.jobs = JobsFacts(jobs=(job,), processes=processes)
    yield WORKED_FOR
    for g in gpus:
        power = 71_000 if g == n else 118_000
        node.give(
            g, utilization_gpu=100, power_usage_mw=power, clock_sm_mhz=1980, gpm_tensor_active=0, gpm_dram_active=0
        )


def job_idles(node: Node, _: int) -> Process:
    """A job of Slurm's has all GPUs and no process on any of them."""
    gpus = range(len(node.gpus))
    for g in gpus:
        node.put(g, processes=())
        node.give(g, utilization_gpu=0, gpm_graphics_active=0)
    job = Job(id=4711, uid=1000, gpus=tuple(gpus), started=node.now.boottime)
    node.jobs = JobsFacts(jobs=(job,))
    yield 0.0
