"""The input of policy, and what follows from it without a decision: why the node should be excluded, whether it is
busy, and who excludes it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from typing import Any

from gpuwarden.health.model import Finding, Severity, Verdict
from gpuwarden.policy import reasons
from gpuwarden.policy.model import Flag, NodeState, Owner, Settings, Why
from gpuwarden.policy.notices import imminent
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

CONFIRMED_WITHIN = 60.0
"""Seconds that a remembered failure has to be confirmed in, before `on_unknown` may exclude a node that has no other
one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The input of a decision. `sequence` grows with each NVML pass that observed; `ready`: GPUs and PCI bus were read,
    and the expected inventory is known.

    `remembered`: the ledger was folded into the state. `node_states`: by actuator, the last read, if there was one.
    """

    verdict: Verdict
    sequence: int
    ready: bool
    boot_id: str
    instance: str = ""
    remembered: bool = True
    actuators: tuple[str, ...] = ()
    node_states: Mapping[str, NodeState] = field(default_factory=dict)
    features: Mapping[str, Any] = field(default_factory=dict)
    """By feature, additional input for its requirement."""


@dataclass(frozen=True, slots=True)
class Want:
    why: Why
    reason: str
    force: bool = False


def wanted(state: PolicyState, seen: Situation, settings: Settings, now: Stamp) -> Want | None:
    """Return why this node should be excluded, or None. Precedence: operator order, termination notice, failure."""
    if state.order is not None:
        return Want(Why.OPERATOR, state.order.reason, force=True)
    if imminent(state.notices, settings.horizon, now) is not None:
        return Want(Why.TERMINATION, reasons.termination(seen.boot_id, seen.instance))
    if findings := failing(state, seen.verdict):
        gpus = {gpu.slot: gpu for gpu in seen.verdict.gpus}
        return Want(Why.FAILURE, reasons.failure(findings, gpus, seen.verdict.domain))
    after, since = settings.unknown_after, state.unknown_since
    if unconfirmed(state, seen.verdict):
        after = max(after, CONFIRMED_WITHIN)
    if settings.on_unknown == "exclude" and since is not None and now.boottime - since.boottime >= after:
        return Want(Why.FAILURE, reasons.unknown(seen.verdict.unknown[:1] or ("not_confirmed",), seen.verdict.domain))
    return None


def failing(state: PolicyState, verdict: Verdict) -> list[Finding]:
    """Failures to act on: confirmed since the daemon started, not in shadow, not overridden by `gpuwarden restore --force`."""
    return [finding for finding in live(state, verdict) if finding.confirmed]


def unconfirmed(state: PolicyState, verdict: Verdict) -> list[Finding]:
    """Failures remembered from before the daemon started, while none is confirmed. Policy then treats the node as
    unknown.
    """
    failures = live(state, verdict)
    return [] if any(finding.confirmed for finding in failures) else failures


def live(state: PolicyState, verdict: Verdict) -> list[Finding]:
    """Failures that keep the node out of scheduling: confirmed, or remembered from before the daemon started."""
    return [finding for finding in _failures(verdict) if finding.key not in state.overridden]


def overridden(state: PolicyState, verdict: Verdict) -> list[Finding]:
    """Active failures that do not exclude the node, because an operator overrode them."""
    return [finding for finding in _failures(verdict) if finding.key in state.overridden]


def _failures(verdict: Verdict) -> Iterator[Finding]:
    return (finding for finding in verdict.findings if finding.severity is Severity.FAILURE and not finding.shadow)


def occupied(node_states: Mapping[str, NodeState], *, gpus_used: bool) -> str:
    """Why the node is busy; "" if it is not. Uses the scheduler's job list if there is one, else the processes on
    the GPUs.
    """
    if away := [name for name, state in node_states.items() if not state.reachable]:
        return f"{', '.join(away)} cannot be asked which jobs are here"
    asked = {name: state for name, state in node_states.items() if state.empty is not None}
    for name, state in asked.items():
        if state.schedulable:
            return f"{name} may start jobs here ({state.state})"
        if not state.empty:
            return f"{name} has jobs here ({state.state}), which must end first"
    return "processes use the GPUs, and must end first" if not asked and gpus_used else ""


def excluded(
    state: PolicyState,
    actuators: Collection[str],
    node_states: Mapping[str, NodeState],
    last: Mapping[str, NodeState],
) -> Iterator[tuple[str, str]]:
    """Exclusions in force, as (actuator, owner): `failure`, `termination` or `operator` for ours, otherwise `foreign`,
    or `maintenance` if the scheduler reports maintenance, during which gpuwarden writes nothing.

    `last`: the newest answer of each scheduler since the daemon started. While a scheduler does not answer, exclusions
    count as still in force.
    """
    if state.order is not None:
        yield "", Why.OPERATOR.value
    for name in sorted({*node_states, *state.holds, *state.others}):
        node_state, hold = node_states.get(name), state.holds.get(name)
        if node_state is not None and node_state.reachable:
            if node_state.owner is not Owner.NONE and node_state.why is not None:
                yield name, node_state.why.value
        elif hold is not None:
            yield name, hold.why.value
        if name in last:
            yield from ((name, by) for by in _by_others(last[name]))
        elif name in state.others and name in actuators:
            yield name, Owner.FOREIGN.value


def _by_others(node_state: NodeState) -> Iterator[str]:
    if node_state.closed or (node_state.owner is not Owner.NONE and node_state.why is None):
        yield Owner.FOREIGN.value
    if Flag.MAINTENANCE in node_state.flags:
        yield Flag.MAINTENANCE.value
