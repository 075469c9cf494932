"""The answers to `gpuwarden restore` on a node with active failures, as lines for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpuwarden.health.model import Finding, Verdict
from gpuwarden.health.running_jobs import jobs_go_on

FORCE = "gpuwarden restore --force"
_SHOWN = 8
"""Most findings that are listed; a node all of whose links are down has more than a hundred."""
_NO_GPU_WORKS = frozenset({"driver_unresponsive", "driver_not_loaded", "driver_library_mismatch", "nvml_unavailable"})


def refusal(failures: Sequence[Finding], verdict: Verdict, *, enforce: bool) -> str:
    """Return why nothing was done, with what to do instead."""
    why = "active failures keep this node out of scheduling" if enforce else "this node has active failures"
    return "\n".join((f"nothing was restored: {why}", *_listed(failures, verdict), _to_do(failures, enforce=enforce)))


def stays_out(failures: Sequence[Finding], verdict: Verdict, outcomes: Iterable[str], *, done: bool) -> str:
    """Return what was done, and why the node stays excluded. `done`: every scheduler has applied it; otherwise jobs may
    still start.
    """
    stays = "stays" if done else "is to stay"
    summary = "; ".join(
        (f"the operator's exclusion has ended, and the node {stays} out for active failures", *outcomes)
    )
    return "\n".join((summary, *_listed(failures, verdict), _to_do(failures, enforce=True)))


def overridden(failures: Sequence[Finding], verdict: Verdict) -> Iterator[str]:
    """Yield each failure that was overridden, and what that means for jobs."""
    yield f"overridden: jobs start despite {len(failures)} active failure{'s'[: len(failures) > 1]}:"
    yield from _listed(failures, verdict)
    yield (
        "this lasts until each of them has ended, until the next boot, or until gpuwarden exclude; meanwhile gpuwarden status and the "
        "alert GpuwardenFailureOverridden show it"
    )


def _to_do(failures: Sequence[Finding], *, enforce: bool) -> str:
    unconfirmed = [finding for finding in failures if not finding.confirmed]
    wait = (
        "remembered failures are confirmed, or end, within two minutes after gpuwarden starts: try again then"
        if len(unconfirmed) == len(failures)
        else "repair them, or acknowledge those for which gpuwarden status allows it (gpuwarden ack), and "
        + ("the node comes back" if enforce else "try again")
    )
    return f"{wait}; to start jobs here despite them: {FORCE}"


def _listed(failures: Sequence[Finding], verdict: Verdict) -> Iterator[str]:
    for finding in failures[:_SHOWN]:
        remembered = "" if finding.confirmed else ", remembered from before gpuwarden started"
        yield f"  {finding.key} ({finding.title}{remembered}): {effect_on_jobs(finding, verdict)}"
    if len(failures) > _SHOWN:
        yield f"  and {len(failures) - _SHOWN} more: gpuwarden status lists them"


def effect_on_jobs(finding: Finding, verdict: Verdict) -> str:
    """Return how this failure affects jobs on the node."""
    subject = finding.key.subject
    gpu = next((gpu for gpu in verdict.gpus if gpu.slot == subject.slot), None)
    if finding.key.code in _NO_GPU_WORKS:  # before `jobs_go_on`, which is about running jobs
        return "no job can use any GPU of this node"
    if jobs_go_on(finding):
        return "jobs run, possibly degraded"
    if finding.key.code == "gpu_missing":
        return "jobs that are given this GPU fail when they start"
    if gpu is None:
        return "any job on this node may fail"
    name = "that GPU" if gpu.index is None else f"GPU {gpu.index}"
    if subject.kind == "link":
        return f"jobs that use {name} with others may hang, fail or run slowly"
    return f"jobs that are given {name} may fail, hang or compute wrong results"
