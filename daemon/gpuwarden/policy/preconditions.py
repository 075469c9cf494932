"""Whether an intent may be written, given the scheduler's state of the node. Used to decide, and on the read before a
write.
"""

from __future__ import annotations

from dataclasses import replace

from gpuwarden.policy.model import Act, Flag, Intent, NodeState, Outcome, Owner, Result, Why

RANK = {Why.FAILURE: 0, Why.TERMINATION: 1, Why.OPERATOR: 2}
"""A reason of ours may be replaced by one of higher rank."""
REPAIR_REMARKS = frozenset(
    {"Not responding", "Node unexpectedly rebooted", "reboot requested", "reboot issued", "reboot timed out"}
)
"""Remarks that Slurm appends from 23.02 on while a machine is off or boots
(src/slurmctld/{ping_nodes,controller,node_mgr,proc_req}.c). They follow from a repair or a replacement, and do not
prevent a restoration; all other remarks do. "reboot complete" is among those: Slurm writes it only where a person
ordered the reboot with nextstate=DOWN (node_mgr.c, validate_node_specs)."""
CLOCK_APART = 1.5
"""Most seconds by which two reads of the same exclusion's time may differ, since schedulers store whole seconds."""


def answer(intent: Intent, node_state: NodeState) -> Outcome | None:
    """The outcome if it is known without a write, or None if the intent must be written now."""
    remarked = with_remark(intent.reason, node_state)
    if intent.act is Act.EXCLUDE:
        return _exclude(
            intent, node_state if intent.why is Why.OPERATOR else remarked
        )  # text after that of an order may be an earlier, longer order
    return _restore(intent, as_owned(remarked, intent.ended))


def as_owned(node_state: NodeState, ended: float) -> NodeState:
    """Return the state with its true owner: our exclusion from the time `ended` was ended by another party. 0: there is
    none.

    Slurm keeps the text and time of a drain that was ended, and does not replace them when it drains such a node
    itself.
    """
    if node_state.owner is not Owner.OURS or node_state.suffix or not (ended and node_state.since):
        return node_state
    if abs(node_state.since - ended) > CLOCK_APART:
        return node_state
    return replace(node_state, owner=Owner.FOREIGN, why=None)


def same(reason: str, since: float, node_state: NodeState) -> bool:
    """True if exactly this exclusion is in force. Our text with another time was written by somebody else."""
    apart = abs(since - node_state.since) if since and node_state.since else 0.0
    return node_state.owner is Owner.OURS and node_state.reason == reason and apart <= CLOCK_APART


def still_closed(node_state: NodeState) -> str:
    """Return what else keeps work away from the node after our exclusion is lifted, for people; "" if nothing does."""
    return f"the node stays {node_state.closed}, by another party" if node_state.closed else ""


def stands(reason: str, since: float, node_state: NodeState) -> bool:
    """True if this exclusion is in force, with or without a remark that somebody else appended.

    A remark changes its time. So does a reboot ordered with the same text, before the scheduler appends its remark.
    """
    remarked = with_remark(reason, node_state)
    moved = bool(remarked.suffix) or Flag.REBOOT in node_state.flags
    return same(reason, 0.0 if moved else since, remarked)


def lost(written: float, node_state: NodeState) -> bool:
    """True if the scheduler lost our exclusion: it started after the exclusion was written, and shows none.

    `written`: Unix time, compared in whole seconds, which schedulers store.
    """
    return node_state.owner is Owner.NONE and 0.0 < node_state.started >= int(written)


def with_remark(reason: str, node_state: NodeState) -> NodeState:
    """Return the state with any text after ours moved to its suffix, including what a person added, such as a ticket
    number.
    """
    more = node_state.reason.removeprefix(reason) if reason and node_state.owner is Owner.OURS else ""
    if more in ("", node_state.reason) or more[0].isalnum():
        return node_state
    return replace(node_state, reason=reason, suffix=" : ".join(filter(None, (more.strip(), node_state.suffix))))


def _exclude(intent: Intent, node_state: NodeState) -> Outcome | None:
    match node_state.owner:
        case Owner.FOREIGN:
            return Outcome(result=Result.DROPPED, text=f"it is excluded by another party: {_shown(node_state)}")
        case Owner.OURS if node_state.reason == intent.reason:
            return Outcome(result=Result.ALREADY, since=node_state.since)
        case Owner.OURS if node_state.suffix and not _says_repair(node_state):
            return Outcome(
                result=Result.DROPPED, text=f"it is excluded, and {node_state.suffix!r} was added to the reason"
            )
        case Owner.OURS if node_state.why is not None and not (
            node_state.reason == intent.replaces or _gives_way(node_state.why, intent.why)
        ):
            return Outcome(result=Result.DROPPED, text=f"gpuwarden already excludes it: {node_state.reason}")
    # A flag such as a reboot that waits for the end of the jobs keeps no work away.
    barred = None if node_state.schedulable else _barred(node_state, frozenset())
    if barred is None or not intent.force or node_state.flags != {Flag.POWER}:
        return barred
    return replace(barred, result=Result.RETRY)  # it boots, and would accept jobs after that


def _gives_way(stands: Why, to: Why) -> bool:
    """True if the text in force may be replaced. The text of a failure is not refreshed, since that would reset the
    time of the exclusion.
    """
    return RANK[stands] < RANK[to] or (stands is to and to is not Why.FAILURE)


def _restore(intent: Intent, node_state: NodeState) -> Outcome | None:
    match node_state.owner:
        case Owner.NONE:
            text = "; ".join(filter(None, ("no exclusion of gpuwarden is in force", still_closed(node_state))))
            return Outcome(result=Result.ALREADY, text=text)
        case Owner.FOREIGN:
            return Outcome(result=Result.DROPPED, text=f"it is excluded by another party: {_shown(node_state)}")
    if node_state.suffix and not (intent.force or _says_repair(node_state)):
        return Outcome(
            result=Result.DROPPED,
            text=f"{node_state.suffix!r} was added to the reason: look at the node; then gpuwarden restore brings it back",
        )
    if intent.reason and not stands(intent.reason, intent.since, node_state):
        return Outcome(
            result=Result.DROPPED, text=f"the exclusion in force is not the one to be lifted: {node_state.reason}"
        )
    explained = intent.force or intent.rebooted or node_state.why is Why.TERMINATION
    barred = _barred(node_state, frozenset({Flag.DOWN}) if explained else frozenset())
    if barred is None or intent.force:
        return barred
    return replace(barred, result=Result.RETRY)  # flags end by themselves; if dropped, our exclusion would stay


def _says_repair(node_state: NodeState) -> bool:
    return REPAIR_REMARKS.issuperset(node_state.suffix.split(" : "))


def _barred(node_state: NodeState, allowed: frozenset[Flag]) -> Outcome | None:
    flags = sorted(node_state.flags - allowed)
    if not flags:
        return None
    return Outcome(
        result=Result.DROPPED, text=f"the scheduler shows {', '.join(flags)} for this node ({node_state.state})"
    )


def _shown(node_state: NodeState) -> str:
    return node_state.reason or node_state.state or "no reason given"
