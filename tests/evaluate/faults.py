"""How each fault shows itself: what a node's collectors see of it, from the moment it strikes. Shapes after the Delta
studies (Xid 95 in storms from one GPU, 48 with 63 and 94 or 95, 119 with an NVML that no longer answers).

A strike is a process on a node, given the GPU that it concerns.
"""

from __future__ import annotations

from collections.abc import Sequence

from evaluate.clockwork import Process
from evaluate.fault_class import Strike
from evaluate.node import Node
from gpuwarden.health.nvlink.nvlink5_catalogue import NON_FATAL, Nvlink5Rule
from gpuwarden_collectors.event_facts import AerEvent, AerSeverity, GpuResetEvent, LogGap, SxidEvent
from gpuwarden_collectors.facts import GpuAnswer, GpuProcess, NvmlProblem, Placement
from gpuwarden_collectors.slurm.jobs_facts import Job, JobProcess, JobsFacts
from support.hosts import slot

SWITCH = "0000:05:00.0"


def reading(**values: int) -> Strike:
    """The GPU begins to report this, and goes on."""

    def strike(node: Node, n: int) -> Process:
        node.give(n, **values)
        yield 0.0

    return strike


def never_complete(node: Node, _: int) -> Process:
    """Replace the node by one whose fourth module never came up; its daemon starts for the first time."""
    node.stop_daemon()
    node.plugged[3] = False
    node.list_(3, listed=False)
    for number in range(len(node.gpus)):
        node.put(number, placement=Placement(module_id=number + 1))
    node.start_daemon(remembers=False)
    yield 0.0


def growing(every: float, *, bits: int | None = None, **values: int) -> Strike:
    """Counters grow by this much each `every` seconds, for hours. `bits`: why clocks are lowered meanwhile."""

    def strike(node: Node, n: int) -> Process:
        if bits is not None:
            node.change(n, clock_event_reasons=bits)
        for _ in range(int(7200 / every)):
            node.add(n, **values)
            yield every

    return strike


def xids(*numbers: int, then: Strike | None = None, text: str = "") -> Strike:
    """Lines of one instant, and what the readings say from then on."""

    def strike(node: Node, n: int) -> Process:
        if text:
            node.say_lines(*(node.xid(n, number, text) for number in numbers))
        else:
            node.xids(n, *numbers)
        if then is not None:
            yield from then(node, n)
        yield 0.0

    return strike


def answers(answer: GpuAnswer) -> Strike:
    def strike(node: Node, n: int) -> Process:
        node.put(n, answer=answer)
        yield 0.0

    return strike


# --- the GPU goes away


def off_the_bus(node: Node, n: int) -> Process:
    """Hot-removed: neither sysfs nor NVML has it any more, and nobody says why."""
    node.plugged[n] = False
    node.list_(n, listed=False)
    yield 0.0


def dead_on_the_bus(node: Node, n: int) -> Process:
    """Its configuration space reads all ones, and NVML calls it lost."""
    node.plug(n, responds=False)
    node.put(n, answer=GpuAnswer.LOST)
    yield 0.0


def out_of_nvml(node: Node, n: int) -> Process:
    node.list_(n, listed=False)
    yield 0.0


def fallen(node: Node, n: int) -> Process:
    """Xid 79, its second line without a number, and a GPU that no longer answers."""
    node.say_lines(node.xid(n, 79, "GPU has fallen off the bus."))
    yield from dead_on_the_bus(node, n)


def fallen_without_number(node: Node, n: int) -> Process:
    text = f"GPU at PCI:{slot(n)[:-2]} has fallen off the bus."
    node.say_lines(node.xid(n, 79, text, inferred=True))
    yield from out_of_nvml(node, n)


def fallen_and_rebooted(node: Node, n: int) -> Process:
    """Let a GPU fall off the bus and stay away after a reboot: only the ledger knows that it was ever there."""
    yield from dead_on_the_bus(node, n)
    yield 20.0
    node.reboot(away=300.0, uptime=40.0)
    node.plugged[n] = False
    node.list_(n, listed=False)
    yield 0.0


# --- the driver goes away


def hang(node: Node, n: int) -> Process:
    node.hung = True
    yield 0.0


def hang_in_the_kernel(node: Node, n: int) -> Process:
    """The reader is in D state, where no signal reaches it."""
    node.hung = node.stuck = True
    yield 0.0


def gsp_gone(node: Node, n: int) -> Process:
    node.say_lines(*(node.xid(n, 119, "Timeout after 6s of waiting for RPC response from GPU") for _ in range(3)))
    node.hung = True
    yield 0.0


def driver_gone(node: Node, n: int) -> Process:
    for other in range(len(node.gpus)):
        node.plug(other, driver="")
    node.say(NvmlProblem.DRIVER_NOT_LOADED)
    yield 0.0


