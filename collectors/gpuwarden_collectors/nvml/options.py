"""What can be configured about reading NVML: the keys of `[collectors.nvml]`, and the two of `--simulate`."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwarden_collectors.options import bounded, internal, searched


@dataclass(frozen=True, slots=True)
class NvmlOptions:
    """NVML, the library of the NVIDIA driver: the GPUs and what they report."""

    enabled: bool = True
    """Read it."""
    interval: float = bounded(5.0, 0.1, 30.0, "a GPU that is gone must be seen to be gone within 30s")
    """Time between two passes. It is also how often the node is judged."""
    deadline: float = bounded(10.0, 0.1, 60.0, "a driver that hangs is reported after two missed deadlines")
    """Time for a pass, after which the worker is ended."""
    init_deadline: float = bounded(60.0, 0.1, 600.0, "the node is unknown until the library is initialised")
    """Time for the first pass, which loads the library. No shorter than `deadline`."""
    library: str = searched()
    """The library's file, or several that are tried in order. Empty: where the loader finds it, else where GKE and the driver container of
    the GPU Operator have it ([kubernetes.md](kubernetes.md#where-the-drivers-library-is)).
    """
    gpm: bool = True
    """Read the performance monitoring of Hopper and later."""
    in_full: bool = internal(default=False)
    """What takes long is read of all GPUs in the first pass, not of one after the other (for a command of one pass)."""
    simulate: int = internal(0)
    """That many simulated GPUs; 0 for real ones."""
    simulate_dir: str = internal("")
    """The folder of the injected faults (`faults.json`); without it nothing can be injected."""
