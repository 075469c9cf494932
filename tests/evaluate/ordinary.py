"""What happens on healthy nodes. None of it is a fault, and only where it says so a warning would be true.

How often: `PER_DAY`, on one node. Xid 31 comes at the rate of Delta's A100 and H100 nodes (177 and 159 per 1000 node-days);
13 and 43, which that study leaves out as user errors, and everything else are assumed, and more often than any fleet has
it, so that a thousand days try each of them many times.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from evaluate import ordinary_beside, ordinary_clocks
from evaluate.clockwork import Process
from evaluate.node import INTERVAL, Node
from gpuwarden_collectors.event_facts import AerEvent, AerSeverity, GpuResetEvent, LogGap
from gpuwarden_collectors.facts import GpuAnswer, MigInstance, NvmlProblem
from support.hosts import slot

DAY = 86_400.0
ALL_AT_ONCE = 0.3  # share of resets and application errors that concern every GPU of the node


def some(node: Node, dice: Random, alone: float) -> list[int]:
    """Return one GPU with probability `alone`, else several."""
    count = 1 if dice.random() < alone else dice.randint(2, len(node.gpus))
    return dice.sample(range(len(node.gpus)), min(count, len(node.gpus)))


# --- jobs and their errors


def jobs(node: Node) -> Process:
    """Work and pause, for ever. At pause the PCIe link and the clocks are slow, at full load power is capped, and clocks with it."""
    while True:
        wanted = node.dice.sample(range(len(node.gpus)), node.dice.choice((1, 2, 4, 8)) % (len(node.gpus) + 1) or 1)
        busy = [n for n in wanted if n not in node.reserved]
        clock = node.dice.choice((1980, 1755, 1400, 1100))
        for n in busy:
            node.warm[n] = node.dice.randint(58, 76)
            node.change(
                n, utilization_gpu=97, performance_state=0, clock_event_reasons=4, pcie_generation=_fastest(node, n),
                clock_sm_mhz=clock + node.dice.randint(-60, 0), power_usage_mw=690_000,
            )  # fmt: skip
        yield node.dice.expovariate(1 / 9000)
        for n in busy:
            node.warm[n] = 34
            if n in node.reserved:
                continue
            node.change(
                n, utilization_gpu=0, performance_state=8, clock_event_reasons=1, pcie_generation=1, clock_sm_mhz=345, power_usage_mw=75_000,
            )  # fmt: skip
        yield node.dice.expovariate(1 / 900)


def _fastest(node: Node, n: int) -> int:
    return node.gpus[n].readings.pcie_generation_max or 4


def application_error(number: int, followed_by: tuple[int, ...] = ()) -> Callable[[Node], Process]:
    """A burst of one Xid, on the GPUs of one job, and now and then the same job submitted again a few minutes later."""

    def process(node: Node) -> Process:
        gpus = some(node, node.dice, 0.7)
        for _ in range(node.dice.choice((1, 1, 1, 2, 3))):
            for _ in range(min(40, 1 + int(node.dice.expovariate(1 / 4)))):
                node.xids(node.dice.choice(gpus), number)
                yield node.dice.uniform(0.0, 0.5)
            for n in gpus:
                node.xids(n, *followed_by)
            yield node.dice.uniform(120.0, 900.0)

    return process


# --- what an administrator does


def driver_reload(node: Node) -> Process:
    """DCGM's engine holds the driver, so it is stopped first, and started again last."""
    if node.engine is not None:
        node.engine.stop()
    for n in range(len(node.gpus)):
        node.plug(n, driver="")
    node.say(NvmlProblem.DRIVER_NOT_LOADED)
    yield node.dice.uniform(4.0, 95.0)
    node.load_driver()
    if node.engine is not None:
        node.engine.start(node.now)
    yield from registering(node, range(len(node.gpus)), node.dice.uniform(3.0, 50.0))


def registering(node: Node, gpus: range | list[int], seconds: float) -> Process:
    """The fabric manager takes its time; on A100 it is also what trains the links."""
    for n in gpus:
        node.change(n, fabric_state=2)
        if node.model == "A100":
            node.train(n, down=range(node.link_count))
    yield seconds
    for n in gpus:
        node.change(n, fabric_state=3)
        node.train(n)


def library_upgrade(node: Node) -> Process:
    """The packages are upgraded while jobs run, and minutes later the driver is reloaded. Meanwhile one warning is true."""
    node.true.add("driver_library_mismatch")
    node.say(NvmlProblem.LIBRARY_MISMATCH)
    yield node.dice.uniform(60.0, 480.0)
    yield from driver_reload(node)
    yield 60.0
    node.true.discard("driver_library_mismatch")


