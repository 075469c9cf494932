"""Text on when a node that was excluded for a failure is restored. `ends_when` concerns only the finding."""

from __future__ import annotations

from gpuwarden.health.model import Advice, Severity
from gpuwarden.policy.way_back import NEEDS_PERSON

BY_ITSELF = "this finding has ended and the node has been clean for a while: by itself (`policy.restore_passes`, `policy.restore_after`)"
BY_PERSON = "it was repaired and an operator runs `gpuwarden restore`: the fault can remain when its symptoms end"


def comes_back_when(severity: Severity, advice: Advice, *, shadow: bool = False) -> str:
    """Return when a node excluded for this finding is restored; "" for a finding that does not exclude."""
    if severity is not Severity.FAILURE or shadow:
        return ""
    return BY_PERSON if advice in NEEDS_PERSON else BY_ITSELF
