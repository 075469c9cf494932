"""The options of the NVML collector: the keys of `[collectors.nvml]`, and the values of `--simulate`."""

from __future__ import annotations

from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.options import bounded, internal, searched


@dataclass(frozen=True, slots=True)
class NvmlOptions:
    """NVML, the library of the NVIDIA driver: which GPUs there are, and their readings."""

    enabled: bool = True
    """Read this source."""
    interval: float = bounded(5.0, 0.1, 30.0, "a missing GPU must be detected within 30s")
    """Time between two passes. The node is judged as often."""
    deadline: float = bounded(10.0, 0.1, 60.0, "a driver that hangs is reported after two missed deadlines")
    """Time limit of a pass. A worker process that exceeds it is ended."""
    init_deadline: float = bounded(60.0, 0.1, 600.0, "the node is unknown until the library is initialised")
    """Time limit of the first pass, which loads the library and initialises the GPUs. Not shorter than `deadline`."""
    library: str = searched()
    """Path of the library, or several paths, tried in order. Empty: where the loader finds it, else where GKE and the driver container of
    the GPU Operator have it ([kubernetes.md](../use/kubernetes.md#where-the-drivers-library-is)).
    """
    gpm: bool = True
    """Read GPU performance monitoring (GPM), which Hopper and later GPUs have."""
    in_full: bool = internal(default=False)
    """What takes long is read of all GPUs in the first pass, not of one after the other (for a command of one pass)."""
    simulate: int = internal(0)
    """That many simulated GPUs; 0 for real ones."""
    simulate_dir: str = internal("")
    """The folder of the injected faults (`faults.json`); without it nothing can be injected."""