def gpu_reset(node: Node) -> Process:
    """An epilog resets one GPU or all. For a second it is dead on the bus too, which the PCI collector does not report."""
    everything = node.dice.random() < ALL_AT_ONCE
    gpus = list(range(len(node.gpus))) if everything else [node.dice.randrange(len(node.gpus))]
    away = node.dice.choice((GpuAnswer.LOST, GpuAnswer.UNKNOWN, None))
    dead = node.dice.uniform(0.1, 1.0)
    for n in gpus:
        if away is None:
            node.list_(n, listed=False)
        else:
            node.put(n, answer=away)
    yield dead
    for n in gpus:
        if node.dice.random() < 0.3:
            node.say_lines(GpuResetEvent(at=node.now, slot=slot(n), ok=True, text="ready 1023ms after FLR"))
    yield node.dice.uniform(1.0, 20.0)
    for n in gpus:
        node.reset(n)
    yield from registering(node, gpus, node.dice.uniform(2.0, 30.0))


def mig_change(node: Node) -> Process:
    """MIG on, for hours, and off again; each change resets the GPU. With MIG the links are off by design."""
    n = node.dice.randrange(len(node.gpus))
    for mode in (1, 0):
        node.list_(n, listed=False)
        yield node.dice.uniform(2.0, 20.0)
        node.reset(n)
        node.change(n, mig_mode=mode)
        node.train(n, down=range(node.link_count) if mode else ())
        instances = tuple(MigInstance(gpu_instance=g, compute_instance=0, profile="1g.10gb") for g in range(7 * mode))
        node.put(n, mig=instances)
        yield node.dice.uniform(1800.0, 20_000.0)


def reboot(node: Node) -> Process:
    """The driver comes up to eight minutes after the daemon, the fabric up to four minutes after the driver."""
    node.reboot(away=node.dice.uniform(90.0, 600.0), uptime=node.dice.uniform(15.0, 60.0))
    for n in range(len(node.gpus)):
        node.plug(n, driver="")
    node.say(NvmlProblem.DRIVER_NOT_LOADED)
    node.go(ordinary_beside.boot(node))
    yield node.dice.choice((node.dice.uniform(0.0, 60.0), node.dice.uniform(60.0, 480.0)))
    node.load_driver()
    ordinary_beside.booted(node)
    yield from registering(node, range(len(node.gpus)), node.dice.uniform(5.0, 240.0))


def daemon_restart(node: Node) -> Process:
    node.stop_daemon()
    yield node.dice.uniform(1.0, 60.0)
    node.start_daemon()


def clock_step(node: Node) -> Process:
    node.step_wall_clock(node.dice.choice((-3600.0, 3600.0, node.dice.uniform(-30.0, 30.0), -86_400.0 * 365)))
    yield 0.0


# --- hardware being hardware


def corrected_errors(node: Node) -> Process:
    """Give one GPU in twenty corrected errors: a handful a day, and sometimes a few hundred within an hour."""
    if node.dice.random() < 0.05 * len(node.gpus):
        n = node.dice.randrange(len(node.gpus))
        for _ in range(node.dice.choice((3, 10, 400))):
            node.add(n, ecc_corrected_volatile=1)
            yield node.dice.uniform(1.0, 17.0)
        if node.dice.random() < 0.2 and (node.gpus[n].readings.remapped_rows_correctable or 0) < 5:
            node.add(n, remapped_rows_correctable=1)


def retraining(node: Node) -> Process:
    """A link goes down and comes up again, within the minute that this takes at most."""
    n, link = node.dice.randrange(len(node.gpus)), node.dice.randrange(max(1, node.link_count))
    node.train(n, down=[link])
    recoveries = node.dice.randint(1, 3)
    node.add(
        n,
        nvlink_recovery_errors=recoveries,
        nvlink_replay_errors=node.dice.randint(0, 4),
        nvlink5_recoveries=recoveries,
    )
    yield node.dice.uniform(0.5, 50.0)
    node.train(n)


def pcie_replays(node: Node) -> Process:
    n = node.dice.randrange(len(node.gpus))
    for _ in range(node.dice.randint(1, 20)):
        node.add(n, pcie_replays=node.dice.randint(1, 5))
        yield node.dice.uniform(5.0, 60.0)


