"""Slurm: the delay from a verdict to the drain, and the load on the controller.

On a real slurmctld with three nodes and their slurmd; then a hundred nodes that fail in one moment; then a thousand, and
eight thousand, in simulated time. A bare `scontrol update` is measured in the same turns: it is the cost of any drain here.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import cpu_ns, percentile, spread, table
from gpuwarden.actuators.reconciler import Limits, Reconciler
from gpuwarden.policy.model import Act, FleetCount, Held, Intent, NodeState, Owner, Result, Settings, Why
from gpuwarden_collectors.facts import Stamp
from gpuwarden_collectors.slurm.nodes import read_node, read_partitions
from support.slurm import CONTROLLER, Slurm, missing_parts, running
from support.slurm_reconciler import FAILURE, a_reconciler, an_actuator, exclude

ROUNDS, RUNS = 40, 5
LOOKS = 50
PHANTOMS = 100
RPCS_OF_A_LOOK, RPCS_OF_A_CENSUS, RPCS_OF_A_WRITE, RPCS_OF_A_JOB_QUESTION = 2, 2, 1, 3
HOUR = 3600.0
NODE_BYTES = 325  # of one node in the controller's answer: 2.6 MB for 8,000


@contextmanager
def cluster(**shape: Any) -> Iterator[Slurm]:
    with (
        tempfile.TemporaryDirectory(prefix="gw-slurm-", ignore_cleanup_errors=True) as folder,
        running(Slurm(Path(folder), **shape)) as slurm,
    ):
        yield slurm


# --- a verdict becomes a drain


async def drains(slurm: Slurm) -> tuple[list[float], list[float]]:
    """Return the milliseconds of a drain by the reconciler until the controller accepted it, and of a bare scontrol, in turns."""
    actuator = an_actuator(slurm)
    taken: list[float] = []
    apply = actuator.apply

    async def noting(intent: Intent, state: NodeState) -> None:
        await apply(intent, state)
        taken.append(time.perf_counter())

    actuator.apply = noting  # type: ignore[method-assign]
    await actuator.read()
    ours, bare = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await a_reconciler(actuator).attempt(exclude())
        ours.append((taken.pop() - started) * 1e3)
        started = time.perf_counter()
        slurm.scontrol("update", "NodeName=n2", "State=DRAIN", f"Reason={FAILURE}")
        bare.append((time.perf_counter() - started) * 1e3)
        slurm.scontrol("update", "NodeName=n1,n2", "State=UNDRAIN")
    return ours, bare


def measure_drains(slurm: Slurm) -> None:
    runs = [asyncio.run(drains(slurm)) for _ in range(RUNS)]
    rows = []
    for name, share, wanted in (("p50", 0.5, "< 60 ms"), ("p99", 0.99, "< 150 ms")):
        ours = [percentile(run[0], share) for run in runs]
        bare = [percentile(run[1], share) for run in runs]
        ratio = [a / b for a, b in zip(ours, bare, strict=True)]
        rows.append([f"verdict to drained, {name}", spread(ours, 0), spread(bare, 0), spread(ratio, 1), wanted])
    head = ("what", "ms", "a bare scontrol update, ms", "ratio", "wanted")
    table(f"A drain: fleet_count, look, write; median (least-most) of {RUNS} runs of {ROUNDS}", head, rows)


# --- the load on the controller


def requests(slurm: Slurm) -> int:
    """Return how many requests the controller has answered since it started."""
    output = slurm.command("sdiag")
    by_type = output.partition("Remote Procedure Call statistics by message type")[2].partition("\n\n")[0]
    return sum(map(int, re.findall(r"count:(\d+)", by_type)))


def measure_looks(slurm: Slurm) -> None:
    controller = slurm.processes[CONTROLLER].pid
    actuator = an_actuator(slurm)

    async def ask(question: str) -> None:
        if question == "look":
            await read_node(actuator.commands, "n1")
        else:
            await read_partitions(actuator.commands, ["gpu"])

    rows = []
    for question in ("look", "count"):
        sdiag = -requests(slurm) + requests(slurm)  # what this question itself costs
        before, cpu = requests(slurm), cpu_ns(controller)

        async def all_of_them(question: str = question) -> None:
            for _ in range(LOOKS):
                await ask(question)

        asyncio.run(all_of_them())
        spent = (cpu_ns(controller) - cpu) / LOOKS / 1e6
        each = (requests(slurm) - before - sdiag) / LOOKS
        rows.append([f"a {question}", f"{each:.1f}", received(slurm, question), f"{spent:.2f}"])
    head = ("what", "requests", "bytes received", "CPU of slurmctld, ms")
    table(f"What is asked of a controller of 3 nodes, mean of {LOOKS}", head, rows)
    options = Settings()
    hourly = HOUR / options.look_every * RPCS_OF_A_LOOK + 1 / 24 + 2 * RPCS_OF_A_JOB_QUESTION / 4
    print(
        f"A healthy node: {hourly:.1f} requests an hour (wanted: at most 12), a look each {options.look_every:g} s.\n"
    )


def received(slurm: Slurm, question: str) -> int:
    """Return the bytes that the node receives for one query, by strace."""
    words = {
        "look": ("sinfo", "--all", "--noheader", "--Node", "--nodes=n1", "--Format=NodeList:0"),
        "count": ("sinfo", "--noheader", "--Node", "--partition=gpu", "--Format=NodeList:0"),
    }[question]
    try:
        output = slurm.command("strace", "-f", "-e", "trace=recvfrom", *words)
    except FileNotFoundError:
        return 0
    return sum(map(int, re.findall(r"recvfrom\(\d+, .* = (\d+)", output)))


def measure_storm() -> None:
    """Measure a drain of all nodes at once. A few processes share the nodes, since one for each is too many for this machine."""
    processes = 5
    with cluster(nodes=0, phantoms=PHANTOMS, slurmd_timeout=3600) as slurm:
        before, cpu = requests(slurm), cpu_ns(slurm.processes[CONTROLLER].pid)
        size, started = PHANTOMS // processes, time.perf_counter()
        environment = {**slurm.environment, "PYTHONPATH": os.pathsep.join((*sys.path, "daemon", "collectors"))}
        racers = [
            subprocess.Popen(
                [sys.executable, "-m", "support.slurm_racer", str(slurm.conf), str(first), str(first + size - 1)],
                env=environment, stdout=subprocess.PIPE, text=True,
            )
            for first in range(1, PHANTOMS, size)
        ]  # fmt: skip
        output = "".join(racer.communicate()[0] for racer in racers)
        took = time.perf_counter() - started
        spent = (cpu_ns(slurm.processes[CONTROLLER].pid) - cpu) / 1e9
        asked = requests(slurm) - before
        out = slurm.command("sinfo", "-h", "-N", "-O", "StateComplete:0").count("drain")
    rows = [[PHANTOMS, output.count(" done"), out, f"{took:.1f}", asked, f"{asked / took:.0f}", f"{spent:.2f}"]]
    head = ("nodes", "say they are out", "are out", "s", "requests", "requests/s", "CPU of slurmctld, s")
    table("A hundred nodes fail in one moment and none waits by chance; the budget is 10", head, rows)


# --- a thousand, in simulated time


class SimulatedTime(asyncio.SelectorEventLoop):
    """An event loop whose time advances at once when all tasks wait."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0]._when)  # type: ignore[attr-defined]  # noqa: SLF001
        super()._run_once()  # type: ignore[misc]