def odd_ecc_mode(node: Node, n: int) -> Process:
    """Switched off for a benchmark, and not on again."""
    node.give(n, ecc_mode=0, ecc_mode_pending=0)
    yield 0.0


def slow_for_no_reason(node: Node, n: int) -> Process:
    """All GPUs work on one job, and this one is held at a quarter of its clock."""
    for other in range(len(node.gpus)):
        clock = 480 if other == n else 1755
        node.give(other, utilization_gpu=99, clock_sm_mhz=clock, clock_event_reasons=0, performance_state=0)
    yield 0.0


def slow_by_heat(node: Node, n: int) -> Process:
    yield from slow_for_no_reason(node, n)
    node.change(n, clock_event_reasons=0x20)


def braked_at_work(node: Node, n: int) -> Process:
    """100 % of the time, at a quarter of the clock."""
    node.give(n, utilization_gpu=99, clock_sm_mhz=495, clock_event_reasons=0x8C)
    for _ in range(1440):
        node.add(n, slowdown_hw_power_brake_ns=5_000_000_000)
        yield 5.0


def licence_lost(node: Node, n: int) -> Process:
    """A guest whose vGPU had a licence for five minutes."""
    for g in range(len(node.gpus)):
        node.give(g, vgpu_license=1)
    yield 300.0
    node.change(n, vgpu_license=0)


def hot_at_rest(node: Node, n: int) -> Process:
    """Nobody has a job; one GPU is at its clocks, and hot."""
    for g in range(len(node.gpus)):
        node.put(g, processes=())
        node.give(g, utilization_gpu=0, power_usage_mw=118_000 if g == n else 72_000 + 900 * g)
        node.warm[g] = 66 if g == n else 36
    yield 0.0


# --- links and switches


def link_down(node: Node, n: int) -> Process:
    node.train(n, down=[node.dice.randrange(node.link_count)])
    yield 0.0


def all_links_down(node: Node, n: int) -> Process:
    """Nobody trains them again; a fabric manager that starts takes up to 300 s for that."""
    node.train(n, down=range(node.link_count))
    yield 0.0


def switch_error(node: Node, n: int) -> Process:
    text = "Fatal, Link 46 LTSSM fault up"
    node.say_lines(SxidEvent(at=node.now, slot=SWITCH, sxid=20034, fatal=True, link=46, text=text))
    yield 0.0


def bus_error(node: Node, n: int) -> Process:
    node.say_lines(AerEvent(at=node.now, slot=slot(n), severity=AerSeverity.FATAL, text="Uncorrected (Fatal) error"))
    yield 0.0


# --- heat


def hot(above_slowdown: int) -> Strike:
    def strike(node: Node, n: int) -> Process:
        limit = node.gpus[n].readings.temperature_slowdown or 89
        node.walks = False
        node.heat(n, limit + above_slowdown)
        yield 0.0

    return strike


# --- storms


def storm(number: int, lines: int, seconds: float) -> Strike:
    """Return a fault with that many lines of one Xid from one GPU, a hundred at a time."""

    def strike(node: Node, n: int) -> Process:
        batches = lines // 100
        for _ in range(batches):
            node.say_lines(*(node.xid(n, number) for _ in range(100)))
            yield seconds / batches

    return strike


def remapping_failed_and_rebooted(node: Node, n: int) -> Process:
    """A burnt-out board does not get better by a reboot."""
    node.give(n, remapped_rows_failure=1)
    yield 60.0
    node.reboot(away=300.0, uptime=40.0)
    yield 0.0


def spread(node: Node, n: int) -> Process:
    """Let one driver bug hit every GPU of the node, as one node of a fleet sees it."""
    for other in (n, *(each for each in range(len(node.gpus)) if each != n)):
        node.say_lines(node.xid(other, 119))
        yield node.dice.uniform(0.0, 20.0)


def repeated(number: int, times: int, every: float) -> Strike:
    def strike(node: Node, n: int) -> Process:
        for _ in range(times):
            node.xids(n, number)
            yield every

    return strike


def bursts(number: int, times: int, every: float, text: str = "", lines: int = 3) -> Strike:
    """The same Xid on the same GPU in job after job, each time several lines within seconds."""

    def strike(node: Node, n: int) -> Process:
        for job in range(times):
            for _ in range(lines):
                node.say_lines(node.xid(n, number, text, pid=10_000 + job))
                yield 0.3
            yield every - 0.3 * lines

    return strike


def any_of(numbers: Sequence[int]) -> Strike:
    """Return a fault that is one of these Xids."""

    def strike(node: Node, n: int) -> Process:
        node.xids(n, node.dice.choice(numbers))
        yield 0.0

    return strike


