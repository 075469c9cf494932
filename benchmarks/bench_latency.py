"""The delay from a kernel log line to the heartbeat: from the write of an Xid to the first response that contains it.

The log is a file, which is polled every 50 ms, whereas the device wakes its reader. A line written to the real /dev/kmsg is not the
kernel's own and makes no finding. Xids of a class that makes a finding, each once, on the GPUs in turn, at random moments between
polls; without 79, for which bus and NVML are checked first.
"""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable
from pathlib import Path

from common import fake_host, percentile, spread, table
from gpuwarden.health.xid.catalogue import XIDS, XidClass
from gpuwarden.health.xid.witnesses import FALLEN
from support.daemons import FakeHost, slots

GPUS = 8
LINES = 40
POLL = 0.0005
PATIENCE = 10.0
LIMIT = 100  # ms


def numbers() -> list[int]:
    return [row.xid for row in XIDS.values() if row.klass is not XidClass.RECORD and str(row.xid) != FALLEN][:LINES]


def line(number: int, gpu: int) -> str:
    bus = slots(GPUS)[gpu].removesuffix(".0")
    return f"NVRM: Xid (PCI:{bus}): {number}, pid=1234, name=python, written by a benchmark"


def latencies(host: FakeHost, write: Callable[[str], None]) -> list[float]:
    """Return the milliseconds for each line. Raises TimeoutError if the heartbeat never contains it."""
    chance = random.Random(1)
    with host.daemon() as daemon:
        daemon.wait(lambda: daemon.heartbeat()["sequence"] > 0, "the first pass")
        connection = http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=PATIENCE)
        took = []
        for turn, number in enumerate(numbers()):
            time.sleep(chance.uniform(0.15, 0.35))
            written = time.perf_counter()
            write(line(number, turn % GPUS))
            while f"xid.{number}" not in reasons(connection):
                if time.perf_counter() - written > PATIENCE:
                    raise TimeoutError(f"{PATIENCE:g} s after its line the heartbeat has no Xid {number}")
                time.sleep(POLL)
            took.append((time.perf_counter() - written) * 1e3)
        connection.close()
        return took


def reasons(connection: http.client.HTTPConnection) -> list[str]:
    connection.request("GET", "/heartbeat")
    document: dict[str, list[str]] = json.loads(connection.getresponse().read())
    return document["reasons"]


def row(where: str | Path, took: list[float]) -> list[str]:
    slow = f"{percentile(took, 0.99):.1f}"
    return [str(where), str(len(took)), spread(took, 1), slow, str(sum(seconds >= LIMIT for seconds in took))]


def main() -> None:
    rows = []
    with fake_host(gpus=GPUS) as host:
        rows.append(row("a file", latencies(host, host.kernel_line)))
    head = ("kernel log", "lines", "ms: median (least-most)", "p99 ms", f"lines at or over {LIMIT} ms (0)")
    table(f"Kernel log line to heartbeat, {GPUS} GPUs, heartbeat asked every {POLL * 1e3:g} ms", head, rows)


if __name__ == "__main__":
    main()
