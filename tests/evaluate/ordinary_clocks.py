"""Clocks, power and settings of healthy GPUs: all that makes one slower than its siblings, or other than they are, with good reason."""

from __future__ import annotations

from collections.abc import Callable

from evaluate.clockwork import Process
from evaluate.node import Node
from gpuwarden_collectors.facts import GpuProcess

Work = Callable[[Node, int], Process]


def on_one(work: Work) -> Callable[[Node], Process]:
    """`work` on one GPU that nothing else works on; nothing where there is none."""

    def process(node: Node) -> Process:
        free = _free(node)
        if free:
            n = node.dice.choice(free)
            node.reserved.add(n)
            yield from work(node, n)
            node.reserved.discard(n)

    process.__qualname__ = work.__qualname__
    return process


def clocks_set(node: Node, n: int) -> Process:
    """A user works at 900 MHz for hours, on one GPU."""
    _works(node, n, clock_sm_mhz=900, clock_event_reasons=2, power_usage_mw=240_000)
    yield node.dice.uniform(1200.0, 14_400.0)
    _rests(node, n)


def limit_for_a_job(node: Node, n: int) -> Process:
    """A job of days lowers the power limit of its GPU; its epilog puts it back, or a person does so the next morning."""
    usual = node.gpus[n].readings.power_limit_mw
    node.put(n, processes=(GpuProcess(pid=9000 + n),))
    _works(
        node,
        n,
        clock_sm_mhz=750,
        clock_event_reasons=4,
        power_usage_mw=297_000,
        power_limit_mw=300_000,
        power_enforced_limit_mw=300_000,
    )
    yield node.dice.uniform(3600.0, 180_000.0)
    node.put(n, processes=())
    _rests(node, n)
    yield node.dice.choice((1.0, 40_000.0))
    node.change(n, power_limit_mw=usual, power_enforced_limit_mw=usual)


def hot_afternoon(node: Node) -> Process:
    """Software lowers the clocks of all GPUs a little, and of one a little more."""
    gpus = _free(node)
    if not gpus:
        return
    node.reserved.update(gpus)
    warmest = node.dice.choice(gpus)
    for n in gpus:
        _works(node, n, clock_sm_mhz=1450 if n == warmest else 1650, clock_event_reasons=0x20)
    for _ in range(120):
        for n in gpus:
            node.add(n, slowdown_sw_thermal_ns=node.dice.randint(0, 60_000_000_000))
        yield 60.0
    for n in gpus:
        _rests(node, n)
    node.reserved.difference_update(gpus)


def bursts(node: Node, n: int) -> Process:
    """Inference: the clock is low in the first second of each burst."""
    for _ in range(60):
        _works(node, n, clock_event_reasons=0, clock_sm_mhz=345)
        yield node.dice.uniform(0.5, 6.0)
        node.change(n, clock_sm_mhz=1980)
        yield node.dice.uniform(2.0, 30.0)
        _rests(node, n)
        yield node.dice.uniform(5.0, 60.0)


def left_standing(node: Node, n: int) -> Process:
    """A utilisation of 100 % without a process, at the clock of rest."""
    node.give(n, memory_used_bytes=4 << 20, memory_total_bytes=80 << 30)
    _works(node, n, clock_sm_mhz=345, clock_event_reasons=node.dice.choice((0, 1)))
    yield node.dice.uniform(600.0, 7200.0)
    node.give(n, memory_used_bytes=60 << 30)
    _rests(node, n)


def ecc_mode_changed(node: Node) -> Process:
    """Change the ECC mode from GPU to GPU within minutes; the reboot that applies it comes another day."""
    wanted = 1 - (node.gpus[0].readings.ecc_mode_pending or 0)
    for n in range(len(node.gpus)):
        node.change(n, ecc_mode_pending=wanted)
        yield node.dice.uniform(1.0, 20.0)


def _free(node: Node) -> list[int]:
    return [n for n in range(len(node.gpus)) if n not in node.reserved]


def _works(node: Node, n: int, **values: int) -> None:
    fastest = node.gpus[n].readings.pcie_generation_max
    node.change(n, utilization_gpu=100, performance_state=0, pcie_generation=fastest, **values)


def _rests(node: Node, n: int) -> None:
    node.change(
        n,
        utilization_gpu=0,
        performance_state=8,
        pcie_generation=1,
        clock_sm_mhz=345,
        clock_event_reasons=1,
        power_usage_mw=75_000,
    )


PER_DAY: dict[Callable[[Node], Process], float] = {
    on_one(clocks_set): 0.5,
    on_one(limit_for_a_job): 0.2,
    hot_afternoon: 0.3,
    on_one(bursts): 1.0,
    on_one(left_standing): 0.3,
    ecc_mode_changed: 0.1,
}
