"""Selects the notices to act on now: an imminent end of this machine, and failing GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.health.model import Verdict
from gpuwarden.health.running_jobs import jobs_go_on
from gpuwarden.policy import reasons
from gpuwarden.policy.model import NodeState, Notice, Why
from gpuwarden.policy.notices import all_imminent, id_of
from gpuwarden.policy.situation import live
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

SLURM = "slurm"
GPU = "gpu"
"""Source of the notices about failing GPUs."""
_OF_GPU = ("gpu", "link")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveNotices:
    """The notices to act on now: `notices` has the first imminent end of this machine, and the failing GPUs. `later`:
    other imminent ends. `ignored`: failing GPUs for whose jobs nothing is done. `processes`: by the id of a GPU's
    notice, the processes on it. `unschedulable`: Slurm's state of this node was read back as taking no work; `closed`:
    at every scheduler, or there is none. `reason`: the text of gpuwarden's termination at the scheduler.
    """

    notices: tuple[Notice, ...] = ()
    later: tuple[Notice, ...] = ()
    ignored: tuple[Notice, ...] = ()
    processes: tuple[tuple[str, frozenset[int]], ...] = ()
    unschedulable: bool = False
    closed: bool = False
    reason: str = ""


def active_notices(
    state: PolicyState,
    verdict: Verdict,
    node_states: Mapping[str, NodeState],
    processes: Mapping[str, frozenset[int]],
    *,
    going_on: Iterable[str],
    slurm: bool,
    excludes: bool,
    ignore_gpus: bool,
    horizon: float,
    instance: str,
    now: Stamp,
) -> ActiveNotices:
    """Select the notices to act on now. `processes`: by slot, the processes that had the GPU open when last listed.
    `going_on`: ids of the open evacuations. `slurm`: Slurm is configured. `excludes`: something is configured that
    excludes this node.
    """
    ends = all_imminent(state.notices, horizon, now)
    failed = tuple(_failing(state, verdict, _begun(going_on), excludes=excludes))
    gpus, ignored = ((), failed) if ignore_gpus else (failed, ())
    node_state = node_states.get(SLURM)
    return ActiveNotices(
        notices=(*ends[:1], *gpus),
        later=tuple(ends[1:]),
        ignored=ignored,
        processes=tuple((id_of(notice), processes.get(notice.id, frozenset())) for notice in gpus),
        unschedulable=node_state is not None and _is_unschedulable(node_state),
        closed=(node_state is not None or not slurm) and all(map(_is_unschedulable, node_states.values())),
        reason=reasons.termination(state.boot_id, instance),
    )


def _is_unschedulable(node_state: NodeState) -> bool:
    return node_state.reachable and not node_state.schedulable


def _failing(state: PolicyState, verdict: Verdict, begun: Mapping[str, str], *, excludes: bool) -> Iterator[Notice]:
    """Yield notices of failing GPUs, but only while the node is excluded for a failure, when mode, breaker and
    operators have decided. They date from the exclusion.

    If nothing is configured that excludes the node, they date from the failure. `begun`: by name, the time of notices
    that are already acted on. They keep that time, and so their id, for as long as the GPU fails, since a job is
    signalled once for each id. They also continue for a failure that is only remembered after a restart of the daemon.
    """
    out = [hold.at for hold in state.holds.values() if hold.why is Why.FAILURE and not hold.released]
    by_slot: dict[str, list[Stamp]] = {}
    for finding in live(state, verdict):
        subject, is_confirmed = finding.key.subject, finding.confirmed or f"{GPU}/{finding.key.subject.slot}" in begun
        if is_confirmed and subject.kind in _OF_GPU and not jobs_go_on(finding):
            by_slot.setdefault(subject.slot, []).append(finding.first_seen)
    for slot in sorted(by_slot) if out or not excludes else ():
        at = min(out if excludes else by_slot[slot])
        new = Notice(source=GPU, kind=FAILING_GPU, at=at, boot_id=state.boot_id, id=slot, reason=f"GPU {slot} failed")
        since = begun.get(new.name, "")
        yield replace(new, at=Stamp(float(since), at.wall)) if since.isdecimal() else new


def _begun(ids: Iterable[str]) -> dict[str, str]:
    """Return the time in the id of each notice that is acted on, by the notice's name."""
    return {name: at for name, _, at in (text.rpartition("@") for text in ids)}
