"""Conditions for those who repair nodes: a type for each advice, by `[kubernetes.conditions]`. Pure.

A repair may end every job of the node. So a condition is bad only while gpuwarden has excluded the node for a failure,
after the breaker has counted twice, and only for a failure with that advice.
"""

from __future__ import annotations

from gpuwarden.features.kubernetes.options import KubernetesOptions
from gpuwarden.health.model import Finding, Health, Severity
from gpuwarden.policy.model import Why
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.status import detail
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

LONGEST = 1_000  # characters of a message
_GOOD = {"True": "False", "False": "True"}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition to write."""

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RepairCondition:
    """The condition of a type. `bad`: its status while one of these advices requires a repair."""

    kind: str
    bad: str
    advices: frozenset[str]

    def condition(self, snapshot: Snapshot, now: Stamp) -> Condition:
        """Return the present condition. An unobserved node is Unknown, so that nobody repairs it for silence."""
        asking = [finding for finding in snapshot.verdict.findings if self._asks(finding)] if _out(snapshot) else []
        if asking:
            text = "; ".join(
                f"{finding.title.rstrip('.')} ({finding.key}): {detail(finding)}".rstrip(": ") for finding in asking
            )
            return Condition(self.bad, asking[0].key.code, text[:LONGEST])
        if snapshot.health(now) is Health.UNKNOWN:
            return Condition("Unknown", "unknown", "the state of this node is unknown")
        return Condition(_GOOD[self.bad], "no_repair", f"no failure has the advice {' or '.join(sorted(self.advices))}")

    def _asks(self, finding: Finding) -> bool:
        return finding.severity is Severity.FAILURE and not finding.shadow and finding.advice in self.advices


def repair_conditions(options: KubernetesOptions) -> list[RepairCondition]:
    """Return the conditions that this configuration keeps, one for each type."""
    advices: dict[tuple[str, str], set[str]] = {}
    for advice, kind, bad in options.conditions.by_advice():
        advices.setdefault((kind, bad), set()).add(advice)
    return [RepairCondition(kind, bad, frozenset(advice_names)) for (kind, bad), advice_names in advices.items()]


def _out(snapshot: Snapshot) -> bool:
    """Return True if the node is excluded for a failure and no action on that is pending.

    While the server does not answer, and before the first read, the ledger counts: a repair that waits must not begin
    again.
    """
    enforced = snapshot.enforced
    done = all(wanted.intent.actuator != "kubernetes" for wanted in enforced.pending)
    return done and ("kubernetes", Why.FAILURE.value) in enforced.excluded
