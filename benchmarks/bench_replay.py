"""The speed of judging a trace again: 8 GPUs whose temperature and load change with every pass, with and without other collectors.

CPU time of this process, reading and unzipping included; one pass is one of NVML, with the readings of the other
collectors since the last one. Reading and judging are also measured separately.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from time import process_time

from common import spread, table
from evaluate.node import Node
from gpuwarden.replay.replay import Replay
from gpuwarden.trace.reader import TraceReader
from gpuwarden.trace.records import Record
from support.traces import write

GPUS, PASSES, ROUNDS = 8, 1000, 9
WANTED = 2000.0  # passes a second


def story(*, whole: bool) -> list[Record]:
    """`whole`: with DCGM, ports, mounts, memory, processes, services and a site check."""
    records: list[Record] = []
    node = Node(records.append, Random(1), gpus=GPUS, dcgm=whole, beside=whole)
    node.walks = False
    node.start_daemon(remembers=False)
    for _ in range(PASSES):
        for gpu in range(GPUS):
            node.heat(gpu, node.dice.randint(60, 70))
            node.change(gpu, utilization_gpu=node.dice.randint(90, 100))
        node.run(5.0)
    return records


def read(path: Path) -> list[Record]:
    with TraceReader(path) as trace:
        return list(trace)


def judge(records: list[Record]) -> None:
    replay = Replay()
    for record in records:
        replay.take(record)


def replay(path: Path) -> None:
    judged = Replay()
    with TraceReader(path) as trace:
        for record in trace:
            judged.take(record)


def passes_a_second(work: Callable[[], object]) -> str:
    rates = []
    for _ in range(ROUNDS):
        gc.collect()
        began = process_time()
        work()
        rates.append(PASSES / (process_time() - began))
    return spread(rates, 0)


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, whole in (("GPUs and the bus alone", False), ("everything beside them too", True)):
            path = write(Path(folder) / str(whole), story(whole=whole))
            records, size = read(path), path.stat().st_size / PASSES
            both = f"{passes_a_second(partial(replay, path))} ≥ {WANTED:.0f}"
            apart = [
                passes_a_second(partial(read, path)),
                passes_a_second(partial(judge, records)),
            ]
            rows.append([name, both, *apart, f"{size:.0f}"])
    table(
        f"replay of {PASSES} passes of {GPUS} GPUs, passes a second, {ROUNDS} rounds",
        ["trace", "read and judged", "reading alone", "judging alone", "bytes a pass"], rows,
    )  # fmt: skip


if __name__ == "__main__":
    main()
