"""What can be configured about reading NVML: the keys of `[collectors.nvml]`, and the two of `--simulate`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NvmlOptions:
    """Durations in seconds. `library` empty: the loader finds it. `gpm`: read the performance monitoring of Hopper and later.

    `in_full`: what takes long is read of all GPUs in the first pass, not of one after the other (for a command of one pass).
    `simulate`: that many GPUs of our own, 0 for real ones. `simulate_dir` holds the injected faults (`faults.json`);
    without it nothing can be injected.
    """

    enabled: bool = True
    interval: float = 5.0
    deadline: float = 10.0
    init_deadline: float = 60.0
    library: str = ""
    gpm: bool = True
    in_full: bool = False
    simulate: int = 0
    simulate_dir: str = ""
