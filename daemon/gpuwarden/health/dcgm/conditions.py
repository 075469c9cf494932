"""Rows of the table of conditions for DCGM itself, and for faults that only DCGM reports.

An incident whose code agrees with a gpuwarden condition belongs to that condition. Every other DCGM code is a separate
condition, `dcgm_` and the name of the code, whose row is generated from the table of codes.
"""

from __future__ import annotations

import math

from gpuwarden.health.condition import NO_DRIVER, NO_GPU, Condition, F, W
from gpuwarden.health.dcgm.catalogue import DcgmCode, dcgm_named, own_code
from gpuwarden.health.model import Advice, Health

_SILENCE = "Its findings stay as they are meanwhile; what only DCGM can see is not seen."

DCGM_CONDITIONS: tuple[Condition, ...] = (
    Condition(
        code="dcgm_unresponsive", scope="node", severity=W, advice=Advice.RESTART_SERVICE, rise=45, fall=30,
        title="DCGM is here but does not answer",
        why=f"The engine died, or hangs: four passes in a row had no answer. {_SILENCE} Without any engine there is no finding, nor within "
        "ten minutes of a boot of one that has not answered yet.",
        source="a hung DCGM engine blocks each call for 60 s (measured, 4.6); dcgm-exporter#164 (frozen values, nothing in the logs)",
        depends_on=NO_DRIVER,
    ),
    Condition(
        code="dcgm_impaired", scope="node", severity=W, advice=Advice.RESTART_SERVICE, rise=60, fall=60,
        title="DCGM answers, and sees less than it seems to",
        why="It lists no GPU and calls that healthy; the watches of GPUs are off; a check failed in part; or it reads "
        f"nothing any more, as after an Xid 119. {_SILENCE}",
        source="DCGM 4.6 (measured); dcgm-exporter#744 (an engine started before the driver stays empty for ever)",
        depends_on=NO_DRIVER,
    ),
    Condition(
        code="dcgm_disagrees", scope="gpu", severity=W, advice=Advice.RESTART_SERVICE, rise=120, fall=60,
        title="Only one of NVML and DCGM has this GPU",
        why="The driver answers for the GPU and DCGM has lost it or does not list it, or the other way round, for two "
        "minutes. What DCGM alone can see of that GPU is not seen.",
        source="DCGM 4.6: the incidents of a lost GPU vanish and the health check passes (measured)", depends_on=NO_GPU,
    ),
)  # fmt: skip


def dcgm_condition(code: str) -> Condition | None:
    """Return the row of a condition such as dcgm_faulty_memory; for an unknown code, dcgm_code_200."""
    row = dcgm_named(code)
    return None if row is None or own_code(row) != code else _made(row)


def _made(row: DcgmCode) -> Condition:
    return Condition(
        code=own_code(row),
        scope="gpu",
        severity=F if row.worst is Health.FAILURE else W,
        title=row.meaning,
        advice=row.advice,
        why=f"Code {row.code} of DCGM's health checks ({row.name}; the vendor: {row.severity}){row.note and ': '}{row.note}.",
        source=row.provenance,
        rise=60.0 if row.lasts == math.inf else row.lasts,
        fall=60.0,
        depends_on=NO_GPU,
    )
