"""Stories about jobs: what stalls, and what only resembles it. `job_stalled` is in shadow, so that the node stays healthy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from gpuwarden.health.model import Health
from gpuwarden_collectors.facts import GpuProcess, MigInstance
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess
from stories.story import Story
from support.job_hosts import HANGS, TRAINS, WITHOUT_GPM, JobHost

LEARNS, IN_TIME = 25.0, 5.0
"""Minutes: of work before, and from the fall to the finding."""


def job(gpus: int = 4, **values: Any) -> JobHost:
    """A job that has worked for a while. The check is as it is by default."""
    host = JobHost(gpus)
    host.rules = replace(host.rules, checks={})
    host.minutes(LEARNS, **values)
    return host


def wedged() -> JobHost:
    """Return one node of 128, each with four GB200: the averages over all 512 GPUs, before and after. The source does
    not name the power after the fall.
    """
    host = job(power_usage_mw=984_000, utilization_gpu=99, gpm_tensor_active=32.4, gpm_dram_active=24.1)
    host.minutes(IN_TIME, **{**HANGS, "power_usage_mw": 330_000})
    return host


def waits_for_ever(*, minutes: float = 40, **values: Any) -> JobHost:
    """Return a job that hangs at 118 W of 700 after some work: NVIDIA/NeMo#9291 has 100, NVIDIA/nccl#968 70."""
    host = job()
    host.minutes(minutes, **{**HANGS, **values})
    return host


BLANK: dict[str, Any] = {"gpm_graphics_active": 0.0, "gpm_tensor_active": 0.0, "gpm_dram_active": 0.0}


def goes_on_in_time() -> JobHost:
    host = waits_for_ever(minutes=25)
    host.minutes(20, **TRAINS)
    return host


def server_between_requests() -> JobHost:
    """The ranks behind the first wait in a collective; the first waits for a request, on its CPU."""
    host = job()
    host.all(**HANGS)
    host.change(0, utilization_gpu=0)
    host.minutes(90)
    return host


def without_telemetry() -> JobHost:
    """Utilisation does not answer while it hangs (marin-community/marin#8870): it is not known whether the GPUs are busy."""
    host = job()
    host.minutes(15, **{**HANGS, "utilization_gpu": None})
    return host


def slow_pair() -> JobHost:
    """The fabric gives 25 GB/s instead of 39 (as in NVIDIA/nccl#325): all work is done, in more time."""
    host = job(gpm_tensor_active=40.0)
    host.minutes(120, every=15, power_usage_mw=470_000, gpm_tensor_active=26.0, gpm_dram_active=20.0)
    return host


def guest() -> JobHost:
    """Processes of somebody who has no job there; an iteration takes three times as long, and more (as in cBio/cbio-cluster#342)."""
    host = job()
    assert host.job_facts is not None
    host.processes(*host.job_facts.processes, *(JobProcess(pid=900 + n, uid=2002) for n in host.gpus))
    for n, facts in host.gpus.items():
        host.gpus[n] = replace(facts, processes=(*facts.processes, GpuProcess(pid=900 + n)))
    host.minutes(30, utilization_gpu=100, power_usage_mw=220_000, gpm_tensor_active=1.5, gpm_dram_active=2.0)
    return host


def profiled() -> JobHost:
    """Utilisation 100, profiling fields 0, then blank."""
    host = job(utilization_gpu=100)
    host.minutes(30, **dict.fromkeys(WITHOUT_GPM, 0.0), power_usage_mw=310_000)
    host.minutes(30, **WITHOUT_GPM)
    return host


def low_clock() -> JobHost:
    """Now and then 15 to 18 W at 650 of 3003 MHz, for less time than it takes to be called slow."""
    host = job(2, power_usage_mw=60_000, clock_sm_mhz=2400, clock_sm_max_mhz=3003)
    host.minutes(6, **{**HANGS, "utilization_gpu": 96, "power_usage_mw": 16_000, "clock_sm_mhz": 650})
    return host


def power_cap() -> JobHost:
    """Set to 400 of 700 W in the middle of the job."""
    host = job()
    host.minutes(
        15, clock_event_reasons=0x4, power_usage_mw=395_000, power_enforced_limit_mw=400_000, clock_sm_mhz=1300,
        gpm_tensor_active=30.0,
    )  # fmt: skip
    return host


def night(*, busy: int) -> JobHost:
    """A server: by day 560 W, at night 250 of 700."""
    host = job(power_usage_mw=560_000, gpm_tensor_active=20.0, gpm_dram_active=60.0)
    host.minutes(
        240, every=15, utilization_gpu=busy, power_usage_mw=250_000, gpm_tensor_active=1.0, gpm_dram_active=22.0
    )
    return host