class SimulatedSlurm:
    """Records the excluded nodes, and the requests of each second. A request takes ten milliseconds."""

    def __init__(self, pool: int) -> None:
        self.pool = pool
        self.out: dict[str, float] = {}
        self.asked: Counter[int] = Counter()
        self.counted: Counter[int] = Counter()  # the questions among them for a whole partition

    async def request(self, count: int) -> float:
        await asyncio.sleep(0.01 * count)
        now = asyncio.get_running_loop().time()
        self.asked[int(now)] += count
        return now


class SimulatedNode:
    """An actuator."""

    sheds_load = False

    def __init__(self, name: str, slurm: SimulatedSlurm) -> None:
        self.name = name
        self._slurm = slurm

    async def read(self) -> NodeState:
        now = await self._slurm.request(RPCS_OF_A_LOOK)
        since = self._slurm.out.get(self.name)
        if since is None:
            return NodeState(at=Stamp(now, now), pool=self._slurm.pool)
        return NodeState(
            at=Stamp(now, now), owner=Owner.OURS, why=Why.FAILURE, reason=FAILURE, since=since, pool=self._slurm.pool
        )

    async def fleet_count(self) -> FleetCount:
        now = await self._slurm.request(RPCS_OF_A_CENSUS)
        self._slurm.counted[int(now)] += 1
        held = tuple(Held(since, name) for name, since in self._slurm.out.items())
        return FleetCount(node=self.name, pool=self._slurm.pool, held=held, now=now)

    async def apply(self, intent: Intent, state: NodeState) -> None:  # noqa: ARG002 - as all actuators have it
        now = await self._slurm.request(RPCS_OF_A_WRITE)
        if intent.act is Act.EXCLUDE:
            self._slurm.out[self.name] = float(int(now))
        else:
            self._slurm.out.pop(self.name, None)

    async def close(self) -> None:
        pass


