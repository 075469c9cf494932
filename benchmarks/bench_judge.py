"""The cost of judging one pass of a large node: 16 GPUs with 18 links each, all conditions enabled.

Four nodes: healthy, healthy in the passes in which counters of links were read (once a minute), with eight findings on every GPU, and
with one GPU in a storm of Xids. CPU time of this process. Besides milliseconds each row has the ratio to a yardstick that is
measured in turn with it: reading every number of the same facts once, in plain Python; load on the machine slows both.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import fields, replace
from time import process_time_ns

from common import spread, table
from gpuwarden_collectors.facts import LinkFacts, NvmlFacts
from gpuwarden_collectors.gpu_readings import GpuReadings
from support.hosts import Host

GPUS = 16
SETTLES = 3700.0  # seconds of the node: until the windows of an hour are full
ROUNDS, PASSES = 15, 20
CLEAN, SICK = 2.0, 3.0  # milliseconds at most
STORM = 100  # lines of one Xid between two passes
_READINGS = tuple(field.name for field in fields(GpuReadings))
_LINK = tuple(field.name for field in fields(LinkFacts))


def healthy(host: Host) -> None:
    for n, facts in host.gpus.items():
        host.gpus[n] = replace(
            facts, links=tuple(replace(link, recoveries=0, recovery_failures=0) for link in facts.links)
        )
    host.step()


def links_read(host: Host) -> None:
    """Give each pass its own facts of links, as where counters were read; they are equal."""
    healthy(host)
    host.nvml_change = lambda facts: replace(facts, gpus=tuple(replace(gpu, links=(*gpu.links,)) for gpu in facts.gpus))


def sick(host: Host) -> None:
    """Four readings that are wrong and four Xids of the failure class, on every GPU."""
    healthy(host)
    for n in range(GPUS):
        host.change(n, pcie_width=8, remapped_rows_pending=1, ecc_uncorrected_volatile=1, sram_threshold_exceeded=1)
    host.step(*(host.xid(n, number) for n in range(GPUS) for number in (48, 62, 64, 95)))


def pass_of(host: Host, lines: int) -> int:
    """Return the nanoseconds of one pass; the collectors' facts are made before."""
    host.uptime += 5
    nvml, pci, events = host.nvml(), host.pci(), [host.xid(0, 95)] * lines
    began = process_time_ns()
    host.step(*events, nvml=nvml, pci=pci)
    spent = process_time_ns() - began
    host.ledger.clear()
    return spent


def yardstick(facts: NvmlFacts) -> int:
    began = process_time_ns()
    readings = 0
    for gpu in facts.gpus:
        for name in _READINGS:
            readings += getattr(gpu.readings, name) is not None
        for link in gpu.links:
            for name in _LINK:
                readings += getattr(link, name) is not None
    assert readings
    return process_time_ns() - began


def measured(prepare: Callable[[Host], None], lines: int, most: float) -> list[str]:
    host = Host(GPUS)
    prepare(host)
    host.run(SETTLES)
    facts = host.nvml().facts
    assert facts is not None
    milliseconds, ratios = [], []
    for _ in range(ROUNDS):
        gc.collect()
        passes, sticks = [], []
        for _ in range(PASSES):
            passes.append(pass_of(host, lines))
            sticks.append(yardstick(facts))
        milliseconds.append(statistics.median(passes) / 1e6)
        ratios.append(statistics.median(passes) / statistics.median(sticks))
    return [str(len(host.findings)), f"{spread(milliseconds)} < {most:g}", spread(ratios)]


def main() -> None:
    nodes = {
        "healthy": (healthy, 0, CLEAN),
        "healthy, counters of links read in this pass": (links_read, 0, CLEAN),
        "eight findings on every GPU": (sick, 0, SICK),
        f"{STORM} lines of one Xid": (healthy, STORM, SICK),
    }
    table(
        f"Judging one pass of {GPUS} GPUs with 18 links: median (least-most) of {ROUNDS} rounds of {PASSES} passes",
        ("the node", "findings", "ms of CPU", "ratio to reading each number once"),
        [[name, *measured(*node)] for name, node in nodes.items()],
    )


if __name__ == "__main__":
    main()