def any_switch_error(numbers: Sequence[int], *, fatal: bool) -> Strike:
    def strike(node: Node, n: int) -> Process:
        sxid = node.dice.choice(numbers)
        text = f"{'Fatal' if fatal else 'Non-fatal'}, Link 46 error {sxid}"
        node.say_lines(SxidEvent(at=node.now, slot=SWITCH, sxid=sxid, fatal=fatal, link=46, text=text))
        yield 0.0

    return strike


def reset_in_vain(number: int, resets: int, every: float) -> Strike:
    """The same Xid after each reset of the GPU: resets do not help."""

    def strike(node: Node, n: int) -> Process:
        for _ in range(resets):
            node.xids(n, number)
            yield every / 2
            node.say_lines(GpuResetEvent(at=node.now, slot=slot(n), ok=True, text="ready 1023ms after FLR"))
            node.reset(n)
            yield every / 2
        node.xids(n, number)
        yield 0.0

    return strike


def rebooted_in_vain(number: int, reboots: int) -> Strike:
    """The same Xid on the same GPU after each reboot."""

    def strike(node: Node, n: int) -> Process:
        for _ in range(reboots):
            node.xids(n, number)
            yield 60.0
            node.reboot(away=3600.0, uptime=60.0)
            yield 120.0
        node.xids(n, number)
        yield 0.0

    return strike


def weeks_of_failures(number: int, times: int) -> Strike:
    """A node that is repaired by a reboot each time, and is back within days: nothing is ever wrong for long."""

    def strike(node: Node, n: int) -> Process:
        for _ in range(times):
            node.xids(n, number)
            yield 30.0
            node.reboot(away=2.2 * 86_400.0, uptime=60.0)
            yield 30.0

    return strike


def pending_for_a_week(node: Node, n: int) -> Process:
    """Nobody resets the GPU. The daemon is away for most of that time, which the evaluation need not live through."""
    node.give(n, remapped_rows_pending=1)
    yield 60.0
    node.stop_daemon()
    yield 7 * 86_400.0
    node.start_daemon()
    yield 0.0


def nvml_says(problem: NvmlProblem) -> Strike:
    def strike(node: Node, n: int) -> Process:
        node.say(problem)
        yield 0.0

    return strike


def struck_and_rebooted(number: int) -> Strike:
    """The machine goes down in the middle of it, and what made the Xid is still there."""

    def strike(node: Node, n: int) -> Process:
        node.xids(n, number)
        yield 0.02
        node.reboot(away=300.0, uptime=40.0)
        yield 100.0
        node.xids(n, number)
        yield 0.0

    return strike


def log_overrun(number: int) -> Strike:
    """Return a fault with so many lines that the ring lost some before they were read; the fault's own line is the last of them."""

    def strike(node: Node, n: int) -> Process:
        node.say_lines(LogGap(at=node.now, lost=40_000))
        for _ in range(20):
            node.say_lines(*(node.xid(n, 13) for _ in range(100)))
            yield 0.01
        node.xids(n, number)
        yield 0.0

    return strike


def nvlink5(rules: Sequence[Nvlink5Rule], *, spoilt: bool = False) -> Strike:
    """A line that one of these rules is about, under the node's driver; `spoilt`: its error status is one of no rule."""

    def strike(node: Node, n: int) -> Process:
        rule = node.dice.choice(rules)
        unit = rule.since if node.branch >= 575 else rule.before << 5
        status = 0x40000001 if spoilt else rule.status
        word = "Nonfatal" if rule.severity == NON_FATAL else "Fatal"
        text = f"{rule.units[0]} {word} XC0 i0 Link 3 (0x{rule.sub_code << 20 | unit:08x} 0x{status:08x} 0x00000000)"
        node.say_lines(node.xid(n, rule.xid, text))
        yield 0.0

    return strike


def recovery_line(action: int, name: str) -> Strike:
    """The driver says what it wants; where it has a reading for that, the reading says so too."""

    def strike(node: Node, n: int) -> Process:
        node.say_lines(node.xid(n, 154, f"GPU recovery action changed from 0x0 (None) to 0x{action:x} ({name})"))
        node.change(n, recovery_action=action)
        yield 0.0

    return strike


def bus_unreadable(node: Node, n: int) -> Process:
    node.bus_hangs = True
    yield 0.0


def daemon_error(name: str) -> Strike:
    def strike(node: Node, n: int) -> Process:
        node.report_errors({name: "cannot write: no space left on device"})
        yield 0.0

    return strike


def job_outlived(node: Node, n: int) -> Process:
    """Slurm has ended it, and a process of it still has the GPU open."""
    now = node.now.boottime
    held = JobProcess(pid=8000, uid=1000, job=4711, known_from="cgroup", ended=now)
    node.put(n, processes=(GpuProcess(pid=8000),))
    node.jobs = JobsFacts(jobs=(Job(id=4711, uid=1000, ended=now),), processes=(held,))
    yield 0.0
