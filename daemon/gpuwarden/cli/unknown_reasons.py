"""The reasons for unknown health, as text for people."""

from __future__ import annotations

UNKNOWN_REASONS = {
    "starting": "the daemon has only just started: the first reading of the GPUs is not finished",
    "no_gpu_expected": "no NVIDIA device is expected here: none was ever found, or all are given to virtual machines; on a "
    "node without GPUs set inventory.expected_gpus = 0",
    "nvml_not_installed": "the NVML library, which comes with the driver, cannot be loaded",
    "nvml_not_answering": "NVML has not responded lately: the last readings are too old to judge by",
    "driver_not_loaded": "the NVIDIA driver is not loaded; this is normal for a while during a boot or a reload of the driver",
    "library_mismatch": "NVML and the loaded driver have different versions: nothing can be read until the driver is "
    "reloaded",
    "no_permission": "the daemon has no permission to open the GPUs",
    "nvml_fails": "NVML as a whole returns an error: no GPU can be read until that ends",
    "gpu_not_answering": "a GPU does not respond, but not yet for long enough to be called missing or unresponsive: during a "
    "reset it does not respond either",
    "observation_too_old": "the last reading of the GPUs is too old to judge by: the daemon is stuck or its reader hangs",
}
"""Why the health of a node is unknown."""
