"""Which GPUs a command line names."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwarden_collectors.facts import GpuFacts, slot_of


class UnknownGpu(Exception):  # noqa: N818 - of who gave the name
    """No GPU has this name. The message lists those that are there."""


def selected(gpus: Sequence[GpuFacts], names: Sequence[str]) -> tuple[GpuFacts, ...]:
    """The named GPUs, each once, in NVML's order.

    `names`: UUIDs, indices or PCI addresses in any spelling; without any, all GPUs. Raises UnknownGpu.
    """
    if not names:
        return tuple(gpus)
    chosen = {_index(gpus, name) for name in names}
    return tuple(gpu for gpu in gpus if gpu.index in chosen)


def _index(gpus: Sequence[GpuFacts], name: str) -> int:
    for gpu in gpus:
        if name in (gpu.uuid, str(gpu.index)) or _slot(name) == gpu.slot:
            return gpu.index
    there = ", ".join(f"{gpu.index} ({gpu.slot})" for gpu in gpus) or "none"
    raise UnknownGpu(f"no GPU {name[:60]!r} here; there are {there}")


def _slot(name: str) -> str | None:
    try:
        return slot_of(name)
    except ValueError:
        return None
