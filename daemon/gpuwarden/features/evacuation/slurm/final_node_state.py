"""The node state written right before this machine ends, so that the controller need not wait until SlurmdTimeout.

A job whose node vanished stays completing until the node is down (measured; SlurmdTimeout is 300 s by default). DOWN
ends what still runs here and on the other nodes of its job, so it is written in the last seconds. POWER_DOWN_FORCE, for
nodes that Slurm itself powers up and down, does the same; it also removes the drain, and the node returns by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from gpuwarden.policy.model import Why
from gpuwarden.policy.reasons import parse
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.slurm.client import Commands
from gpuwarden_collectors.slurm.errors import CalledOff, OddAnswer
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.nodes import read_node


class FinalState(StrEnum):
    DOWN = "down"
    POWER_DOWN = "power_down"  # only where power saving is configured; Slurm refuses it elsewhere


class FinalStateResult(StrEnum):
    DONE = "done"
    ALREADY = "already"  # the node had the state before
    CALLED_OFF = "called_off"  # no longer wanted: nothing was written
    NOT_OURS = "not_ours"  # the node's drain is not gpuwarden's termination; it was left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalStateOutcome:
    """The result of writing the final state."""

    result: FinalStateResult
    text: str
    """For people."""


_WRITTEN = {FinalState.DOWN: "DOWN", FinalState.POWER_DOWN: "POWER_DOWN_FORCE"}
_POWERED = frozenset({"power_down", "powering_down", "powered_down"})
_OTHERS = frozenset({"fail", "maintenance", "maint", "reboot_requested", "reboot_issued", "invalid_reg"})
"""Another party manages the node; FAIL replaces gpuwarden's drain and keeps its reason."""


async def set_final_state(
    commands: Commands, node: str, final: FinalState, reason: str, *, still: Callable[[], bool] | None = None
) -> FinalStateOutcome:
    """Set `node` to `final`. `reason`: that of gpuwarden's termination (policy/reasons). `still`: called right before;
    returns whether the state is still wanted. Takes about 30 ms on a quiet controller.

    Only if gpuwarden has drained the node for a termination. Safe to repeat. Raises SlurmError; a write that timed out
    may still be done.
    """
    facts = await read_node(commands, node)
    if not _is_own_termination(facts):
        text = f"{node} is {facts.state}, {facts.reason[:120]!r}: not drained by gpuwarden for a termination; it is left unchanged"
        return FinalStateOutcome(result=FinalStateResult.NOT_OURS, text=text)
    if _has(facts, final):
        return FinalStateOutcome(result=FinalStateResult.ALREADY, text=f"{node} is {facts.state}")
    state = _WRITTEN[final]
    undone = f"cannot set {node} {state}"
    command = ("scontrol", "update", f"NodeName={node}", f"State={state}", f"Reason={reason}")
    try:
        await commands.change(undone, *command, still=still)
    except CalledOff as error:
        return FinalStateOutcome(result=FinalStateResult.CALLED_OFF, text=str(error))
    facts = await read_node(commands, node)
    if _has(facts, final):
        return FinalStateOutcome(result=FinalStateResult.DONE, text=f"{node} is {facts.state}")
    if _may_have(facts, final):
        text = f"Slurm accepted it for {node}, which is shown as {facts.state} until Slurm counts its jobs again"
        return FinalStateOutcome(result=FinalStateResult.DONE, text=text)
    raise OddAnswer(f"{undone}: Slurm accepted it, and it is {facts.state}; see the log of slurmctld")


def _is_own_termination(node: NodeFacts) -> bool:
    reason = parse(node.reason) if node.is_out and node.flags.isdisjoint(_OTHERS) else None
    return reason is not None and reason.why is Why.TERMINATION


def _may_have(node: NodeFacts, final: FinalState) -> bool:
    """Return True if the state may be hidden: mixed covers down while CPUs of ended jobs count (without_ended_jobs)."""
    return node.base == "mixed" and final is FinalState.DOWN


def _has(node: NodeFacts, final: FinalState) -> bool:
    return node.base == "down" if final is FinalState.DOWN else not node.flags.isdisjoint(_POWERED)