def corrected_bus_errors(node: Node) -> Process:
    n = node.dice.randrange(len(node.gpus))
    for _ in range(node.dice.randint(1, 20)):
        node.say_lines(AerEvent(at=node.now, slot=slot(n), severity=AerSeverity.CORRECTED, text="PCIe Bus Error"))
        yield node.dice.uniform(0.0, 3.0)


def thermal_peak(node: Node) -> Process:
    """Minutes just below the limit; seconds, now and then, at it. The hardware slows down for a moment."""
    n = node.dice.randrange(len(node.gpus))
    usual, limit = node.warm[n], node.gpus[n].readings.temperature_slowdown or 89
    node.warm[n] = limit - 3
    yield node.dice.uniform(60.0, 900.0)
    for _ in range(node.dice.randint(0, 5)):
        node.heat(n, limit + node.dice.randint(-1, 0))
        node.add(n, slowdown_hw_thermal_ns=node.dice.randint(1, 3_000_000_000))
        _reasons(node, n, 0x44)
        yield node.dice.uniform(1.0, 60.0)
        node.heat(n, limit - 4)
        _reasons(node, n, 4)
        yield node.dice.uniform(30.0, 200.0)
    node.warm[n] = usual


def full_load(node: Node) -> Process:
    """Every GPU throttles, as it should: power cap all the time, heat and power brake for moments."""
    for _ in range(60):
        for n in range(len(node.gpus)):
            _reasons(node, n, node.dice.choice((4, 4, 4, 0x24, 0x84)))
            node.add(n, slowdown_hw_power_brake_ns=node.dice.choice((0, 0, 1, 20_000_000)))
        yield 60.0
    for n in range(len(node.gpus)):
        _reasons(node, n, 4)


def _reasons(node: Node, n: int, reasons: int) -> None:
    if n not in node.reserved:
        node.change(n, clock_event_reasons=reasons)


def narrow_at_idle(node: Node) -> Process:
    """A busy GPU whose link is still slow for a moment."""
    n = node.dice.randrange(len(node.gpus))
    node.change(n, pcie_generation=1, utilization_gpu=80, performance_state=0)
    yield node.dice.uniform(5.0, 90.0)
    node.change(n, pcie_generation=_fastest(node, n))


# --- readers being readers


def missed_deadline(node: Node) -> Process:
    yield from node.miss_a_deadline()


def slow_bus(node: Node) -> Process:
    node.bus_hangs = True
    yield 10.0
    node.bus_hangs = False


def log_gap(node: Node) -> Process:
    node.say_lines(LogGap(at=node.now, lost=node.dice.randint(1, 5000)))
    yield 0.0


EXCLUSIVE = (driver_reload, library_upgrade, gpu_reset, mig_change, reboot)
"""Only one of these at a time: one administrator, one epilog."""

PER_DAY: dict[Callable[[Node], Process], float] = {
    application_error(31, (45,)): 0.17,
    application_error(13, (43, 45)): 0.5,
    application_error(43): 1.0,
    driver_reload: 0.3,
    library_upgrade: 0.1,
    gpu_reset: 1.0,
    mig_change: 0.2,
    reboot: 0.3,
    daemon_restart: 0.5,
    clock_step: 0.1,
    corrected_errors: 1.0,
    retraining: 1.0,
    pcie_replays: 2.0,
    corrected_bus_errors: 0.5,
    thermal_peak: 2.0,
    full_load: 1.0,
    narrow_at_idle: 2.0,
    missed_deadline: 0.2,
    slow_bus: 0.2,
    log_gap: 0.2,
    **ordinary_beside.PER_DAY,
    **ordinary_clocks.PER_DAY,
}


class Ordinary:
    """Everything of `PER_DAY` on one node, at random times. `count`: how often each was begun."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._taken = False
        self.count: dict[str, int] = {}

    def begin(self) -> None:
        self._node.go(jobs(self._node))
        for kind, rate in PER_DAY.items():
            self._node.go(self._again(kind, rate))

    def _again(self, kind: Callable[[Node], Process], per_day: float) -> Process:
        while True:
            yield self._node.dice.expovariate(per_day / DAY)
            exclusive = kind in EXCLUSIVE
            while exclusive and self._taken:
                yield 60 * INTERVAL
            self._taken = self._taken or exclusive
            self.count[kind.__qualname__.split(".")[0]] = self.count.get(kind.__qualname__.split(".")[0], 0) + 1
            yield from kind(self._node)
            if exclusive:
                self._taken = False