def night_over_rdma() -> JobHost:
    """The same over several nodes, of GPUs without NVLink and profiling fields: its traffic falls with its load."""
    host = JobHost()
    host.rules = replace(host.rules, checks={})
    host.rdma_mib = 1600.0
    host.minutes(LEARNS, power_usage_mw=560_000, **WITHOUT_GPM)
    host.rdma_mib = 90.0
    host.minutes(240, every=15, power_usage_mw=250_000)
    return host


def saving_over_rdma() -> JobHost:
    """The other ranks of the node wait for the one that writes, and their GPUs spin, its own too."""
    host = JobHost()
    host.rules = replace(host.rules, checks={})
    host.rdma_mib = 3200.0
    host.minutes(LEARNS, **WITHOUT_GPM)
    host.rdma_mib = 1900.0
    host.minutes(12, **{**HANGS, **WITHOUT_GPM})
    return host


def inefficient() -> JobHost:
    host = JobHost()
    host.rules = replace(host.rules, checks={})
    host.minutes(120, every=15, **HANGS)
    return host


def short() -> JobHost:
    host = JobHost()
    host.rules = replace(host.rules, checks={})
    host.minutes(8)
    host.minutes(30, **HANGS)
    return host


def saving_here() -> JobHost:
    host = job()
    for n in host.gpus:
        host.change(n, **HANGS)
    host.change(0, utilization_gpu=0, power_usage_mw=92_000)
    host.run(12 * 60)
    return host


def evaluating() -> JobHost:
    host = job()
    host.minutes(20, power_usage_mw=390_000, gpm_tensor_active=22.0, gpm_dram_active=18.0)
    host.minutes(20, power_usage_mw=260_000, gpm_tensor_active=1.2, gpm_dram_active=45.0)
    return host


def divided() -> JobHost:
    host = job()
    for n, facts in host.gpus.items():
        instances = tuple(MigInstance(gpu_instance=g, compute_instance=0, profile="1g.10gb") for g in range(7))
        host.gpus[n] = replace(facts, mig=instances, links=())
        host.change(n, mig_mode=1, utilization_gpu=None)
    host.minutes(30, power_usage_mw=118_000)
    return host


def ghost() -> JobHost:
    """The counter of utilisation stays at 100; nobody is there."""
    host = job()
    for n, facts in host.gpus.items():
        host.gpus[n] = replace(facts, processes=())
    host.processes()
    host.minutes(30, **HANGS)
    return host


def shared() -> JobHost:
    host = job()
    assert host.job_facts is not None
    host.job_facts = replace(
        host.job_facts, jobs=(*host.job_facts.jobs, Job(id=4712, uid=1002, gpus=(3,), started=host.uptime))
    )
    host.minutes(30, **HANGS)
    return host


OWN = "the rule's own counter-example, with figures of ours"

STORIES: tuple[Story, ...] = (
    Story(
        id="D01", source="marin-community/marin#7344", name="a collective that ends nowhere, five minutes after it", made=wedged,
        expects=("warning job_stalled",),
    ),
    Story(
        id="D01", source="NVIDIA/nccl#968, NVIDIA/NeMo#9291", name="a job that holds the node and waits for ever", made=waits_for_ever,
        expects=("warning job_hung", "warning job_stalled"), ends=Health.WARNING,
    ),
    Story(id="D01", source="NVIDIA/nccl#968", name="the same, that goes on after 25 minutes", made=goes_on_in_time, expects=("warning job_stalled",)),
    Story(id="A43", source="NVIDIA/DCGM#303, #202", name="a job at idle power whose profiling fields went blank", made=partial(waits_for_ever, **BLANK)),
    Story(id="B43", source="Blackwellboy/model-serving-minefield#55", name="fully busy at idle power with a low clock", made=partial(waits_for_ever, clock_sm_mhz=650)),
    Story(id="B43", source="Blackwellboy/model-serving-minefield#55", name="a low clock of a busy job is no stall", made=low_clock),
    Story(id="A43", source="NVIDIA/DCGM#303, #202", name="a profiler in a job", made=profiled),
    Story(id="A31", source="Azure/azurehpc#595", name="a job at its power limit", made=power_cap),
    *(
        Story(id="D01", source=OWN, name=f"no stall: {name}", made=made)
        for name, made in (
            ("a server at night, busy at 250 of 700 W", partial(night, busy=100)),
            ("a server at night, not busy", partial(night, busy=40)),
            ("a server whose first rank is idle", server_between_requests),
            ("a server at night, over RDMA alone", night_over_rdma),
            ("one rank saves over RDMA, all GPUs spin", saving_over_rdma),
            ("a job that was never efficient", inefficient),
            ("a job whose past is not known yet", short),
            ("one rank saves, here", saving_here),
            ("evaluation and generation between epochs", evaluating),
            ("GPUs divided by MIG", divided),
            ("utilisation without a process", ghost),
            ("a GPU shared by two jobs", shared),
            ("GPUs shared with processes of no job", guest),
            ("a slower fabric", slow_pair),
            ("a hang without telemetry", without_telemetry),
        )
    ),
)  # fmt: skip
