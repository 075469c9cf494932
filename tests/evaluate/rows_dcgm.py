"""Faults of DCGM's engine, and faults of a GPU that DCGM alone shows."""

from __future__ import annotations

from evaluate import faults_beside as faults
from evaluate.engine import ALL_SYSTEMS, FAIL, MEMORY, POWER, WARN
from evaluate.fault_class import NEW_DRIVER, FaultClass
from gpuwarden_collectors.dcgm.facts import DcgmProblemKind

SLOW = (
    FaultClass(name="DCGM's engine hangs", strike=faults.engine_hangs, expects=("dcgm_unresponsive",), severity="warning", about="node", shown="dcgm", grace=45),
    FaultClass(name="DCGM's engine dies", strike=faults.engine_dies, expects=("dcgm_unresponsive",), severity="warning", about="node", shown="dcgm", grace=45),
    FaultClass(name="DCGM's engine has no GPUs", strike=faults.engine_empty, expects=("dcgm_impaired*",), severity="warning", about="node", shown="dcgm", grace=120),
    FaultClass(name="DCGM's engine reads nothing", strike=faults.engine_reads_nothing, expects=("dcgm_impaired*",), severity="warning", about="node", shown="dcgm", grace=60),
    FaultClass(name="DCGM's watches are off", strike=faults.engine_impaired(DcgmProblemKind.NOT_WATCHED), expects=("dcgm_impaired*",), severity="warning", about="node", shown="dcgm", grace=60),
    FaultClass(name="GPU lost by DCGM alone", strike=faults.engine_loses_gpu, expects=("dcgm_disagrees",), severity="warning", shown="dcgm", grace=120),
    FaultClass(name="DCGM: memory beyond repair (52)", strike=faults.engine_reports(MEMORY, FAIL, 52), expects=("dcgm_faulty_memory",), shown="dcgm", grace=60),
    FaultClass(name="DCGM: 512 remapped rows (132)", strike=faults.engine_reports(MEMORY, WARN, 132), expects=("dcgm_uncorrectable_row_remap_limit",), severity="warning", shown="dcgm", grace=60),
    FaultClass(name="DCGM: power unreadable (11)", strike=faults.engine_reports(POWER, WARN, 11), expects=("dcgm_power_unreadable",), severity="warning", shown="dcgm", grace=120),
    FaultClass(name="DCGM: IMEX unhealthy (122)", strike=faults.imex_unhealthy, expects=("dcgm_imex_unhealthy",), severity="warning", about="node", shown="dcgm", after=60, grace=120, models=NEW_DRIVER),
    FaultClass(name="DCGM: a code that nobody described", strike=faults.engine_reports(ALL_SYSTEMS, FAIL, 999), expects=("dcgm_code_999",), severity="warning", shown="dcgm", grace=60),
    FaultClass(name="Xid 95 that DCGM alone has", strike=faults.engine_alone_has_xid(95), expects=("xid.95",), shown="dcgm"),
)  # fmt: skip
