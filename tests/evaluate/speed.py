"""How long the judge takes for one pass of a large node, healthy and with something wrong everywhere."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from statistics import median, quantiles

from evaluate.jury import Jury
from evaluate.node import Node
from gpuwarden.trace.records import Passed, Record

WARM_UP, MEASURED = 3700.0, 1500.0
"""Seconds of the node: until the windows of an hour are full, and 300 passes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """`median` and `most` (95 % of passes are faster): milliseconds."""

    what: str
    median: float
    most: float

    def __str__(self) -> str:
        return f"one pass of {self.what}: {self.median:.2f} ms (median), {self.most:.2f} ms (95 %)"


def measure_speed(*, gpus: int, links: int, sick: bool) -> Speed:
    times: list[float] = []
    jury = Jury()

    def take(record: Record) -> None:
        spent = jury.spent
        jury.take(record)
        if isinstance(record, Passed) and record.observation.collector == "nvml":
            times.append(1000 * (jury.spent - spent))

    node = Node(take, Random(1), gpus=gpus, links=links)
    node.start_daemon(remembers=False)
    if sick:
        for n in range(gpus):
            node.give(n, pcie_width=8, remapped_rows_pending=1, ecc_uncorrected_volatile=1, sram_threshold_exceeded=1)
            node.say_lines(*(node.xid(n, number) for number in (48, 63, 74, 95)))
    node.run(WARM_UP)
    times.clear()
    node.run(MEASURED)
    what = f"{gpus} GPUs with {links} NVLinks each, {'eight findings on every one' if sick else 'healthy'}"
    return Speed(what=what, median=median(times), most=quantiles(times, n=20)[-1])
