"""The faults that must be detected: all of them."""

from __future__ import annotations

from dataclasses import replace

from evaluate import rows_beside, rows_dcgm, rows_gpu, rows_links, rows_time, rows_xids
from evaluate.fault_class import FaultClass

CLASSES: tuple[FaultClass, ...] = (
    *rows_gpu.AT_ONCE,
    *rows_xids.AT_ONCE,
    *rows_time.AT_ONCE,
    *rows_beside.AT_ONCE,
    *rows_links.AT_ONCE,
    *(
        replace(row, at_once=False)
        for rows in (rows_gpu, rows_xids, rows_dcgm, rows_beside, rows_links, rows_time)
        for row in rows.SLOW
    ),
)
