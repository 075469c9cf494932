"""Faults of single NVLinks, ports and adapters, of readings, and of lines of the kernel log besides Xids."""

from __future__ import annotations

from evaluate import faults_links as faults
from evaluate.fault_class import LINE, FaultClass
from gpuwarden_collectors.event_facts import LineKind

AT_ONCE = (
    FaultClass(name="adapter's firmware counts no more", strike=faults.firmware_dies(LineKind.ADAPTER_SILENT), expects=("adapter_failed",), about="adapter", shown=LINE, grace=35, ends=None),
    FaultClass(name="adapter reports a hardware error", strike=faults.firmware_dies(LineKind.ADAPTER_HARDWARE), expects=("adapter_failed",), about="adapter", shown=LINE, grace=35, ends=None),
    FaultClass(name="GPU loses two readings", strike=faults.readings_lost, expects=("gpu_readings_lost",), grace=125),
)  # fmt: skip

SLOW = (
    FaultClass(name="processor stuck in the kernel", strike=faults.lockups(""), expects=("soft_lockup",), severity="warning", about="node", shown=LINE, after=60, lasts=900),
    FaultClass(name="driver slows down", strike=faults.driver_slows_down, expects=("driver_slow",), severity="warning", about="node", grace=610, lasts=120),
    FaultClass(name="NVMe drive gone", strike=faults.drive_gone, expects=("nvme_failed.*",), severity="warning", about="node", shown=LINE, ends=None),
    FaultClass(name="GPU's system processor times out, its Xids lost", strike=faults.reset_advised, expects=("gsp_not_answering",), severity="warning", shown=LINE),
    FaultClass(name="one NVLink recovers again and again", strike=faults.link_recovers, expects=("nvlink_link_errors",), severity="warning", about="link", after=1330, grace=60, ends=None),
    FaultClass(name="no NVLink of a GPU ever came up", strike=faults.links_never_up, expects=("nvlink_never_up",), severity="warning", grace=630),
    FaultClass(name="port with 20 symbol errors a second", strike=faults.symbol_errors, expects=("infiniband_errors",), severity="warning", about="port", shown="infiniband", after=600, grace=130, lasts=600, ends=7200),
    FaultClass(name="adapter on half its lanes", strike=faults.adapter_loses_lanes, expects=("adapter_pcie_degraded",), severity="warning", about="adapter", shown="infiniband", grace=240),
)  # fmt: skip