async def fail(name: str, slurm: SimulatedSlurm) -> None:
    loop = asyncio.get_running_loop()

    async def committed() -> bool:
        return True

    box = Reconciler(
        SimulatedNode(name, slurm), committed=committed, wanted=lambda _: True, on_read=lambda: None, limits=Limits(),
        clock=lambda: Stamp(loop.time(), loop.time()),
    )  # fmt: skip
    await box.read()  # as each daemon has done at its start
    at = loop.time()
    intent = Intent(act=Act.EXCLUDE, actuator=name, why=Why.FAILURE, reason=FAILURE, key=name, at=Stamp(at, at))
    while at < HOUR:
        outcome, delay = await box.attempt(intent)
        if outcome.result is not Result.RETRY:
            return
        await asyncio.sleep(delay)
        at = loop.time()


def simulate(failing: int, pool: int) -> list[object]:
    slurm = SimulatedSlurm(pool)

    async def all_fail() -> None:
        await asyncio.gather(*(fail(f"n{number:05}", slurm) for number in range(failing)))

    with asyncio.Runner(loop_factory=SimulatedTime) as runner:
        runner.run(all_fail())
    start = 1  # the looks at the start were before the failure
    seconds = {second: count for second, count in slurm.asked.items() if start <= second < HOUR}
    minute = sum(count for second, count in seconds.items() if second < start + 60)
    whole = sum(count for second, count in slurm.counted.items() if second < start + 60) * pool * NODE_BYTES / 60 / 1e6
    most = heapq.nlargest(1, seconds.values())[0]
    later = sum(count for second, count in seconds.items() if second >= HOUR / 2) / (HOUR / 2)
    return [failing, pool, len(slurm.out), most, f"{minute / 60:.0f}", f"{whole:.1f}", f"{later:.1f}"]


def main() -> None:
    missing = missing_parts()
    if missing:
        print(f"Not measured, since it runs a real Slurm: {'; '.join(missing)}\n")
        return
    with cluster() as slurm:
        measure_drains(slurm)
        measure_looks(slurm)
    measure_storm()
    rows = [simulate(1000, 1000), simulate(1000, 8000), simulate(8000, 8000)]
    head = (
        "fail",
        "of",
        "out",
        "requests/s, most",
        "in the first minute",
        "MB/s then",
        "requests/s after half an hour",
    )
    table("Nodes that fail in one moment, for an hour of simulated time", head, rows)


if __name__ == "__main__":
    main()
