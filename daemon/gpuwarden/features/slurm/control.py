"""The verbs of the control socket for Slurm's scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuwarden.base.peer import Peer
from gpuwarden.health.gpu.jobs import on_gpus
from gpuwarden.health.model import Health
from gpuwarden.publish.metrics.exposition import Holder
from gpuwarden.publish.snapshot import Snapshot
from gpuwarden.publish.sockets.control import Verb
from gpuwarden_collectors.base import Clock


def slurm_verbs(
    holder: Holder, read_everything: Callable[[], None], hook_asked: Callable[[], None], clock: Clock
) -> Mapping[str, Verb]:
    """Return the verbs for Slurm's hooks.

    `read_everything` has everything read now, not at the next turn; `hook_asked` is called at each run of
    HealthCheckProgram.
    """

    async def read_now(_: dict[str, Any], __: Peer) -> Any:
        read_everything()
        return "looking"

    async def healthcheck(_: dict[str, Any], __: Peer) -> Any:
        hook_asked()
        snapshot = holder.snapshot
        health = snapshot.health(clock())
        if health is not Health.FAILURE:
            return f"{health.value}: nothing to do"
        return f"failure: {' '.join(snapshot.verdict.reasons[:8])}; {_state(snapshot)}"

    async def jobs(_: dict[str, Any], __: Peer) -> Any:
        return document(holder.snapshot)

    return {"look": read_now, "slurm_healthcheck": healthcheck, "slurm_jobs": jobs}


def _state(snapshot: Snapshot) -> str:
    if snapshot.excluded_by:
        return f"excluded by {' '.join(snapshot.excluded_by)}"
    if snapshot.service.mode != "enforce":
        return f"mode is {snapshot.service.mode}"
    return snapshot.enforced.breaker or "the daemon is acting on it"


def document(snapshot: Snapshot) -> dict[str, Any]:
    """Return the jobs on each GPU; `known` is false if they are not read."""
    if snapshot.jobs is None:
        return {"known": False, "gpus": []}
    listed = () if snapshot.nvml is None else snapshot.nvml.gpus
    slots = [gpu.slot for gpu in snapshot.verdict.gpus]
    by_slot = on_gpus(snapshot.jobs, slots, {facts.slot: facts for facts in listed})
    return {
        "known": True,
        "gpus": [
            {
                "index": gpu.index,
                "pci_bus_id": gpu.slot,
                "health": gpu.health.value,
                "jobs": [
                    {
                        "job": job.job,
                        "uid": job.uid,
                        "user": job.user,
                        "job_name": job.job_name,
                        "pids": list(job.pids),
                        "ended": job.ended,
                    }
                    for job in by_slot.get(gpu.slot, ())
                ],
            }
            for gpu in snapshot.verdict.gpus
        ],
    }
