"""Stories about the driver, DCGM, containers, virtual machines and what administrators do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from evaluate.kernel_text import happened
from gpuwarden.health.model import Health
from gpuwarden.health.view import Rules
from gpuwarden_collectors.base import Observation, PassOutcome
from gpuwarden_collectors.facts import GpuAnswer, MigInstance, NvmlFacts, NvmlProblem, Stamp
from gpuwarden_collectors.gpu_readings import GpuReadings
from stories.story import Story
from support.dcgm_hosts import CONNECTION_LOST, DcgmHost
from support.hosts import Host, slot

HOURS = 3600.0

# --- DCGM


def dcgm_starts_late(outcome: PassOutcome, error: str, *, minutes: float) -> DcgmHost:
    """A node that booted a minute ago, and whose DCGM is up so many minutes later."""
    host = DcgmHost(8, uptime=60.0)
    host.away(outcome, error)
    host.run(60 * minutes)
    host.back()
    host.run(600)
    return host


# --- readers that are slow


def misses_deadlines(*, gsp: bool = False) -> Host:
    """Let one pass of NVML in ten minutes run into its deadline. With `gsp` it hangs at last, and the kernel log has the reason."""
    host = Host(8)
    for _ in range(6):
        host.run(600, every=15)
        host.uptime += 10
        host.step(nvml=_no_answer(host, 1))
        host.uptime += 5
    host.run(60)
    if gsp:
        text = "119, pid=2024380, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
        happened(host, f"NVRM: Xid (PCI:{slot(4)[:-2]}): {text}")
        for missed in range(1, 5):
            host.uptime += 10
            host.step(nvml=_no_answer(host, missed))
    return host


def slow_now_and_then() -> Host:
    """Readings that take seconds while the driver is being initialised, in one pass of each minute, and for eight minutes of an hour."""
    host = Host(8)
    for number in range(2 * 720):
        host.read_seconds = 0.1
        if number < 5 or number % 12 == 0 or number % 720 > 720 - 96:
            host.read_seconds = 4.0
        host.later(5)
    host.read_seconds = 0.1
    host.run(60)
    return host


def slower_and_slower() -> Host:
    """Let readings take a second longer each hour."""
    host = Host(8)
    for hours in range(4):
        host.read_seconds = 0.1 + hours
        host.run(HOURS, every=15)
    return host


def _no_answer(host: Host, missed: int) -> Observation[NvmlFacts]:
    since = Stamp(host.uptime - 10.0 * missed, host.now.wall - 10.0 * missed)
    return host.nvml(
        PassOutcome.TIMED_OUT, pid=4711, ever_answered=True, missed=missed, timeouts=missed, silent_since=since
    )


# --- NVML that cannot be asked


MISFIT, UNKNOWN = "Driver/library version mismatch", "Failed to initialize NVML: Unknown Error"


def nvml_says(problem: NvmlProblem, code: int, text: str, *, contained: bool = False, reloaded: bool = False) -> Host:
    """Let NVML answer with this problem for two hours; with `reloaded` for eight minutes, until the new driver is loaded."""
    host = Host(8, rules=Rules(contained=contained))
    host.run(60)
    host.nvml_change = lambda facts: replace(facts, gpus=(), problem=problem, problem_code=code, problem_text=text)
    host.run(480 if reloaded else 2 * HOURS, every=15)
    if reloaded:
        host.nvml_change = lambda facts: facts
        host.run(60)
    return host


# --- GPUs of somebody else, or with few readings


def of_a_virtual_machine(*, later: bool) -> Host:
    """Bind one GPU to vfio-pci from the start, or hand it to a virtual machine `later` and take it back."""
    host = Host(8)
    away, bound = host.gpus.pop(3), host.devices[3]
    if later:
        host.gpus[3] = away
        host.run(300)
        del host.gpus[3]
        host.devices[3] = replace(bound, driver="")
        host.run(10)
    host.devices[3] = replace(bound, driver="vfio-pci")
    host.run(2 * HOURS, every=15)
    if later:
        host.gpus[3], host.devices[3] = away, bound
        host.run(300)
    return host


def few_readings() -> Host:
    """WSL: no utilisation, no ECC, no processes, no sysfs of the bus."""
    host = Host(1)
    host.gpus[0] = replace(host.gpus[0], readings=GpuReadings(temperature=50), serial="", links=())
    host.devices = {}
    host.run(2 * HOURS, every=15)
    return host


# --- what administrators do


def gpu_is_reset() -> DcgmHost:
    """Reset a GPU, which is away for 20 s; DCGM, which holds it too, was stopped for it."""
    host = DcgmHost(8)
    host.run(120)
    host.away(PassOutcome.FAILED, CONNECTION_LOST)
    host.run(10)
    gone = host.gpus.pop(2)
    host.run(20)
    host.gpus[2] = gone
    host.run(5)
    host.back()
    host.run(1 * HOURS, every=15)
    return host


def mig_changes() -> Host:
    """Instances come and go; a line of one of them is of the GPU that it is part of."""
    host = Host(2)
    host.run(60)
    for mode, count in ((1, 7), (1, 3), (0, 0)):
        gone = host.gpus.pop(1)
        host.run(15)
        made = tuple(MigInstance(gpu_instance=n, compute_instance=0, profile="1g.18gb") for n in range(count))
        links = tuple(replace(link, active=not mode) for link in gone.links)
        host.gpus[1] = replace(gone, mig=made, links=links, readings=replace(gone.readings, mig_mode=mode))
        host.run(600, every=15)
        if mode:
            bus = slot(1)[:-2]
            happened(host, f"NVRM: Xid (PCI:{bus} GPU-I:05 GPU-CI:00): 43, pid=4711, name=python3, Ch 00000008")
    host.run(600, every=15)
    return host


def error_of_long_ago() -> Host:
    """A double-bit error, a reboot that mended it, and a month of work."""
    host = Host(1)
    host.run(60)
    host.change(0, ecc_uncorrected_volatile=1)
    happened(host, f"NVRM: Xid (PCI:{slot(0)[:-2]}): 48, pid=4711, name=python3, DBE (double bit error)")
    host.run(60)
    host.reboot()
    host.change(0, ecc_uncorrected_volatile=0)
    host.run(600, every=15)
    host.days(30)
    host.run(600, every=15)
    return host


def answers_nothing_for_a_moment() -> Host:
    """Let a GPU go and return twice, as when a client that holds it refuses a reset, which is tried again."""
    host = Host(8)
    host.run(60)
    for _ in range(2):
        host.answer(4, GpuAnswer.LOST)
        host.run(15)
        host.answer(4, GpuAnswer.OK)
        host.run(300)
    return host


NOT_UP = "aws/containers-roadmap#2555, NVIDIA/NVSentinel#1423"
SLOW = "mej/nhc#161, Azure/azurehpc#714"
UPGRADED = "lyulyul/shine-cluster#30, pando85/homelab#4110, mozilla/translations#1167"
CONTAINER = "NVIDIA/nvidia-docker#1730, NVIDIA/nvidia-container-toolkit#1227"
GUEST = "henrygd/beszel#806, NVIDIA/gpu-operator#711"
ABSENT, FAILED = PassOutcome.ABSENT, PassOutcome.FAILED

STORIES: tuple[Story, ...] = (
    Story(
        id="A22", source=NOT_UP, name="DCGM's container is not there yet, eight minutes after boot",
        made=partial(dcgm_starts_late, ABSENT, "no nv-hostengine", minutes=8),
    ),
    Story(
        id="A22", source=NOT_UP, name="DCGM refuses connections until eight minutes after boot",
        made=partial(dcgm_starts_late, FAILED, CONNECTION_LOST, minutes=8),
    ),
    Story(
        id="A22", source=NOT_UP, name="DCGM refuses connections until half an hour after boot", expects=("warning dcgm_unresponsive",),
        made=partial(dcgm_starts_late, FAILED, CONNECTION_LOST, minutes=30),
    ),
    Story(id="A23", source=SLOW, name="a check that runs into its deadline now and then", made=misses_deadlines),
    Story(id="A23", source=SLOW, name="readings that take seconds now and then", made=slow_now_and_then),
    Story(
        id="A23", source=SLOW, name="readings that take a second longer each hour", made=slower_and_slower,
        expects=("warning driver_slow",), ends=Health.WARNING,
    ),
    Story(
        id="A23", source=SLOW, name="a check that hangs since GSP is dead", made=partial(misses_deadlines, gsp=True),
        expects=("failure driver_unresponsive", "failure xid.119"), ends=Health.FAILURE,
    ),
    Story(
        id="A25", source=UPGRADED, name="the driver's packages upgraded, and the driver reloaded eight minutes later",
        expects=("warning driver_library_mismatch",),
        made=partial(nvml_says, NvmlProblem.LIBRARY_MISMATCH, 18, MISFIT, reloaded=True),
    ),
    Story(
        id="A25", source=UPGRADED, name="the driver's packages upgraded under running jobs, and left so",
        expects=("failure driver_library_mismatch", "warning driver_library_mismatch"),
        made=partial(nvml_says, NvmlProblem.LIBRARY_MISMATCH, 18, MISFIT), ends=Health.FAILURE,
    ),
    Story(
        id="A69", source=CONTAINER, name="a container that lost its GPUs, with the daemon in it", expects=("warning nvml_unavailable",),
        made=partial(nvml_says, NvmlProblem.OTHER, 999, UNKNOWN, contained=True), ends=Health.UNKNOWN,
    ),
    Story(id="A70", source=GUEST, name="a GPU of a virtual machine", made=partial(of_a_virtual_machine, later=False)),
    Story(id="A70", source=GUEST, name="a GPU that is lent to a virtual machine", made=partial(of_a_virtual_machine, later=True)),
    Story(id="A70", source="dask/distributed#5342", name="WSL, with hardly a reading", made=few_readings),
    Story(id="A71", source="NVIDIA/NVSentinel#1690, #1034", name="a GPU is reset, DCGM stopped for it", made=gpu_is_reset),
    Story(id="A71", source="NVIDIA/NVSentinel#1690, #1034", name="a reset that takes two attempts", made=answers_nothing_for_a_moment),
    Story(
        id="A72", source="Project-HAMi/HAMi#1950, NVIDIA/k8s-device-plugin#1929", name="MIG instances that come and go", made=mig_changes
    ),
    Story(
        id="A73", source="MFlowCode/MFC#1749", name="a double-bit error of a month ago", made=error_of_long_ago,
        expects=("failure ecc_uncorrectable", "failure xid.48"),
    ),
)  # fmt: skip
