"""The CPUs local to a GPU. Pinned memory comes from the NUMA node of the CPU that allocates it."""

from __future__ import annotations

import os
from contextlib import suppress

from gpuwarden_collectors.facts import slot_of
from gpuwarden_collectors.host_files import text_or_empty

_CPUS_MOST = 4096


def local_cpus(slot: str, sys: str = "/sys") -> set[int]:
    """Returns the CPUs that the kernel lists as local to this PCI address; empty if it lists none."""
    cpus: set[int] = set()
    for part in text_or_empty(f"{sys}/bus/pci/devices/{slot_of(slot)}/local_cpulist").split(","):
        first, _, last = part.partition("-")
        with suppress(ValueError):
            cpus.update(range(int(first), min(int(last or first), _CPUS_MOST) + 1))
    return cpus


def stay_near(slot: str) -> None:
    """Restricts this process to CPUs local to the GPU, so that copy speeds of different tests are comparable."""
    if near := local_cpus(slot) & os.sched_getaffinity(0):
        os.sched_setaffinity(0, near)
