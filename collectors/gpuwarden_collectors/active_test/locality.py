"""The CPUs that a GPU is attached to: pinned memory is taken from the NUMA node of the CPU that asks for it."""

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
    """Runs this process on those of its CPUs that are near the GPU: copies of one test are then comparable with those of the next."""
    if near := local_cpus(slot) & os.sched_getaffinity(0):
        os.sched_setaffinity(0, near)
