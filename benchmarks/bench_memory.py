"""Whether the judge's memory stays flat: 30 days of a busy node, simulated.

Each day adds what fills memory: new Xids and SXids, storms, flapping readings, counters that grow, GPUs that go away, a
failure that is reset, and every few days a reboot, a replaced board and a checkpoint. Printed for each fifth day: how many
entries each part of the state holds, its size as Python objects (all that only the state refers to), and all memory
allocated in this process. The last ten days are compared with the ten before.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable, Sized
from dataclasses import fields, is_dataclass, replace
from random import Random

from common import table
from gpuwarden.health.memory import State
from gpuwarden.health.model import EventKind
from gpuwarden_collectors.event_facts import GpuResetEvent, SxidEvent
from support.hosts import Host, slot

GPUS, DAYS, SHOWN = 8, 30, 5
PASSES = 80  # a day; some of them close together, most of them far apart
PARTS: tuple[tuple[str, Callable[[State], Sized]], ...] = (
    ("tracks", lambda state: state.tracks),
    ("records", lambda state: state.records),
    ("windows", lambda state: state.moments.windows),
    ("unpaired", lambda state: state.moments.unpaired),
    ("raises", lambda state: state.raises),
    ("repairs", lambda state: state.repairs),
    ("lemons", lambda state: state.lemons),
    ("resets", lambda state: state.resets),
    ("pins", lambda state: state.pins),
)


def size(value: object, seen: set[int]) -> int:
    """Bytes of `value` and of all that it refers to, each object once."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    total = sys.getsizeof(value)
    if isinstance(value, dict):
        return total + sum(size(k, seen) + size(v, seen) for k, v in value.items())
    if isinstance(value, tuple | list | frozenset | set):
        return total + sum(size(item, seen) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return total + sum(size(getattr(value, field.name), seen) for field in fields(value))
    return total


def day(host: Host, dice: Random, number: int) -> None:
    for n in range(GPUS):
        counted = dice.randint(1, 50_000)
        host.change(n, ecc_corrected_volatile=number * 50_000 + counted, energy_mj=number * 10_000_000 + counted)
    for _ in range(PASSES):
        gpu = dice.randrange(GPUS)
        host.change(gpu, remapped_rows_failure=dice.randint(0, 1), pcie_replays=dice.randint(0, 10**6))
        lines = [host.xid(gpu, dice.randint(1, 24))] * dice.choice((0, 0, 1, 1, 100))
        switch = SxidEvent(at=host.now, slot="0000:05:00.0", sxid=dice.randint(20_000, 20_020), fatal=False)
        host.step(*lines, *([switch] if dice.random() < 0.1 else []))
        host.uptime += dice.choice((5.0, 5.0, 15.0, 600.0, 900.0))
    mishaps(host, dice, number)
    host.uptime += 600.0
    host.run(60)
    host.ledger.clear()


def mishaps(host: Host, dice: Random, number: int) -> None:
    gpu = dice.randrange(GPUS)
    gone = host.gpus.pop(gpu)
    host.run(60)
    host.gpus[gpu] = gone
    host.step(host.xid(gpu, 95))
    host.record_event(EventKind.EXCLUDED)
    host.step(GpuResetEvent(at=host.now, slot=slot(gpu), ok=True))
    if number % 3 == 0:
        host.reboot()
    if number % 12 == 0:
        host.gpus[gpu] = replace(gone, uuid=f"GPU-of-day-{number}")
    if number % 4 == 0:
        host.checkpointed()


def shown(number: int, state: State, kib: float, allocated: float) -> list[str]:
    return [str(number), *(str(len(part(state))) for _, part in PARTS), f"{kib:.0f}", f"{allocated:.1f}"]


def main() -> None:
    host, dice = Host(GPUS), Random(1)
    host.step()
    tracemalloc.start()
    rows, sizes = [], []
    for number in range(1, DAYS + 1):
        day(host, dice, number)
        gc.collect()
        kib, allocated = size(host.state, set()) / 1024, tracemalloc.get_traced_memory()[0] / 2**20
        sizes.append(kib)
        if number == 1 or number % SHOWN == 0:
            rows.append(shown(number, host.state, kib, allocated))
    table(
        f"The judge's memory over {DAYS} days of {GPUS} GPUs, in entries",
        ("day", *(name for name, _ in PARTS), "KiB of state", "MiB allocated"), rows,
    )  # fmt: skip
    before, last = max(sizes[-20:-10]), max(sizes[-10:])
    print(f"largest state of the last ten days against the ten before: {last / before:.2f}x")


if __name__ == "__main__":
    main()
