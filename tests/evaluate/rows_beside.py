"""Faults of what a node has beside its GPUs."""

from __future__ import annotations

from evaluate import faults_beside as faults
from evaluate.beside import FABRIC_MANAGER, LOCAL, PERSISTENCED, SHARED
from evaluate.fault_class import FaultClass
from gpuwarden_collectors.host_facts import PluginState

AT_ONCE = (
    FaultClass(name="InfiniBand port down", strike=faults.port_goes_down, expects=("infiniband_down",), about="port", shown="infiniband", grace=120),
    FaultClass(name="InfiniBand adapter gone", strike=faults.adapter_gone, expects=("infiniband_down",), about="port", shown="infiniband", grace=120),
    FaultClass(name="shared file system not mounted", strike=faults.UNMOUNTED, expects=("mount_missing",), about="mount", shown="storage", grace=60),
    FaultClass(name="shared file system hangs", strike=faults.mount_hangs(SHARED), expects=("mount_hung",), about="mount", shown="storage", grace=120),
    FaultClass(name="shared file system: stale handle", strike=faults.STALE, expects=("mount_hung",), about="mount", shown="storage", grace=120),
    FaultClass(name="site check fails", strike=faults.check_reports(PluginState.FAILURE, 2), expects=("plugin_nhc",), about="node", shown="plugin"),
)  # fmt: skip

SLOW = (
    FaultClass(name="InfiniBand port flaps", strike=faults.port_flaps, expects=("infiniband_flapping",), severity="warning", about="port", shown="infiniband", after=1250, lasts=2500, ends=12_000, also=("infiniband_down",)),
    FaultClass(name="InfiniBand port at half rate", strike=faults.port_slow, expects=("infiniband_rate_low",), severity="warning", about="port", shown="infiniband", grace=240),
    FaultClass(name="local disk full", strike=faults.FULL, expects=("disk_full",), severity="warning", about="mount", shown="storage", grace=60),
    FaultClass(name="local disk without inodes", strike=faults.NO_INODES, expects=("disk_full",), severity="warning", about="mount", shown="storage", grace=60),
    FaultClass(name="a file system of nobody's hangs", strike=faults.mount_hangs(LOCAL), expects=("mount_hung",), severity="warning", about="mount", shown="storage", grace=120),
    FaultClass(name="local disk turned read-only", strike=faults.READ_ONLY, expects=("mount_read_only",), severity="warning", about="mount", shown="storage", grace=60),
    FaultClass(name="root turned read-only", strike=faults.mount_changes("/", read_only=True), expects=("mount_read_only",), about="mount", shown="storage", grace=60),
    FaultClass(name="main memory used up", strike=faults.memory_low, expects=("memory_low",), severity="warning", about="node", shown="memory", grace=120),
    FaultClass(name="main memory loses data", strike=faults.memory_loses_data, expects=("memory_ecc_uncorrectable",), about="node", shown="memory"),
    FaultClass(name="job stuck in the kernel", strike=faults.process_sticks("python3"), expects=("process_hung",), severity="warning", about="node", shown="processes", grace=330),
    FaultClass(name="driver's own process stuck", strike=faults.process_sticks("nvidia-modprobe"), expects=("process_hung",), about="node", shown="processes", grace=330),
    FaultClass(name="persistence daemon failed", strike=faults.service_fails(PERSISTENCED), expects=("service_down",), severity="warning", about="service", shown="services", grace=120),
    FaultClass(name="fabric manager failed", strike=faults.service_fails(FABRIC_MANAGER), expects=("service_down",), about="service", shown="services", grace=120),
    FaultClass(name="service restarts for ever", strike=faults.service_restarts(PERSISTENCED), expects=("service_down",), severity="warning", about="service", shown="services", grace=240),
    FaultClass(name="site check warns", strike=faults.check_reports(PluginState.WARNING, 1), expects=("plugin_nhc",), severity="warning", about="node", shown="plugin"),
    FaultClass(name="site check tells nothing", strike=faults.check_tells_nothing, expects=("plugin_failed",), severity="warning", about="plugin", shown="plugin"),
)  # fmt: skip
