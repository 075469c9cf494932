"""Every Xid and SXid that takes a node out by itself, each a fault of its own; those that warn, together."""

from __future__ import annotations

from evaluate import rows_gpu
from evaluate.fault_class import LINE, FaultClass
from evaluate.faults import any_of, any_switch_error, nvlink5, recovery_line, xids
from gpuwarden.health.nvlink.nvlink5_catalogue import NVLINK5_RULES
from gpuwarden.health.xid.catalogue import XIDS, XidClass
from gpuwarden.health.xid.sxid_catalogue import SXIDS

_BY_HAND = {says for row in (*rows_gpu.AT_ONCE, *rows_gpu.SLOW) for says in row.expects}
FAILURES = [n for n, row in sorted(XIDS.items()) if row.klass is XidClass.FAILURE]
WARNINGS = [n for n, row in sorted(XIDS.items()) if row.klass is XidClass.WARNING and not 144 <= n <= 150]
BLIND_DCGM = {119: ("dcgm_impaired.*@*",)}

_NVLINK5 = {klass: [rule for rule in NVLINK5_RULES if rule.klass is klass] for klass in XidClass}

AT_ONCE = (
    *(
        FaultClass(
            name=f"NVLink 5, any rule of {xid} that fails", strike=nvlink5(rules), expects=(f"xid.{xid}",), shown=LINE, models=("B200", "H100")
        )
        for xid in range(144, 151)
        if (rules := [rule for rule in _NVLINK5[XidClass.FAILURE] if rule.xid == xid])
    ),
    FaultClass(name="Xid 154, reset", strike=recovery_line(0x1, "GPU Reset Required"), expects=("gpu_recovery_action",), shown=LINE),
    FaultClass(name="Xid 154, reboot", strike=recovery_line(0x2, "Node Reboot Required"), expects=("gpu_recovery_action",), shown=LINE),
    *(
        FaultClass(
            name=f"Xid {n}", strike=xids(n), expects=(f"xid.{n}",), shown=LINE, also=BLIND_DCGM.get(n, ())
        )
        for n in FAILURES
        if f"xid.{n}" not in _BY_HAND
    ),
    FaultClass(
        name="NVSwitch, any fatal SXid", expects=("sxid.*",), about="switch", shown=LINE,
        strike=any_switch_error([n for n, row in sorted(SXIDS.items()) if row.fatal], fatal=True),
    ),
)  # fmt: skip

SLOW = (
    FaultClass(
        name="NVLink 5, any rule that warns", strike=nvlink5(_NVLINK5[XidClass.WARNING]), expects=("xid.149",), severity="warning",
        shown=LINE, models=("B200",),
    ),
    FaultClass(
        name="NVLink 5, a line that no rule fits", strike=nvlink5(_NVLINK5[XidClass.FAILURE], spoilt=True), expects=("xid.*",),
        severity="warning", shown=LINE, models=("B200",),
    ),
    FaultClass(
        name=f"any of {len(WARNINGS)} Xids that warn", strike=any_of(WARNINGS), expects=("xid.*",), severity="warning", shown=LINE
    ),
    FaultClass(
        name="NVSwitch, any SXid that warns", expects=("sxid.*",), severity="warning", about="switch", shown=LINE,
        strike=any_switch_error([n for n, row in sorted(SXIDS.items()) if not row.harmless], fatal=False),
    ),
)  # fmt: skip
