"""When a node comes back that was taken out for a failure: what `ends_when` does not say, since that is about the finding alone."""

from __future__ import annotations

from gpuwarden.health.model import Advice, Severity
from gpuwarden.policy.way_back import NEEDS_PERSON

BY_ITSELF = "this finding has ended and the node has been clean for a while: by itself (`policy.restore_passes`, `policy.restore_after`)"
BY_PERSON = "it was repaired and somebody types `gpuwarden restore` on it: the fault may stay when its signs go away"


def comes_back_when(severity: Severity, advice: Advice, *, shadow: bool = False) -> str:
    """Return when a node that is out for this finding comes back; "" for a finding that takes no node out."""
    if severity is not Severity.FAILURE or shadow:
        return ""
    return BY_PERSON if advice in NEEDS_PERSON else BY_ITSELF
