"""Which notices are acted on now: an end of this machine that is imminent, and GPUs that fail. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpuwarden.features.evacuation.policy.budget import FAILING_GPU
from gpuwarden.health.conditions import condition
from gpuwarden.health.model import Finding, Verdict
from gpuwarden.policy import reasons
from gpuwarden.policy.model import NodeState, Notice, Why
from gpuwarden.policy.notices import all_imminent, id_of
from gpuwarden.policy.situation import live
from gpuwarden.policy.state import PolicyState
from gpuwarden_collectors.dataclass import dataclass
from gpuwarden_collectors.facts import Stamp

SLURM = "slurm"
GPU = "gpu"
"""The source of a notice that a GPU fails."""
_OF_GPU = ("gpu", "link")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveNotices:
    """What is acted on now: `notices` of this machine's end, the first of them, and of GPUs that fail.

    `later`: other ends that are imminent too. `ignored`: notices of GPUs that fail, where nothing is done for the jobs
    on them. `processes`: by the id of a GPU's notice, the processes on it. `unschedulable`: this node was read back as
    one that takes no work; `closed`: at every scheduler, or there is none. `reason`: the text of our termination at the
    scheduler.
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
    """Choose what is acted on now. `processes`: by slot, the processes that had the GPU open when it was last listed.
    `going_on`: the ids of the evacuations that are not over. `slurm`: it is configured. `excludes`: anything is that
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


def _ends_jobs(finding: Finding) -> bool:
    row = condition(finding.key.code)
    return row is None or not row.jobs_go_on


def _failing(state: PolicyState, verdict: Verdict, begun: Mapping[str, str], *, excludes: bool) -> Iterator[Notice]:
    """Notices of failing GPUs, only while the node is excluded for a failure: mode, breaker and operators have had
    their say. They date from the exclusion.

    Where nothing excludes it, they date from the failure. `begun`: by name, those that are acted on
    already. These keep their time, and so their id, since a job is signalled once for each: what they date from may end
    before the GPU fails no more. They go on for a failure that is only remembered, too, as after a restart of the daemon.
    """
    out = [hold.at for hold in state.holds.values() if hold.why is Why.FAILURE and not hold.released]
    by_slot: dict[str, list[Stamp]] = {}
    for finding in live(state, verdict):
        subject, is_confirmed = finding.key.subject, finding.confirmed or f"{GPU}/{finding.key.subject.slot}" in begun
        if is_confirmed and subject.kind in _OF_GPU and _ends_jobs(finding):
            by_slot.setdefault(subject.slot, []).append(finding.first_seen)
    for slot in sorted(by_slot) if out or not excludes else ():
        at = min(out if excludes else by_slot[slot])
        new = Notice(source=GPU, kind=FAILING_GPU, at=at, boot_id=state.boot_id, id=slot, reason=f"GPU {slot} failed")
        since = begun.get(new.name, "")
        yield replace(new, at=Stamp(float(since), at.wall)) if since.isdecimal() else new


def _begun(ids: Iterable[str]) -> dict[str, str]:
    """Return, by the name of each notice that is acted on, the time in its id."""
    return {name: at for name, _, at in (text.rpartition("@") for text in ids)}
