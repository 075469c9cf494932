"""The cost of a pass by the number of GPUs.

One daemon for each number, all at once, so that disturbances affect all alike. All run at a tenth of their usual
intervals, so that the ratio of GPU passes to bus passes stays. A daemon without a GPU gives the base: the fixed cost of
passes.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass

from common import cpu_ns, fake_host, spread, table, wait_for_all
from support.daemons import RunningDaemon

COUNTS = (0, 1, 2, 4, 8, 16)
INTERVAL, PCI_INTERVAL = 0.5, 1.0
RUNS = 7
RUN_SECONDS = 4.0
SETTLE = 3.0


@dataclass(frozen=True)
class Reading:
    """Use between two readings: the number of passes, and CPU nanoseconds so far."""

    passes: int
    daemon: int
    worker: int

    @classmethod
    def of(cls, daemon: RunningDaemon) -> Reading:
        now = daemon.heartbeat()
        time.sleep((INTERVAL / 2 - now["age_seconds"]) % INTERVAL)
        passes = daemon.heartbeat()["sequence"]
        return cls(passes, cpu_ns(daemon.process.pid), cpu_ns(daemon.worker()))


@dataclass(frozen=True)
class Cost:
    """Return the milliseconds of CPU for one pass."""

    daemon: float
    worker: float

    @property
    def together(self) -> float:
        return self.daemon + self.worker


def between(before: Reading, after: Reading) -> Cost:
    passes = (after.passes - before.passes) * 1e6
    return Cost((after.daemon - before.daemon) / passes, (after.worker - before.worker) / passes)


def measured() -> dict[int, list[Cost]]:
    with ExitStack() as stack:
        daemons: dict[int, RunningDaemon] = {}
        for count in COUNTS:
            host = stack.enter_context(fake_host(gpus=count, interval=INTERVAL, pci_interval=PCI_INTERVAL, device=True))
            daemons[count] = stack.enter_context(host.daemon())
        for count, daemon in daemons.items():
            wait_for_all(daemon, count)
        time.sleep(SETTLE)
        costs: dict[int, list[Cost]] = {count: [] for count in COUNTS}
        before = {count: Reading.of(daemon) for count, daemon in daemons.items()}
        for _ in range(RUNS):
            time.sleep(RUN_SECONDS)
            after = {count: Reading.of(daemon) for count, daemon in daemons.items()}
            for count in COUNTS:
                costs[count].append(between(before[count], after[count]))
            before = after
        return costs


def row(count: int, costs: dict[int, list[Cost]]) -> list[str]:
    """Return a row that compares with one GPU, whole and above the base: `times` may be as much as the number of GPUs."""

    def per_gpu(gpus: int) -> list[float]:
        return [(cost.together - base.together) / gpus for cost, base in zip(costs[gpus], costs[0], strict=True)]

    here = costs[count]
    each = [spread([getattr(cost, part) for cost in here]) for part in ("daemon", "worker", "together")]
    if count == 0:
        return ["0", *each, "", "", ""]
    times = [several.together / single.together for several, single in zip(here, costs[1], strict=True)]
    ratios = [several / single for several, single in zip(per_gpu(count), per_gpu(1), strict=True)]
    return [str(count), *each, f"{spread(times)} <= {count}", spread(per_gpu(count)), spread(ratios)]


def main() -> None:
    costs = measured()
    table(
        f"CPU of a pass: median (least-most) of {RUNS} runs of {RUN_SECONDS:g} s",
        ("GPUs", "daemon ms", "worker ms", "together ms", "times 1 GPU", "ms per GPU above none", "ratio to 1 GPU"),
        [row(count, costs) for count in COUNTS],
    )


if __name__ == "__main__":
    main()
