"""What the controller is told right before this machine is gone, so that it need not wait for it until SlurmdTimeout.

A job whose node vanished stays completing for as long as the node is not down (measured; SlurmdTimeout is 300 s by default). DOWN
ends whatever still runs here and on the other nodes of its job, so it is for the last seconds. So does POWER_DOWN_FORCE, for nodes that Slurm
itself powers up and down: it drops the drain with it, and the node comes back by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuwarden.actuators.slurm.asking import asking
from gpuwarden.actuators.slurm.standing import is_out
from gpuwarden.policy.model import Why
from gpuwarden.policy.reasons import parse
from gpuwarden_collectors.slurm.commands import Commands
from gpuwarden_collectors.slurm.errors import OddAnswer
from gpuwarden_collectors.slurm.facts import NodeFacts
from gpuwarden_collectors.slurm.nodes import read_node


class LastWord(StrEnum):
    DOWN = "down"
    POWER_DOWN = "power_down"  # only where power saving is configured; Slurm refuses it elsewhere


class LastWordResult(StrEnum):
    DONE = "done"
    ALREADY = "already"  # so it was before anything was written
    NOT_OURS = "not_ours"  # what stands on the node is not our termination; it was left alone


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWordOutcome:
    """`text` is for people."""

    result: LastWordResult
    text: str


_WRITTEN = {LastWord.DOWN: "DOWN", LastWord.POWER_DOWN: "POWER_DOWN_FORCE"}
_POWERED = frozenset({"power_down", "powering_down", "powered_down"})
_OTHERS = frozenset({"fail", "maintenance", "maint", "reboot_requested", "reboot_issued", "invalid_reg"})
"""Somebody else has plans with the node; FAIL takes the place of a drain of ours and keeps its reason."""


async def last_words(commands: Commands, node: str, word: LastWord, reason: str) -> LastWordOutcome:
    """Say `word` of `node`. `reason`: our termination's, of policy/reasons. Takes about 30 ms on a quiet controller.

    Only where a termination of ours stands. Safe to repeat. Raises ActuatorError; what timed out may be done later.
    """
    return await asking(_last_words(commands, node, word, reason))


async def _last_words(commands: Commands, node: str, word: LastWord, reason: str) -> LastWordOutcome:
    found = await read_node(commands, node)
    if not _is_ours(found):
        text = f"{node} is {found.state}, {found.reason[:120]!r}: no termination of ours; it is left alone"
        return LastWordOutcome(result=LastWordResult.NOT_OURS, text=text)
    if _is_said(found, word):
        return LastWordOutcome(result=LastWordResult.ALREADY, text=f"{node} is {found.state}")
    state = _WRITTEN[word]
    undone = f"cannot set {node} {state}"
    await commands.change(undone, "scontrol", "update", f"NodeName={node}", f"State={state}", f"Reason={reason}")
    found = await read_node(commands, node)
    if not _is_said(found, word):
        raise OddAnswer(f"{undone}: Slurm took it, and it is {found.state}; see the log of slurmctld")
    return LastWordOutcome(result=LastWordResult.DONE, text=f"{node} is {found.state}")


def _is_ours(node: NodeFacts) -> bool:
    reason = parse(node.reason) if is_out(node) and node.flags.isdisjoint(_OTHERS) else None
    return reason is not None and reason.why is Why.TERMINATION


def _is_said(node: NodeFacts, word: LastWord) -> bool:
    return node.base == "down" if word is LastWord.DOWN else not node.flags.isdisjoint(_POWERED)
