"""`gpuwarden nvhcd` while other users' clients open HTTP/2 streams and reset them: its memory, and the time of a healthy client.

A response time is divided by one of the same client before the flood: on few cores the attackers take most of it.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import percentile, spread, table
from support.nvhcd import asked, resets
from support.responders import Activated, activated, marker, memory, unix, verdict, waited

SECONDS = 15.0
QUIET = 5.0
CONNECTIONS = (1, 20)
NOBODY = 65534
WANTED = 32  # MiB
PATIENCE = 10.0


async def answers(path: Path, seconds: float, process: int) -> tuple[list[float], int, int]:
    """Seconds of each answer, how many failed, and the most memory in KiB."""
    took, failed, most = [], 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        begun = time.monotonic()
        try:
            await asked(path, patience=PATIENCE)
            took.append(time.monotonic() - begun)
        except Exception:  # noqa: BLE001 - any client's failure is one
            failed += 1
        most = max(most, memory(process)["Rss"])
        await asyncio.sleep(0.02)
    return took, failed, most


def row(when: str, result: tuple[Sequence[float], int, int], usual: float, wanted: str = "") -> list[str]:
    took, failed, most = result
    ratios = [seconds / usual for seconds in took]
    times = [spread(ratios, 1), f"{percentile(ratios, 0.99):.1f}"] if ratios else ["-", "-"]
    return [when, f"{most / 1024:.1f}", wanted, *times, str(len(took)), str(failed)]


def measured(service: Activated, path: Path, uid: int) -> list[list[str]]:
    waited(lambda: "node health check listening" in service.log(), "nvhcd")
    assert service.process is not None
    process = service.process.pid
    before = asyncio.run(answers(path, QUIET, process))
    usual = percentile(before[0], 0.5)
    rows = [row("before", before, usual)]
    for connections in CONNECTIONS:
        with resets(path, connections, uid):
            flooded = asyncio.run(answers(path, SECONDS, process))
        rows.append(row(f"resets from {connections}", flooded, usual, f"<= {WANTED}"))
        rows.append(row("afterwards", asyncio.run(answers(path, QUIET, process)), usual))
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gw-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        path = folder / "nvhcd.sock"
        verdict(folder, "failure", fresh_for=100_000)
        marker(folder, "nvhcd")
        listener = unix(path)
        path.chmod(0o666)
        with activated(listener, "nvhcd", "--run-dir", folder, folder=folder) as service:
            rows = measured(service, path, NOBODY if os.geteuid() == 0 else os.geteuid())
    head = ("when", "most RSS MiB", "wanted", "answer, ratio to the median before", "p99", "answered", "failed")
    table(f"nvhcd under rapid resets of {SECONDS:.0f} s", head, rows)


if __name__ == "__main__":
    main()
