"""Reasons for which the health of a node is unknown, each with instructions for the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class UnknownReason(NamedTuple):
    meaning: str
    to_do: str


_WAIT = "Wait: it ends by itself, or becomes a finding."

UNKNOWN_REASONS: Mapping[str, UnknownReason] = {
    "starting": UnknownReason(
        "the daemon has only just started: the first reading of the GPUs is not finished", "Wait some seconds."
    ),
    "no_gpu_expected": UnknownReason(
        "no NVIDIA device is expected here: none was ever found, or all are given to virtual machines",
        "Run `lspci -d 10de:`. On a node without GPUs set `inventory.expected_gpus = 0`; with GPUs: load the driver.",
    ),
    "nvml_not_installed": UnknownReason(
        "the NVML library, which comes with the driver, cannot be loaded",
        "Install the NVIDIA driver, or set `collectors.nvml.library`. `ldconfig -p | grep libnvidia-ml` shows where it is.",
    ),
    "nvml_not_answering": UnknownReason(
        "NVML has not responded lately: the last readings are too old to judge by",
        f"{_WAIT} Meanwhile `dmesg -T | grep -iE 'xid|nvrm' | tail` may have the cause.",
    ),
    "driver_not_loaded": UnknownReason(
        "the NVIDIA driver is not loaded; this is normal for a while during a boot or a reload of the driver",
        "If nothing reloads it, run `modprobe nvidia` and read what `dmesg | grep -i nvrm` says. After 2 minutes it is a failure.",
    ),
    "driver_library_mismatch": UnknownReason(
        "NVML and the loaded driver have different versions: nothing can be read until the driver is reloaded",
        "Drain the node, and reboot it when its jobs have ended. New jobs fail until then.",
    ),
    "device_permission": UnknownReason(
        "the daemon has no permission to open the GPUs",
        "Compare `ls -l /dev/nvidia*` with the device rules of gpuwarden's unit. `gpuwarden doctor` names what is missing.",
    ),
    "nvml_unavailable": UnknownReason(
        "NVML as a whole returns an error: no GPU can be read until that ends",
        "Run `timeout 20 nvidia-smi` on the node. If it works, the fault is gpuwarden's: `journalctl -u gpuwarden -n 50`.",
    ),
    "gpu_not_answering": UnknownReason(
        "a GPU does not respond, but not yet for long enough to be called missing or unresponsive: during a reset it does not "
        "respond either",
        _WAIT,
    ),
    "observation_too_old": UnknownReason(
        "the last reading of the GPUs is too old to judge by: the daemon is stuck or its reader hangs",
        "Read `dmesg -T | grep -iE 'xid|nvrm' | tail` and `journalctl -u gpuwarden -n 50`. A driver that hangs: drain, reboot.",
    ),
}
"""By code of the reason."""
