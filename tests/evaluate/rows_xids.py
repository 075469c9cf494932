"""Every Xid and SXid that takes a node out by itself, each a fault of its own; those that warn, together."""

from __future__ import annotations

from evaluate import rows_gpu
from evaluate.fault_class import LINE, NVSWITCH, FaultClass
from evaluate.faults import any_of, any_switch_error, xids
from gpuwarden.health.sxid_catalogue import SXIDS
from gpuwarden.health.xid_catalogue import XIDS, XidClass

_BY_HAND = {says for row in (*rows_gpu.AT_ONCE, *rows_gpu.SLOW) for says in row.says}
FAILURES = [n for n, row in sorted(XIDS.items()) if row.klass is XidClass.FAILURE]
WARNINGS = [n for n, row in sorted(XIDS.items()) if row.klass is XidClass.WARNING and not 144 <= n <= 150]
BLIND_DCGM = {119: ("dcgm_impaired.*",)}

AT_ONCE = (
    *(
        FaultClass(
            name=f"Xid {n}", strike=xids(n), says=(f"xid.{n}",), shown=LINE, also=BLIND_DCGM.get(n, ())
        )
        for n in FAILURES
        if f"xid.{n}" not in _BY_HAND
    ),
    FaultClass(
        name="NVSwitch, any fatal SXid", says=("sxid.*",), about="switch", shown=LINE, models=NVSWITCH,
        strike=any_switch_error([n for n, row in sorted(SXIDS.items()) if row.fatal], fatal=True),
    ),
)  # fmt: skip

SLOW = (
    FaultClass(
        name=f"any of {len(WARNINGS)} Xids that warn", strike=any_of(WARNINGS), says=("xid.*",), severity="warning", shown=LINE
    ),
    FaultClass(
        name="NVSwitch, any SXid that warns", says=("sxid.*",), severity="warning", about="switch", shown=LINE, models=NVSWITCH,
        strike=any_switch_error([n for n, row in sorted(SXIDS.items()) if not row.fatal], fatal=False),
    ),
)  # fmt: skip
