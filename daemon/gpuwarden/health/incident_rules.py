"""Table of causes and their consequences on one component, in addition to `depends_on`.

Codes are those of conditions; `xid.79` is one number, `xid` any. No code is a cause of itself, except where the earlier
of two equal ones is the cause (a test checks this). A failed remapping and the SRAM threshold are no consequence of
anything, since they need another repair than the faults before them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from gpuwarden.health.nvlink.nvlink5 import NVLINK5_XIDS
from gpuwarden.health.xid.sxid_rules import GPU_WITHIN, LOST_WITHIN
from gpuwarden_collectors.dataclass import dataclass


class Where(Enum):
    """The component of a consequence, relative to its cause."""

    SAME_SLOT = auto()  # the same GPU with its links, or the same switch
    OTHER_GPUS = auto()  # of the same NVLink fabric, like the next two
    GPUS = auto()
    SWITCHES = auto()
    NODE = auto()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule by which one finding is the cause of others."""

    cause: str
    """Code of the cause."""
    consequences: tuple[str, ...]
    """Codes of the consequences."""
    where: Where
    """Component of the consequences."""
    within: float
    """Most seconds after the cause."""
    before: float = 15.0
    """Most seconds before the cause: a line is read at once, a reading in one of the next passes."""
    ends: bool = False
    """Consequences end with the cause, since their component needs no repair."""


SILENT = ("gpu_unresponsive", "gpu_readings_lost")
ASKS = ("gpu_recovery_action", "gpu_reset_required", "xid.154")
GSP = ("xid.119", "xid.120", "xid.175")
LINKS = ("nvlink_down", "nvlink_errors", "nvlink_link_errors", "fabric_unhealthy")
LOST = ("xid.79", "gpu_missing")
FABRIC = "xid.149"  # NETIR, which reports a link that went down; other GPUs report the fault as 144 to 148 and 150
FABRIC_XIDS = tuple(f"xid.{number}" for number in sorted(NVLINK5_XIDS - {149}))
PRELUDE = 60.0
"""Seconds between the PCIe errors of a GPU and its Xid 79; one second in field reports."""


def _each(
    causes: Iterable[str], consequences: tuple[str, ...], where: Where, within: float, **more: bool
) -> list[Rule]:
    return [Rule(cause, consequences, where, within, **more) for cause in causes]


RULES: tuple[Rule, ...] = (
    # A GPU is lost: the switches report errors of its links 12 s later (leptonai/gpud, README of its sxid component).
    *_each(("xid.79",), ("gpu_missing", *SILENT, "xid.45", *LINKS, *ASKS), Where.SAME_SLOT, GPU_WITHIN),
    Rule("xid.79", ("pcie_aer_fatal",), Where.SAME_SLOT, PRELUDE, before=PRELUDE, ends=True),
    *_each(LOST, ("sxid",), Where.SWITCHES, LOST_WITHIN, ends=True),
    *_each(LOST, ("xid.74", FABRIC, *FABRIC_XIDS, *LINKS), Where.OTHER_GPUS, LOST_WITHIN),
    # A switch and its ports.
    Rule("sxid", ("sxid",), Where.SAME_SLOT, LOST_WITHIN, before=0.0),
    *_each(("sxid",), ("xid.74", FABRIC, *FABRIC_XIDS, *LINKS), Where.GPUS, LOST_WITHIN),
    # One GPU has a 149; the others have 145, and 45 "caused by previous Xid" (NVIDIA/open-gpu-kernel-modules#1150).
    *_each((FABRIC,), (*FABRIC_XIDS, *LINKS, "xid.45"), Where.GPUS, LOST_WITHIN),
    *_each(("xid.74", *FABRIC_XIDS), (*LINKS, "xid.45"), Where.SAME_SLOT, GPU_WITHIN),
    Rule("nvlink_down", ("nvlink_down",), Where.SAME_SLOT, LOST_WITHIN, before=0.0),
    # 48, 171, 63 and 154 in one second, and the counters of that GPU (a report of 2026-08-10, RTX PRO 6000).
    *_each(
        ("xid.48",),
        ("xid.63", "xid.94", "xid.95", "xid.171", "xid.172", "xid.45", "ecc_uncorrectable", "row_remap_pending"),
        Where.SAME_SLOT,
        GPU_WITHIN,
    ),
    *_each(
        ("xid.94", "xid.95", "xid.140", "xid.171", "xid.172"),
        ("xid.45", "ecc_uncorrectable", "row_remap_pending"),
        Where.SAME_SLOT,
        GPU_WITHIN,
    ),
    *_each(("xid.63",), ("row_remap_pending",), Where.SAME_SLOT, GPU_WITHIN),
    # The GPU system processor (GSP) stopped.
    *_each(GSP, (*SILENT, "xid.45"), Where.SAME_SLOT, GPU_WITHIN),
    *_each(GSP, ("driver_unresponsive",), Where.NODE, GPU_WITHIN),
    *_each(("xid",), ASKS, Where.SAME_SLOT, LOST_WITHIN),
)
