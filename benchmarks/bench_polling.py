"""The cost of polling a cloud's metadata service for termination notices: packets, and CPU of the daemon.

Two real daemons in the same minute: one polls the simulator as it would poll the cloud, the other polls nothing.
Packets are counted on a loopback without other traffic. CPU is of one core; the cost of polling is the difference of
the two.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[1] / "tests"))

from apart import apart, packets
from common import cpu_ns, fake_host, spread, table, wait_for_all
from support.daemons import RunningDaemon
from support.metadata import AwsCloud, AzureCloud, Cloud, GcpCloud, beside

GPUS = 8
SETTLE, WINDOW, WINDOWS = 8.0, 5.0, 12
SOURCES: dict[str, Callable[[], Cloud]] = {"aws": AwsCloud, "azure": AzureCloud, "gcp": GcpCloud}
PACKETS_LIMIT, CPU_LIMIT = 12.0, 0.3  # a second; per cent of a core


@dataclass
class Cost:
    """The cost by window: packets and requests a second, per cent of a core."""

    packets: list[float] = field(default_factory=list)
    questions: list[float] = field(default_factory=list)
    asking: list[float] = field(default_factory=list)
    silent: list[float] = field(default_factory=list)

    @property
    def more(self) -> list[float]:
        return [a - b for a, b in zip(self.asking, self.silent, strict=True)]


@contextlib.contextmanager
def daemon(termination: str) -> Iterator[RunningDaemon]:
    with fake_host(gpus=GPUS, device=True) as host:
        host.config.write_text(f"{host.config.read_text()}[termination]\n{termination}")
        with host.daemon() as running:
            wait_for_all(running, GPUS)
            yield running


def measured(name: str) -> Cost:
    cost = Cost()
    with beside(SOURCES[name]()) as service:
        asks = f'sources = ["{name}"]\n[termination.{name}]\nendpoint = "{service.endpoint}"\n'
        with daemon(asks) as asking, daemon("sources = []\n") as silent:
            time.sleep(SETTLE)

            def now() -> tuple[float, ...]:
                counts = (packets(), len(service.requests), cpu_ns(asking.process.pid), cpu_ns(silent.process.pid))
                return (time.monotonic(), *counts)

            begun, before = time.monotonic(), now()
            for window in range(WINDOWS):
                time.sleep(max(0.0, begun + (window + 1) * WINDOW - time.monotonic()))
                after = now()
                took, sent, asked, *cpu = (new - old for old, new in zip(before, after, strict=True))
                cost.packets.append(sent / took)
                cost.questions.append(asked / took)
                cost.asking.append(cpu[0] / took / 1e7)
                cost.silent.append(cpu[1] / took / 1e7)
                before = after
    return cost


def row(name: str, cost: Cost) -> list[str]:
    per = [p / q if q else 0.0 for p, q in zip(cost.packets, cost.questions, strict=True)]
    mean = statistics.mean
    return [
        name, spread(cost.questions, 1), spread(cost.packets, 1), f"<= {PACKETS_LIMIT:g}", spread(per, 1),
        spread(cost.silent, 3), spread(cost.asking, 3), f"{mean(cost.more):.3f}", f"<= {CPU_LIMIT}",
        f"{mean(cost.asking) / mean(cost.silent):.2f}x",
    ]  # fmt: skip


def main() -> None:
    if not apart():
        return
    head = (
        "source", "questions/s", "packets/s", "wanted", "packets a question", "daemon without, %", "with, %", "for asking, %, mean",
        "wanted", "with against without",
    )  # fmt: skip
    table(
        f"A minute of asking: median (least-most) of {WINDOWS} windows of {WINDOW:g} s",
        head,
        [row(name, measured(name)) for name in SOURCES],
    )


if __name__ == "__main__":
    main()
