"""How fast the judge is: one pass of a large node, and the replay of a trace from its file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from statistics import median, quantiles
from time import process_time

from evaluate.jury import Jury
from evaluate.node import Node
from gpuwarden.replay import Replay
from gpuwarden.trace.reader import TraceReader
from gpuwarden.trace.records import Passed, Record
from support.traces import write

WARM_UP, MEASURED = 3700.0, 1500.0
"""Seconds of the node: until the windows of an hour are full, and 300 passes."""


def measure_pass(*, gpus: int, links: int, sick: bool) -> str:
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
    how = "eight findings on every one" if sick else "healthy"
    slow = quantiles(times, n=20)[-1]
    return f"one pass of {gpus} GPUs with {links} NVLinks each, {how}: {median(times):.2f} ms (median), {slow:.2f} ms (95 %); required: under 2 ms"


def measure_replay(*, gpus: int) -> str:
    """A trace in which temperature and load of every GPU change with every pass."""
    records: list[Record] = []
    node = Node(records.append, Random(1), gpus=gpus)
    node.walks = False
    node.start_daemon(remembers=False)
    for _ in range(1500):
        for gpu in range(gpus):
            node.heat(gpu, node.dice.randint(60, 70))
            node.change(gpu, utilization_gpu=node.dice.randint(90, 100))
        node.run(5.0)
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "trace", records)
        size, replay, began = path.stat().st_size, Replay(), process_time()
        with TraceReader(path) as trace:
            for record in trace:
                replay.take(record)
        spent = process_time() - began
    return f"replay of a trace of {gpus} GPUs: {1500 / spent:.0f} passes a second, {size / 1500:.0f} bytes a pass; required: 2,000 a second"


MEASURES: tuple[Callable[[], str], ...] = (
    partial(measure_pass, gpus=16, links=18, sick=False),
    partial(measure_pass, gpus=16, links=18, sick=True),
    partial(measure_replay, gpus=8),
)
