"""Everything that can be wrong for a while, one row each. The judge interprets the rows; nothing else knows a code.

`rise`: seconds a condition must be seen before it is a finding. `fall`: seconds it must not be seen before the
finding ends. `latch`: what else must happen for it to end. `depends_on`: while one of these holds for the same GPU or
for the node, this one is a consequence and stays quiet.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuwarden.health.model import Advice, Latch, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """`scope` is the kind of subject: node, gpu, link or switch. `severity` is the worst it can have."""

    code: str
    scope: str
    severity: Severity
    title: str
    advice: Advice
    rise: float = 0.0
    fall: float = 0.0
    latch: Latch = Latch.NONE
    depends_on: tuple[str, ...] = ()
    explanation: str = ""
    provenance: str = ""


W, F = Severity.WARNING, Severity.FAILURE

_ROWS: tuple[Condition, ...] = (
    Condition(code="gpu_missing", scope="gpu", severity=F, title="GPU is missing", advice=Advice.INSPECT_HARDWARE),
    Condition(code="ledger_unavailable", scope="node", severity=W, title="The ledger cannot be written", advice=Advice.FIX_CONFIGURATION),
    Condition(code="xid", scope="gpu", severity=F, title="Xid", advice=Advice.RESET_GPU),
)

CONDITIONS: dict[str, Condition] = {row.code: row for row in _ROWS}
