"""The reasons for unknown health, as text for people."""

from __future__ import annotations

UNKNOWN_REASONS = {
    "starting": "the daemon has only just started: the first reading of the GPUs is not finished",
    "no_gpu_expected": "no NVIDIA device is expected here: none was ever seen, or all are given to virtual machines; on a "
    "node without GPUs set inventory.expected_gpus = 0",
    "nvml_not_installed": "the NVML library, which comes with the driver, cannot be loaded",
    "nvml_not_answering": "NVML has not responded lately: the last readings are too old to judge by",
    "driver_not_loaded": "the NVIDIA driver is not loaded; a reload or a slow boot may still bring it",
    "library_mismatch": "NVML and the loaded driver have different versions: nothing can be read until the driver is "
    "reloaded",
    "no_permission": "the daemon has no permission to open the GPUs",
    "nvml_fails": "NVML as a whole answers with an error: nothing can be read of the GPUs until it does not",
    "gpu_not_answering": "a GPU does not respond, but not yet for long enough to be called missing or unresponsive: a reset "
    "of it looks the same",
    "observation_too_old": "the last reading of the GPUs is too old to judge by: the daemon is stuck or its reader hangs",
}
"""Why the health of a node is unknown."""
