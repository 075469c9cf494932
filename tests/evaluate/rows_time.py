"""Faults that only time shows, or that come at a bad time: repeats, lemons, reboots in their midst, an overrun log."""

from __future__ import annotations

from evaluate import faults
from evaluate.fault_class import LINE, FaultClass
from evaluate.faults import bursts, repeated

MMU = "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC0 GPCCLIENT_T1_8 faulted @ 0x7f3a_10000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
SM = "Graphics SM Warp Exception on (GPC 3, TPC 1, SM 0): Illegal Instruction Encoding"

AT_ONCE = (
    FaultClass(name="Xid 95, reboot in its midst", strike=faults.struck_and_rebooted(95), expects=("xid.95",), shown=LINE, after=320),
    FaultClass(name="Xid 95 at the end of an overrun log", strike=faults.log_overrun(95), expects=("xid.95",), shown=LINE, after=0.1),
)  # fmt: skip

SLOW = (
    FaultClass(name="NVLink error again and again (74)", strike=repeated(74, 12, 300), expects=("xid.74",), shown=LINE, after=299),
    FaultClass(name="page faults on one GPU, hour after hour (31)", strike=bursts(31, 3, 3600, MMU), expects=("xid.31",), severity="warning", shown=LINE, after=7199, ends=90_000),
    FaultClass(name="exceptions of one TPC, hour after hour (13)", strike=bursts(13, 3, 3600, SM), expects=("xid.13",), severity="warning", shown=LINE, after=7199, ends=90_000),
    FaultClass(name="Xid 46 after each of three reboots", strike=faults.rebooted_in_vain(46, 3), expects=("xid.46",), shown=LINE, lasts=12_000),
    FaultClass(name="Xid 46 after each of three resets", strike=faults.reset_in_vain(46, 3, 600.0), expects=("xid.46",), shown=LINE, lasts=2_500),
    FaultClass(name="row remapping pending for a week", strike=faults.pending_for_a_week, expects=("row_remap_overdue",), after=604_860, also=("row_remap_pending",)),
    FaultClass(name="lemon: a failure every other day", strike=faults.weeks_of_failures(46, 3), expects=("lemon_node",), severity="warning", about="node", shown=LINE, after=380_000, ends=None, also=("xid.46",)),
)  # fmt: skip
